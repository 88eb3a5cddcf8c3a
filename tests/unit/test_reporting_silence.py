"""Whom a run in which nothing happens waits for, what it says when, and when it is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from openrlhf_ada.reporting.silence import (
    CONTROLLER,
    ENGINE,
    IDLE,
    SERVANT,
    STARTING,
    UNSEEN,
    WORKER,
    WORKING,
    Process,
    Silence,
    Verdict,
    waited_for,
)

POLICY = Process("policy actor 0", WORKER, 11, IDLE, "fit")
SECOND = Process("policy actor 1", WORKER, 12, IDLE, "fit")
RESTING = Process("reference 0", WORKER, 13, IDLE)
SAMPLES = Process("vLLM engine 1", ENGINE, 14, IDLE, "answers")
TRAINER = Process("trainer", CONTROLLER, 15, IDLE, "fit")
QUEUE = Process("queue", SERVANT, 16, IDLE, "get")
UNPLACED = Process("critic 0", WORKER, 0, STARTING)


class Run:
    """60 s to the first line, 1800 s to the end, 1920 s for engines; one look a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.silence = Silence(60.0, 1800.0, 1920.0, lambda: self.now)

    def verdicts(self, processes: Sequence[Process], seconds: int) -> list[tuple[int, Verdict]]:
        """What is said in the next seconds, with the time; nothing after the end."""
        said: list[tuple[int, Verdict]] = []
        for _ in range(seconds):
            self.now += 1.0
            verdict = self.silence.judge(processes)
            if verdict is not None:
                said.append((int(self.now), verdict))
                if verdict.is_end:
                    break
        return said


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([QUEUE, TRAINER, SAMPLES, RESTING, POLICY, SECOND], [POLICY, SECOND]),
        ([QUEUE, TRAINER, SAMPLES, RESTING], [SAMPLES, TRAINER]),
        ([QUEUE, TRAINER, replace(SAMPLES, runs="receive_update")], [replace(SAMPLES, runs="receive_update")]),
        ([QUEUE, TRAINER, SAMPLES, UNPLACED], [UNPLACED]),
        ([QUEUE, TRAINER, RESTING], [TRAINER]),
        ([QUEUE], []),
        ([replace(QUEUE, is_stopped=True), TRAINER, POLICY], [replace(QUEUE, is_stopped=True)]),
    ],
    ids=["training", "sampling", "weights", "no place in Ray", "trainer alone", "nothing started", "stopped"],
)
def test_those_that_wait_for_others_are_not_waited_for(processes: list[Process], expected: list[Process]) -> None:
    assert waited_for(processes) == expected


def test_a_queue_that_is_asked_again_and_again_is_no_progress() -> None:
    run, said = Run(), list[tuple[int, Verdict]]()
    for second in range(2000):
        said += run.verdicts([TRAINER, POLICY, replace(QUEUE, runs="get" if second % 7 else "")], 1)
        if said and said[-1][1].is_end:
            break
    assert said[-1][0] == 1801


def test_lines_come_at_growing_intervals_and_then_the_end() -> None:
    said = Run().verdicts([TRAINER, POLICY, QUEUE], 4000)
    # The first look sees the processes for the first time, at second 1.
    assert [when for when, _ in said] == [61, 121, 241, 481, 961, 1801]
    assert said[0][1].text == (
        "nothing has happened for 60 s: waiting for policy actor 0 (pid 11, in fit). The run ends after 1800 s of "
        "this (--ada_dead_after)"
    )
    assert said[-1][1] == Verdict(
        "nothing has happened for 1800 s: waiting for policy actor 0 (pid 11, in fit), and --ada_dead_after allows "
        "1800 s",
        is_end=True,
    )


@pytest.mark.parametrize("does", [WORKING, UNSEEN])
def test_a_process_that_works_or_cannot_be_seen_is_no_silence(does: str) -> None:
    assert Run().verdicts([TRAINER, POLICY, replace(SECOND, does=does)], 4000) == []


def test_work_of_those_that_are_not_waited_for_does_not_count() -> None:
    """An engine without rollouts may take a core all the time."""
    said = Run().verdicts([replace(SAMPLES, does=WORKING), POLICY], 4000)
    assert said[-1][1].is_end


def test_a_new_method_and_a_word_of_the_trainer_are_progress() -> None:
    run = Run()
    assert run.verdicts([POLICY], 50) == []
    assert run.verdicts([replace(POLICY, runs="broadcast_to_vllm")], 50) == []
    run.silence.note_progress()
    assert run.verdicts([replace(POLICY, runs="broadcast_to_vllm")], 59) == []
    assert len(run.verdicts([replace(POLICY, runs="broadcast_to_vllm")], 2)) == 1


def test_engines_have_their_own_limits_first() -> None:
    said = Run().verdicts([TRAINER, SAMPLES], 4000)
    assert said[-1] == (1921, Verdict(said[-1][1].text, is_end=True))


def test_a_run_that_waits_for_its_place_in_ray_is_not_ended() -> None:
    """Another job may hold the slots for hours."""
    for processes in ([TRAINER, UNPLACED], [QUEUE]):
        said = Run().verdicts(processes, 10_000)
        assert len(said) == 8 and not any(verdict.is_end for _, verdict in said)
    assert said[0][1].text == "waiting for Ray, which has started no process of this run for 60 s"


def test_many_processes_make_a_short_line() -> None:
    policy = [replace(POLICY, name=f"policy actor {i}", pid=100 + i, address="10.0.0.2") for i in range(64)]
    (_, verdict), *_ = Run().verdicts(policy, 62)
    assert verdict.text.endswith(
        "policy actor 3 (pid 103, in fit, on 10.0.0.2) and 60 more. The run ends after 1800 s of this "
        "(--ada_dead_after)"
    )
