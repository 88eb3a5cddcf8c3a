"""Processes below this one may end at any moment."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psutil
import pytest

from openrlhf_ada.platforms import children
from openrlhf_ada.platforms.children import children_named, kill_rest


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def gone() -> psutil.Process:
    """One that has ended and was waited for, but whose object has not seen it."""
    process = subprocess.Popen(["sleep", "600"])
    seen = psutil.Process(process.pid)
    process.kill()
    process.wait()
    return seen


def test_children_are_found_by_name(sleeper: subprocess.Popen[bytes]) -> None:
    assert (sleeper.pid, "sleep") in [(child.pid, name) for child, name in children_named({"sleep"})]
    assert not list(children_named({"no such program"}))


def test_a_child_that_has_just_ended_has_no_name(gone: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda self: [gone])
    assert not list(children_named({"sleep"}))


def test_what_is_left_is_killed(sleeper: subprocess.Popen[bytes], gone: psutil.Process) -> None:
    child = psutil.Process(sleeper.pid)
    assert kill_rest([child, gone], 0.0) == [child]
    assert psutil.wait_procs([child], timeout=30)[1] == []


def test_one_that_ends_just_before_it_is_killed(gone: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "wait_procs", lambda processes, timeout: ([], processes))
    assert kill_rest([gone], 0.0) == [gone]


def test_nothing_is_imported_before_it_is_needed() -> None:
    """A bare installation has no psutil."""
    assert "psutil" not in vars(children)
