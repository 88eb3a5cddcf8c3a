"""A training batch while it is being sampled, and the record that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.batches import thinned
from openrlhf_ada.core.fleet import Failed
from openrlhf_ada.core.scheduling import FinishedPool, Scheduler
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, TrainingGroup, Waste
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.records import GroupRecord, StepRecord, TaggedExperience, tagged_samples


@dataclass(slots=True)
class _BatchSlot:
    """One prompt's place in the batch. `group` is None if the prompt was given up."""

    finished: FinishedPool[Result]
    group: TrainingGroup | None


@dataclass
class Batch:
    """`places` in the order of the batch. Prompts that lost their place: `replaced` had one outcome only; of
    `no_score` a rollout got no score, twice. `has_raw_scores`: scores may be any number, and are recorded.
    """

    requests: dict[PromptKey, PromptRequest] = field(default_factory=dict)
    places: list[_BatchSlot] = field(default_factory=list[_BatchSlot])
    replaced: list[FinishedPool[Result]] = field(default_factory=list[FinishedPool[Result]])
    no_score: list[FinishedPool[Result]] = field(default_factory=list[FinishedPool[Result]])
    failures: list[Failed] = field(default_factory=list[Failed])
    num_hopeless: int = 0
    has_raw_scores: bool = False
    _num_sent: int = 0
    _waste: list[Waste] = field(default_factory=list[Waste])

    def add(
        self,
        scheduler: Scheduler[Result],
        build: Callable[[PromptPool], TrainingGroup],
        at: Sequence[int] | None = None,
    ) -> None:
        """Add what a scheduler has sampled: as new places, or `at` these positions, whose prompts are replaced."""
        entries = [_BatchSlot(e, None if e.failure else build(e.pool)) for e in scheduler.finished]
        self._num_sent += scheduler.num_sent
        self._waste.append(scheduler.waste)
        if at is None:
            self.places += entries
            return
        for position, entry in zip(at, entries, strict=True):
            old = self.places[position]
            (self.no_score if old.group is None else self.replaced).append(old.finished)
            self.places[position] = entry

    def given_up_places(self) -> list[int]:
        """Places of prompts that were given up."""
        return [i for i, place in enumerate(self.places) if place.group is None]

    def quota(self, place: int) -> int | None:
        """What the policy had asked of the prompt there, if it was given up."""
        slot = self.places[place]
        return slot.finished.wanted if slot.group is None else None

    def sampled_prompts(self) -> list[PromptRequest]:
        """Prompts that were sampled to the end."""
        return [self.requests[place.finished.pool.key] for place in self.places if place.group is not None]

    def unresolved(self) -> list[int]:
        """Places whose pools show one outcome only."""
        return [i for i, place in enumerate(self.places) if place.group is not None and not place.group.resolved]

    def pools(self) -> list[PromptPool]:
        """Pools that were sampled to the end."""
        return [place.finished.pool for place in self.places] + [finished.pool for finished in self.replaced]

    def first_raw_scores(self, count: int) -> list[float]:
        """Raw scores of the first `count` samples of every prompt that was sampled to the end."""
        finished = [place.finished for place in self.places] + self.replaced
        return [score for entry in finished for score in _scores(entry.payloads[:count])]

    def groups(self) -> list[tuple[FinishedPool[Result], TrainingGroup]]:
        """What is trained; raises RuntimeError if a place has no group."""
        groups = [(place.finished, place.group) for place in self.places if place.group is not None]
        if len(groups) < len(self.places):
            raise RuntimeError(f"{len(self.places) - len(groups)} prompts have no group")
        return groups

    def thin(self, unit: int, rng: np.random.Generator) -> None:
        """Train a multiple of `unit` samples; see `core.batches.thinned`."""
        groups = thinned([group for _, group in self.groups()], unit, rng)
        for place, group in zip(self.places, groups, strict=True):
            place.group = group

    def samples(self, to_experience: Callable[[Result], Experience]) -> list[TaggedExperience]:
        """What is trained, as experience."""
        return [
            sample
            for finished, group in self.groups()
            for sample in tagged_samples(group, finished.payloads, to_experience)
        ]

    def record(self, texts_of: Callable[[FinishedPool[Result]], list[str]], figures: dict[str, float]) -> StepRecord:
        """`texts_of`: the answers of a prompt as far as they are recorded; `figures`: the policy's."""
        describe = self._describe
        return StepRecord(
            [describe(finished, group, texts_of(finished)) for finished, group in self.groups()],
            [describe(finished, None, texts_of(finished)) for finished in self.replaced],
            self._ledger(),
            figures,
            num_failed=len(self.failures),
            num_lost=sum(waste.lost.rollouts for waste in self._waste),
            num_no_score=len(self.no_score),
        )

    def _ledger(self) -> Ledger:
        ledger = Ledger()
        for finished, group in self.groups():
            ledger.record_group(finished.pool.samples, group.indices)
        for finished in [*self.replaced, *self.no_score]:
            ledger.record_group(finished.pool.samples, ())
        for waste in self._waste:
            ledger.record_waste(waste)
        ledger.check(drawn=self._num_sent)
        return ledger

    def _describe(self, finished: FinishedPool[Result], group: TrainingGroup | None, texts: list[str]) -> GroupRecord:
        request, payloads = self.requests[finished.pool.key], finished.payloads
        return GroupRecord(
            row=request.row,
            prompt=request.prompt,
            pool=finished.pool,
            group=group,
            truncated=[result.truncated for result in payloads],
            texts=texts,
            grades=[result.grade for result in payloads],
            raw_scores=_scores(payloads) if self.has_raw_scores else (),
            choice=request.choice,
            label=str(request.label or ""),
        )


def _scores(results: Sequence[Result]) -> list[float]:
    """As the reward function, or the reward model, gave them."""
    return [result.score for result in results if result.score is not None]
