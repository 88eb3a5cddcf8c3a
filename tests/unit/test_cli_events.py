"""The trainer's events on their way to the terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.util.queue import Empty

from openrlhf_ada.cli.train_ppo_ray import EventReader
from openrlhf_ada.host.ray_session import root_cause


class View:
    def __init__(self) -> None:
        self.shown: list[Any] = []

    def handle(self, event: Any) -> None:
        self.shown.append(event)


class Queue:
    """`source` gives an event or raises."""

    def __init__(self, source: Callable[[], Any]) -> None:
        self._source = source
        self.is_shut = threading.Event()

    def get(self, timeout: float) -> Any:
        return self._source()

    def shutdown(self, force: bool) -> None:
        assert force
        self.is_shut.set()


def read(source: Callable[[], Any]) -> tuple[EventReader, list[Any]]:
    view: Any = View()
    reader = EventReader(Queue(source), view, lambda: None)
    reader.start()
    return reader, view.shown


def test_queued_events_are_shown_at_the_end() -> None:
    events = list(range(100))

    def source() -> int:
        if not events:
            raise Empty
        return events.pop(0)

    reader, shown = read(source)
    reader.stop(waits=True)
    assert shown == list(range(100)) and not reader.is_alive()


def test_running_trainer_does_not_block_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next call would go to a Ray that is shut down, of which the whole process dies."""
    monkeypatch.setattr(EventReader, "DRAIN_S", 0.1)
    reader, shown = read(lambda: "step")
    reader.stop(waits=True)
    assert not reader.is_alive() and shown


@pytest.mark.slow
def test_a_queue_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may be stopped; the call would go on for ever."""
    monkeypatch.setattr(EventReader, "DRAIN_S", 0.1)
    queue = Queue(lambda: None)

    def blocked() -> None:
        queue.is_shut.wait()
        raise RayActorError

    queue._source = blocked
    reader = EventReader(queue, View(), lambda: None)  # type: ignore[arg-type]
    reader.start()
    reader.stop(waits=True)
    assert queue.is_shut.is_set() and not reader.is_alive()


def test_a_remote_error_is_told_by_its_cause() -> None:
    """Through two processes; its traceback is in the log."""
    inner = RayTaskError("score", "Traceback ...", ValueError("row 7 has reward nan"))
    assert root_cause(RayTaskError("fit", "Traceback ...", inner)) == "ValueError: row 7 has reward nan"
    assert root_cause(OutOfMemoryError("a node")) == str(OutOfMemoryError("a node"))


def test_every_event_is_noted() -> None:
    noted, events = [], [1, 2]

    def source() -> int:
        if not events:
            raise RayActorError
        return events.pop()

    reader = EventReader(Queue(source), View(), lambda: noted.append(1))  # type: ignore[arg-type]
    reader.run()
    assert len(noted) == 2


def test_a_queue_that_is_gone_ends_the_reader() -> None:
    def source() -> None:
        raise RayActorError

    reader, _ = read(source)
    reader.join(5)
    assert not reader.is_alive()
