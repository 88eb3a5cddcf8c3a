"""--ada_overlap: groups that are closed are trained while others of the step are still sampled.

The policy does not change before the optimizer steps, so a gradient that is computed early is the one that would be
computed late. Each part of a step goes the host's way: experience, replay buffer, forward and backward passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from openrlhf_ada.rollout.records import TaggedExperience
from openrlhf_ada.trainer.step_parts import LossTotals

Group = list[TaggedExperience]
"""The trained samples of one prompt."""

Answer = TypeVar("Answer")


class Overlap:
    """Collects closed groups, and has them trained in another thread: parts of `unit` groups, or of multiples of it.

    `groups`: of a step. At least `unit` are left for the part with which the optimizer steps. `train`: trains a part.
    """

    def __init__(self, unit: int, groups: int, train: Callable[[list[TaggedExperience]], None]) -> None:
        self._unit, self._groups, self._train = unit, groups, train
        self._worker = ThreadPoolExecutor(1, "overlap")
        self._lock = threading.Lock()
        self._begin_step()

    def _begin_step(self) -> None:
        self._is_sampling = True
        self._calls: list[Future[None]] = []
        self._ready: list[Group] = []
        self._given: dict[tuple[int, int], float] = {}
        self._num_given = 0

    def offer(self, groups: Sequence[Group]) -> None:
        """Of prompts that are closed, if any are. Raises what has gone wrong with a part before."""
        for call in self._calls:
            if call.done():
                call.result()
        if groups:
            with self._lock:
                self._ready += groups
            self._calls.append(self._worker.submit(self._train_ready))

    def _train_ready(self) -> None:
        part = self._next_part()
        if not part:
            return
        try:
            self._train(part)
        except BaseException:
            # No other one is trained after it.
            self._is_sampling = False
            raise

    def _next_part(self) -> list[TaggedExperience]:
        """Of all groups that are ready by now."""
        with self._lock:
            most = min(len(self._ready), self._groups - self._num_given - self._unit)
            count = max(most // self._unit * self._unit, 0) if self._is_sampling else 0
            part = [sample for group in self._ready[:count] for sample in group]
            del self._ready[:count]
            self._num_given += count
            self._given |= {_identity(sample): sample.tag.coefficient for sample in part if sample.tag is not None}
        return part

    def rest(self, samples: Sequence[TaggedExperience]) -> list[TaggedExperience]:
        """Those of a whole step's samples that are in no part, once the parts are trained; then begins a new step.

        Raises what has gone wrong with a part, and RuntimeError where the parts have not been the step's: other
        samples, or other coefficients.
        """
        with self._lock:
            self._is_sampling = False
        for call in self._calls:
            call.result()
        known = {_identity(sample): sample.tag.coefficient for sample in samples if sample.tag is not None}
        others = [identity for identity, coefficient in self._given.items() if known.get(identity) != coefficient]
        if others:
            raise RuntimeError(
                f"{len(others)} of {len(self._given)} samples that were trained while others were sampled are not "
                f"trained so in the step, the first of key {others[0][0]}: does the sampling policy depend on what "
                f"else a step has sampled?"
            )
        rest = [sample for sample in samples if _identity(sample) not in self._given]
        self._begin_step()
        return rest

    def in_turn(self, call: Callable[[], Answer]) -> Answer:
        """Call it between two parts. All processes of the policy get calls in one order, or would wait for each other
        in different ones."""
        return self._worker.submit(call).result()


def _identity(sample: TaggedExperience) -> tuple[int, int]:
    if sample.tag is None:
        raise ValueError("a sample carries no group tag")
    return sample.tag.key, sample.tag.index


def estimated_totals(experiences: Sequence[Any], samples: int) -> LossTotals:
    """Of a step of so many samples, by the mean length of those that are there."""
    tokens, seen = _counts(experiences)
    # Any estimate will do, but 0.
    return LossTotals(max(tokens, 1.0) / max(seen, 1.0) * samples, float(samples), is_last=False)


def exact_totals(samples: Sequence[Any], parts: LossTotals, *, by_token: bool) -> LossTotals:
    """Of all samples of a step, of which some were divided by the totals `parts`.

    `by_token`: are losses divided by the number of tokens (not of samples)?
    """
    tokens, count = _counts(samples)
    scale = tokens / parts.tokens if by_token else count / parts.samples
    return LossTotals(tokens, count, is_last=True, scale=scale)


def _counts(experiences: Sequence[Any]) -> tuple[float, float]:
    """Tokens, and samples with at least one."""
    lengths = [length for e in experiences for length in e.action_mask.sum(dim=-1).flatten().tolist()]
    return float(sum(lengths)), float(sum(length > 0 for length in lengths))
