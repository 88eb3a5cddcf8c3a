"""A Ray that several runs join: for those alone that know its token, and for no longer than they need it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import psutil
import pytest
from processes import command_line

from openrlhf_ada.host.ray_session import MODE, TOKEN
from openrlhf_ada.platforms import cpu_setup_worker, shared_start
from openrlhf_ada.platforms.session import SHARED_RAY_VARIABLE, SharedRay
from openrlhf_ada.platforms.shared_start import one_ray


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def below_this_process() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.mark.slow
def test_one_ray_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_RAY_VARIABLE, raising=False)
    known, before = {MODE, TOKEN} & os.environ.keys(), below_this_process()
    with one_ray():
        _, token, address = SharedRay(*os.environ[SHARED_RAY_VARIABLE].split())
        started = [process for process in below_this_process() if process not in before]
        lines = [command_line(process) for process in started]
        assert any("raylet" in line and address in line for line in lines), lines
        assert any("raylet" in line and cpu_setup_worker.__file__ in line for line in lines), lines
        assert len(token) == 64 and not [line for line in lines if token in line]
        assert {MODE, TOKEN} & os.environ.keys() == known
    assert SHARED_RAY_VARIABLE not in os.environ
    assert not psutil.wait_procs(started, timeout=30)[1]


def test_ray_is_told_no_variable_that_it_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes them to its logs."""
    monkeypatch.setenv("HF_TOKEN", "marker")
    with subprocess.Popen(["sleep", "60"], env=dict(os.environ)) as holder:
        shared = SharedRay(str(holder.pid), "0" * 64, "127.0.0.1:1")
        monkeypatch.setenv(SHARED_RAY_VARIABLE, " ".join(shared))
        monkeypatch.setenv("SET_LATER", "1")
        # It has a name before the kernel shows its variables.
        until(lambda: "HF_TOKEN" in psutil.Process(holder.pid).environ())
        told = shared.not_inherited()
        holder.kill()
    assert told == {"SET_LATER": "1"}


HOLDS = """
from openrlhf_ada.platforms.shared_start import one_ray
with one_ray():
    print("up", flush=True)
    input()
"""


@pytest.mark.slow
def test_a_killed_comparison_leaves_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_RAY_VARIABLE, raising=False)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDS], **pipes) as comparison:
        assert comparison.stdout is not None and comparison.stdout.readline() == "up\n"
        started = psutil.Process(comparison.pid).children(recursive=True)
        assert any(process.name() == "raylet" for process in started)
        comparison.kill()
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
        pytest.raises(ChildProcessError, match=r"Ray did not start: /bin/false .* has ended"),
        one_ray(),
    ):
        raise AssertionError
