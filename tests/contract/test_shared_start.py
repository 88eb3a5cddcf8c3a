"""A Ray that several runs join: for those alone that know its token, and for no longer than they need it."""

from __future__ import annotations

import os
from unittest import mock

import psutil
import pytest

from openrlhf_ada.host.ray_session import MODE, TOKEN
from openrlhf_ada.platforms import shared_start
from openrlhf_ada.platforms.session import SHARED_RAY_VARIABLE
from openrlhf_ada.platforms.shared_start import one_ray


def below_this_process() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.mark.slow
def test_one_ray_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_RAY_VARIABLE, raising=False)
    known, before = {MODE, TOKEN} & os.environ.keys(), below_this_process()
    with one_ray():
        token, _, address = os.environ[SHARED_RAY_VARIABLE].partition("@")
        started = [process for process in below_this_process() if process not in before]
        lines = [" ".join(process.cmdline()) for process in started]
        assert any("raylet" in line and address in line for line in lines), lines
        assert len(token) == 64 and not [line for line in lines if token in line]
        assert {MODE, TOKEN} & os.environ.keys() == known
    assert SHARED_RAY_VARIABLE not in os.environ
    assert not psutil.wait_procs(started, timeout=30)[1]


@pytest.mark.parametrize(("on_cpu", "address"), [(False, None), (True, "127.0.0.1:6379")])
def test_a_gpu_or_a_cluster_that_is_named_is_used_as_it_is(
    on_cpu: bool, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARED_RAY_VARIABLE, raising=False)
    monkeypatch.setattr(shared_start.cpu, "is_needed", lambda: on_cpu)
    monkeypatch.setattr(shared_start.subprocess, "Popen", mock.Mock(side_effect=AssertionError))
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with one_ray():
        assert SHARED_RAY_VARIABLE not in os.environ


def test_a_ray_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_RAY_VARIABLE, raising=False)
    monkeypatch.setattr(shared_start, "python", lambda: "/bin/false")
    with (
        pytest.raises(ChildProcessError, match=r"Ray did not start: /bin/false .* ended with exit status 1"),
        one_ray(),
    ):
        raise AssertionError
