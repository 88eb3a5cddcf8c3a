"""The thread that watches a run: it tells lines, and interrupts the main thread once when the run is given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from openrlhf_ada.cli import run_watch
from openrlhf_ada.cli.run_watch import RunWatch
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.platforms.signals import unwound_by_signals
from openrlhf_ada.reporting.silence import STOPPED, WORKER, Process

STOPPED_POLICY = Process("policy actor", WORKER, 7, STOPPED, "fit", 7)


class Context:
    def get_node_id(self) -> str:
        return "here"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[RunWatch, list[str]]]:
    """Of processes that `look` gives."""
    monkeypatch.setattr("ray.get_runtime_context", Context)

    def make(look: Callable[[], Any]) -> tuple[RunWatch, list[str]]:
        monkeypatch.setattr(run_watch.RunActors, "look", lambda self: look())
        notes: list[str] = []
        return RunWatch(AdaConfig(silence=0.03, dead_after=0.3), "logs", notes.append), notes

    return make


def test_the_main_thread_is_interrupted_where_it_waits(watch: Any) -> None:
    """As a blocked `ray.get` is."""
    thread, notes = watch(lambda: ([STOPPED_POLICY], []))
    end = time.monotonic() + 60
    with pytest.raises(KeyboardInterrupt), unwound_by_signals():
        thread.start()
        while time.monotonic() < end:
            time.sleep(0.01)
    thread.stop(waits=True)
    assert not thread.is_alive()
    assert thread.verdict.startswith("policy actor (pid 7, in fit) has been stopped for")
    assert notes and "`kill -CONT 7`" in notes[0]


def test_the_watch_ends_with_ray(watch: Any) -> None:
    def gone() -> None:
        raise RaySystemError("the head is gone")

    thread, notes = watch(gone)
    thread.run()
    assert thread.verdict == "" and notes == []


def test_a_run_says_that_it_waits_before_it_ends(refusal: Callable[[dict[str, str]], Exception]) -> None:
    error = refusal({"--ada_silence": "90", "--ada_dead_after": "80"})
    assert isinstance(error, ConfigError) and error.flag == "--ada_dead_after" and "--ada_silence is 90" in str(error)
