"""What a user reads while engines start. The real thing: tests/e2e/test_adaptive_training.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RpcError

from openrlhf_ada.host import ray_actors
from openrlhf_ada.rollout import engine_starts
from openrlhf_ada.rollout.engine_starts import start_lines, watched_starts


def table(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, str]) -> None:
    """Class and state of each actor of this job."""
    found = [SimpleNamespace(class_name=name, state=state) for name, state in rows]
    monkeypatch.setattr(ray_actors, "job_actors", lambda: found)


def lines_at(count: int, seconds: list[int]) -> list[tuple[int, str]]:
    """Looks at these times after the start; what was told, and when."""
    now = [1000.0]
    told: list[str] = []
    look = start_lines(count, told.append, lambda: now[0])
    shown: list[tuple[int, str]] = []
    for second in seconds:
        now[0] = 1000.0 + second
        look()
        shown += [(second, line) for line in told[len(shown) :]]
    return shown


def test_lines_come_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 10, 20, 40, 80, 160 and 320 seconds, then every five minutes."""
    table(monkeypatch, ("RolloutRayActor", "ALIVE"), ("RolloutRayActor", "PENDING_CREATION"), ("Queue", "ALIVE"))
    shown = lines_at(2, list(range(0, 1300)))
    assert [second for second, _ in shown] == [10, 20, 40, 80, 160, 320, 620, 920, 1220]
    assert shown[0][1].startswith("2 vLLM engines are starting: 1 up after 10 s")


def test_the_last_line_says_when_all_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing was said before it, and then the watch ends by itself."""
    table(monkeypatch, ("RolloutRayActor", "ALIVE"))
    assert lines_at(1, [4]) == [(4, "1 vLLM engine is up after 4 s")]
    told: list[str] = []
    with watched_starts(1, told.append) as tell_now:
        tell_now()
        assert told, "before anything that the engine does"
    assert told == ["1 vLLM engine is up after 0 s"]


def test_a_start_that_fails_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    table(monkeypatch)
    told: list[str] = []
    with pytest.raises(RuntimeError, match="out of memory"), watched_starts(1, told.append):
        raise RuntimeError("out of memory")
    assert told == []


def test_a_run_without_engines_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_starts, "num_engines_up", lambda: pytest.fail("nobody is to look"))
    with watched_starts(0, lambda text: None):
        pass


def test_the_watch_ends_with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Any:
        raise RpcError("the cluster is gone")

    monkeypatch.setattr(engine_starts, "num_engines_up", gone)
    with watched_starts(1, lambda text: None):
        pass
