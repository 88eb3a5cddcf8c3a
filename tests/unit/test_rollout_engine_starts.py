"""What a user reads while engines start. The real thing: tests/e2e/test_engine.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusters import wait_until
from ray.exceptions import RpcError

from openrlhf_ada.platforms import vllm_plugin
from openrlhf_ada.rollout import engine_starts
from openrlhf_ada.rollout.engine_starts import StartWatch, report_start, watched_starts


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """In place of Ray's: keys and texts of this job."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(engine_starts, "published", lambda: dict(texts))
    monkeypatch.setattr(engine_starts, "publish", texts.__setitem__)
    monkeypatch.setattr(engine_starts, "take_back", texts.pop)
    return texts


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What Ray says of the process that this is."""
    context = SimpleNamespace(get_actor_id=lambda: "0a", was_current_actor_reconstructed=False)
    monkeypatch.setattr(engine_starts.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(engine_starts.ray, "get_runtime_context", lambda: context)
    return context


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def state(up: bool, doing: str = "") -> str:
    return json.dumps({"up": up, "doing": doing})


def lines_at(store: dict[str, str], count: int, seconds: list[int]) -> list[tuple[int, str]]:
    """Looks at these times after the start; what was told, and when."""
    told: list[str] = []
    clock = Clock()
    watch = StartWatch(count, told.append, clock)
    shown: list[tuple[int, str]] = []
    for second in seconds:
        clock.now = 1000.0 + second
        watch.look()
        shown += [(second, line) for line in told[len(shown) :]]
    return shown


def test_lines_come_less_and_less_often(store: dict[str, str]) -> None:
    """After 10, 20, 40, 80, 160 and 320 seconds, then every five minutes."""
    shown = lines_at(store, 2, list(range(0, 1300)))
    assert [second for second, _ in shown] == [10, 20, 40, 80, 160, 320, 620, 920, 1220]
    assert shown[0][1] == "2 vLLM engines are starting: 0 up after 10 s (Ray starts their processes)"


def test_a_line_says_what_an_engine_does(store: dict[str, str]) -> None:
    store["engine-a"] = state(False)
    assert lines_at(store, 1, [10]) == [(10, "1 vLLM engine is starting: 0 up after 10 s (vLLM is being loaded)")]
    store |= {"engine-a": state(True), "engine-b": state(False), "engine-c": state(False, "Loading weights took 81 s")}
    (line,) = lines_at(store, 4, [12])
    assert line == (12, "4 vLLM engines are starting: 1 up after 12 s (vLLM says: Loading weights took 81 s)")


def test_the_last_line_says_when_all_are_up(store: dict[str, str]) -> None:
    """Also where nothing was said before it. A key of something else does not count."""
    store |= {"engine-a": state(True), "other": "text"}
    assert lines_at(store, 1, [4]) == [(4, "1 vLLM engine is up after 4 s")]
    assert lines_at(store, 2, [4]) == []


def test_the_watch_ends_by_itself_and_leaves_nothing(store: dict[str, str]) -> None:
    store |= {"engine-a": state(True), "engine-b": state(True)}
    told: list[str] = []
    with watched_starts(2, told.append):
        pass
    assert told == ["2 vLLM engines are up after 0 s"]
    assert store == {}


def test_a_start_that_fails_ends_the_watch(store: dict[str, str]) -> None:
    store["engine-a"] = state(False)
    told: list[str] = []
    with pytest.raises(RuntimeError, match="out of memory"), watched_starts(1, told.append):
        raise RuntimeError("out of memory")
    assert (told, store) == ([], {})


def test_a_run_without_engines_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_starts, "published", lambda: pytest.fail("nobody is to look"))
    with watched_starts(0, lambda text: None):
        pass


def test_the_watch_ends_with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Any:
        raise RpcError("the cluster is gone")

    monkeypatch.setattr(engine_starts, "published", gone)
    with watched_starts(1, lambda text: None):
        pass


# -- the engine's side ------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm_logger() -> Iterator[logging.Logger]:
    """As vLLM's is in a quiet run."""
    logger = logging.getLogger("vllm")
    before = (logger.level, list(logger.handlers))
    logger.setLevel(logging.WARNING)
    yield logger
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.mark.usefixtures("actor")
def test_an_engine_tells_what_vllm_logs(
    store: dict[str, str], vllm_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_starts, "REPORT_S", 0.001)
    with report_start():
        assert store == {"engine-0a": state(False)}
        vllm_plugin.keep_last_line()
        logging.getLogger("vllm.model_executor.model_loader").info("Loading weights\nof %s", "a model")
        wait_until(lambda: store != {"engine-0a": state(False)}, "nothing was told")
        assert store == {"engine-0a": state(False, "Loading weights")}
    assert store == {"engine-0a": state(True)}
    assert vllm_plugin.FILE_VARIABLE not in vllm_plugin.os.environ


@pytest.mark.usefixtures("actor")
def test_an_engine_that_fails_is_never_up(store: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="no kernel"), report_start():
        raise RuntimeError("no kernel")
    assert store == {"engine-0a": state(False)}


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_restarted_engine_tells_only_whom_the_start_concerns(
    store: dict[str, str], actor: SimpleNamespace, is_watched: bool
) -> None:
    actor.was_current_actor_reconstructed = True
    if is_watched:
        store["engine-0a"] = state(False, "Loading weights")
    with report_start():
        pass
    assert store == ({"engine-0a": state(True)} if is_watched else {})


def test_vllm_logs_as_before_once_it_is_up(vllm_logger: logging.Logger, tmp_path: Path) -> None:
    """The file is gone: the first line after that is the last that is looked at."""
    with vllm_plugin.followed_start() as path:
        vllm_plugin.keep_last_line()
        vllm_plugin.keep_last_line()
        assert sum(isinstance(handler, vllm_plugin.LastLine) for handler in vllm_logger.handlers) == 1
        assert vllm_logger.level == logging.INFO
        vllm_logger.info("x" * 500)
        assert path.read_text() == "x" * vllm_plugin.LONGEST
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    vllm_logger.info("served")
    assert vllm_logger.level == logging.WARNING
    assert not any(isinstance(handler, vllm_plugin.LastLine) for handler in vllm_logger.handlers)


def test_a_start_that_nobody_follows_changes_nothing(vllm_logger: logging.Logger) -> None:
    vllm_plugin.keep_last_line()
    assert vllm_logger.level == logging.WARNING
