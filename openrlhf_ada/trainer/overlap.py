"""--ada_overlap: groups that are closed are trained while others of the step are still sampled.

The policy does not change before the optimizer steps, so a gradient that is computed early is the one that would be
computed late. Each part of a step goes the host's way: experience, replay buffer, forward and backward passes.
"""

from __future__ import annotations

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
        self._running: Future[None] | None = None
        self._ready: list[Group] = []
        self._given: set[tuple[int, int]] = set()
        self._num_given = 0

    def offer(self, groups: Sequence[Group]) -> None:
        """Of prompts that are closed. Raises what has gone wrong with a part before."""
        self._ready += groups
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        most = min(len(self._ready), self._groups - self._num_given - self._unit)
        count = most // self._unit * self._unit
        if count > 0:
            part = [sample for group in self._ready[:count] for sample in group]
            del self._ready[:count]
            self._num_given += count
            self._given |= {_identity(sample) for sample in part}
            self._running = self._worker.submit(self._train, part)

    def rest(self, samples: Sequence[TaggedExperience]) -> list[TaggedExperience]:
        """Those of a whole step's samples that are in no part, once the parts are trained; then begins a new step.

        Raises what has gone wrong with a part, and RuntimeError where parts have samples that the step does not train.
        """
        if self._running is not None:
            self._running.result()
        rest = [sample for sample in samples if _identity(sample) not in self._given]
        if len(rest) + len(self._given) != len(samples):
            raise RuntimeError(
                f"{len(self._given)} samples were trained while others were sampled, and {len(rest)} of the step's "
                f"{len(samples)} were not"
            )
        self._running, self._ready, self._given, self._num_given = None, [], set(), 0
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
    return LossTotals(tokens / seen * samples, float(samples), is_last=False)


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
