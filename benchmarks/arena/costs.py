"""What a trial has spent at each of its measurements, in rollouts, tokens, steps or seconds.

Seconds are not those of the small model: they are what the same draws would take with a language model on 8 GPUs.
They follow from what a trial's result records, so trials need not be repeated when these figures change.
`python -m benchmarks.arena seconds` derives the figures again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, ENGINES, PROMPT_TOKENS, STEP_MODELS, StepModel
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE

Floats = NDArray[np.float64]

Point = dict[str, Any]
"""What a trial has spent since its start: the fields of `trial.Spent`."""

SCALE = 16
"""A step of B prompts stands for one of 16 B prompts: 32 for the published 512."""

SLOTS = ENGINES * GPU_LIKE.slots

PREFILL_SHARE = 0.25
"""Of the time that a token of training takes: 2 FLOPs per parameter instead of 8."""

WAVE_ROLLOUTS = (0, 1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
WAVE_SECONDS = (0.0, 5.84, 14.96, 25.05, 32.11, 35.56, 38.41, 43.69, 59.99, 92.51, 157.62, 288.48)
"""Sampling of so many rollouts that are all known from the start, in virtual time: 8 GPU-like engines, lognormal
lengths of median 500, at most 4096 tokens."""

STREAM_WAIT = 0.16
"""Share of the waiting between a prompt's waves that `stream` does not hide, with few rollouts for many slots."""

REFILL_WAIT = 0.57
"""Share of the waiting of fresh prompts for those that they replace: nobody can start them early."""


@dataclass(frozen=True, slots=True)
class Machine(StepModel):
    """Seconds of a step of the small model as if it were a step of a language model.

    `scale`: prompts of a real step for each of the small model's. `rounds`: under that scheduler instead of `stream`.
    """

    scale: int = SCALE
    rounds: bool = False

    def step_seconds(self, batches: Sequence[Sequence[Sequence[float]]], trained: float) -> float:
        """One step. `batches`: [prompts, rollouts] of each wave of each batch; `trained`: rollouts in the loss."""
        reads = sum(waves[0][0] * min(ENGINES, _draws(waves)) for waves in batches if waves and waves[0][0])
        tokens = trained * (PROMPT_TOKENS + ANSWER_TOKENS) + reads * PROMPT_TOKENS * PREFILL_SHARE
        sampling = rounds_seconds(batches) if self.rounds else sampling_seconds(batches)
        return self.sampling * sampling + self.per_token * tokens + self.fixed


def _draws(waves: Sequence[Sequence[float]]) -> float:
    """Mean rollouts of a prompt."""
    return sum(rollouts for _, rollouts in waves) / waves[0][0]


def wave_seconds(rollouts: float) -> float:
    """Sampling of one wave with no other: between tabulated points by a line, beyond the last at its slope."""
    last, before = WAVE_ROLLOUTS[-1], WAVE_ROLLOUTS[-2]
    if rollouts > last:
        return WAVE_SECONDS[-1] + (WAVE_SECONDS[-1] - WAVE_SECONDS[-2]) / (last - before) * (rollouts - last)
    return float(np.interp(rollouts, WAVE_ROLLOUTS, WAVE_SECONDS))


def rounds_seconds(batches: Sequence[Sequence[Sequence[float]]]) -> float:
    """Sampling of a step under the scheduler `rounds`: one wave after the other."""
    return sum(wave_seconds(rollouts) for waves in batches for _, rollouts in waves)


def sampling_seconds(batches: Sequence[Sequence[Sequence[float]]]) -> float:
    """Sampling of a step under the scheduler `stream`, in virtual time.

    At least what the same rollouts take in one wave, at most the sum over waves; in between, the share of the waiting
    that remains was measured in the simulator.
    """
    totals = [sum(rollouts for _, rollouts in waves) for waves in batches]
    drawn = sum(totals)
    at_once, batch_by_batch = wave_seconds(drawn), sum(map(wave_seconds, totals))
    stream_wait = STREAM_WAIT * SLOTS / (SLOTS + drawn)
    return (
        at_once + REFILL_WAIT * (batch_by_batch - at_once) + stream_wait * (rounds_seconds(batches) - batch_by_batch)
    )


MACHINES = {
    "seconds": Machine(**asdict(STEP_MODELS["1.5b"])),
    "seconds-7b": Machine(**asdict(STEP_MODELS["7b"])),
}


def _counted(field: str) -> Callable[[Sequence[Point]], list[float]]:
    return lambda spent: [float(point[field]) for point in spent]


def _timed(model: Machine) -> Callable[[Sequence[Point]], list[float]]:
    def seconds(spent: Sequence[Point]) -> list[float]:
        found = [0.0]
        for before, after in pairwise(spent):
            found.append(found[-1] + _interval_seconds(model, before, after))
        return found

    return seconds


def _interval_seconds(model: Machine, before: Point, after: Point) -> float:
    """Of the steps between two measurements, each with their mean numbers of draws.

    A real step has `scale` times as many prompts, so its numbers fluctuate less than those of one small step.
    """
    steps = after["steps"] - before["steps"]
    if not steps:
        return 0.0
    share = model.scale / steps
    batches = [
        [
            [(count - earlier) * share for count, earlier in zip(wave, _at(before["batches"], b, w), strict=True)]
            for w, wave in enumerate(waves)
        ]
        for b, waves in enumerate(after["batches"])
    ]
    return steps * model.step_seconds(batches, (after["trained"] - before["trained"]) * share)


def _at(batches: Sequence[Sequence[Sequence[int]]], batch: int, wave: int) -> Sequence[int]:
    """That wave's counts, 0 if there was none yet."""
    known = batch < len(batches) and wave < len(batches[batch])
    return batches[batch][wave] if known else (0, 0)


COSTS: dict[str, Callable[[Sequence[Point]], list[float]]] = {
    **{name: _counted(name) for name in ("rollouts", "tokens", "trained_tokens", "steps")},
    **{name: _timed(model) for name, model in MACHINES.items()},
}
"""By name: from what a trial has spent at each measurement to its cost there."""

OTHER_SECONDS = {
    "7B on A100": MACHINES["seconds-7b"],
    "in rounds": replace(MACHINES["seconds"], rounds=True),
    "4 B prompts": replace(MACHINES["seconds"], scale=4),
    "64 B prompts": replace(MACHINES["seconds"], scale=64),
}
"""What else might be assumed, for the same trials."""


def spent_as(cost: str | Machine, spent: Sequence[Point]) -> list[float]:
    """A trial's cost at each measurement, of COSTS or OTHER_SECONDS, or its seconds on another machine."""
    if isinstance(cost, Machine):
        return _timed(cost)(spent)
    return _timed(OTHER_SECONDS[cost])(spent) if cost in OTHER_SECONDS else COSTS[cost](spent)


USUAL_DRAWS, USUAL_PROMPTS = 8, 32
"""Rollouts per prompt and prompts of a step in the plain step that makes a budget of rollouts one of seconds."""


def unit_of(cost: str) -> str:
    """What a trial's budget is counted in when methods are compared by this cost: seconds, or else rollouts."""
    return cost if cost in MACHINES else "rollouts"


def budget_of(rollouts: int, cost: str) -> int:
    """In the unit of `cost`: the seconds that uniform sampling takes for so many rollouts, in plain steps."""
    if cost not in MACHINES:
        return rollouts
    model, drawn = MACHINES[cost], USUAL_DRAWS * USUAL_PROMPTS
    batches = [[[USUAL_PROMPTS * model.scale, drawn * model.scale]]]
    return round(rollouts / drawn * model.step_seconds(batches, drawn * model.scale))


def mean_accuracy(spent: Sequence[float], accuracy: Sequence[float], limit: float) -> float:
    """Area under the curve from cost 0 to `limit`, over `limit`. After its end a curve goes on at its last value.

    Raises ValueError for a limit that is not above 0.
    """
    if limit <= 0:
        raise ValueError(f"a range of cost from 0 to {limit} is empty")
    x, y = np.asarray(spent, dtype=float), np.asarray(accuracy, dtype=float)
    inside = x < limit
    x = np.append(x[inside], limit)
    y = np.append(y[inside], np.interp(limit, spent, accuracy))
    return float(np.trapezoid(y, x) / limit)
