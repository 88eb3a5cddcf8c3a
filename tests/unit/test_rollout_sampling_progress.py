"""Word of a step's sampling goes to the driver at once, and then not more often than it can be read."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from openrlhf_ada.core.fleet import sampling_progress
from openrlhf_ada.core.scheduling import Progress

STATE = Progress(open=3, unresolved=2, done=1, rollouts=9, tokens=90, right=0.5, signal=0.25)


def test_word_comes_at_once_and_twice_a_second() -> None:
    told: list[dict[str, Any]] = []
    now = [10.0]
    progress = sampling_progress(lambda **event: told.append(event), clock=lambda: now[0])
    look = partial(lambda: STATE)
    for _ in range(11):
        progress(look)
        now[0] += 0.125
    assert [event["seconds"] for event in told] == [0.0, 0.5, 1.0]
    assert told[0] == {**asdict(STATE), "seconds": 0.0}


def test_next_sampling_starts_its_own_clock() -> None:
    told: list[float] = []
    now = [10.0]
    progress = sampling_progress(lambda **event: told.append(event["seconds"]), clock=lambda: now[0])
    progress(partial(lambda: STATE))
    now[0] += 0.25
    progress(partial(lambda: STATE))
    assert told == [0.0, 0.0]
