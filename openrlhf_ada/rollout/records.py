"""What sampling hands to training: the batch, while it is being sampled too, and the record of all that was drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.batches import thinned
from openrlhf_ada.core.choice import Choice
from openrlhf_ada.core.fleet import Failed
from openrlhf_ada.core.scheduling import FinishedPool, Payload, Scheduler
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, TrainingGroup, Waste
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import PromptRequest


@dataclass(frozen=True, slots=True)
class SampleTag:
    """Which rollout a trained sample is, its coefficient, and its weight in the critic's loss."""

    key: PromptKey
    index: int
    coefficient: float
    critic_weight: float


@dataclass
class TaggedExperience(Experience):
    """One sample with its tag. OpenRLHF merges the fields it knows; the tag is read before that."""

    tag: SampleTag | None = None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Everything that was drawn for one prompt visit, and what is trained of it (None: the prompt was replaced).

    By sample, in index order: `truncated`, `texts` (of few prompts; else empty), `grades` (of graders of ours) and
    `raw_scores` (empty where scores are in [0, 1]). `choice`: how the prompt was chosen (--ada_candidates). `label`:
    the reference answer, empty if the data has none.
    """

    row: int
    prompt: str
    pool: PromptPool
    group: TrainingGroup | None
    truncated: Sequence[bool]
    texts: Sequence[str]
    grades: Sequence[TimedGrade | None] = ()
    raw_scores: Sequence[float] = ()
    choice: Choice | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step's sampling: trained groups in batch order, then replaced prompts; what it cost; the policy's figures.

    `num_failed`: rollouts without a score; `num_lost`: rollouts that died with their engine; `num_no_score`:
    prompts that were replaced for want of a score.
    """

    groups: Sequence[GroupRecord]
    replaced: Sequence[GroupRecord]
    ledger: Ledger
    figures: dict[str, float]
    num_failed: int = 0
    num_lost: int = 0
    num_no_score: int = 0

    @property
    def all_groups(self) -> list[GroupRecord]:
        return [*self.groups, *self.replaced]


class RolloutBatch(list[Experience]):
    """The samples of one training step, as OpenRLHF expects them, and what it cost to get them.

    `record` and `checkpoint` (the sampling state after this step) are set in the adaptive modes only, `accuracy` (mean
    score, where all are in [0, 1]) in mode off. In asynchronous training, this object crosses OpenRLHF's queue between
    two processes.
    """

    def __init__(
        self,
        samples: Sequence[Experience] = (),
        ledger: Ledger | None = None,
        record: StepRecord | None = None,
        checkpoint: dict[str, Any] | None = None,
        accuracy: float | None = None,
    ) -> None:
        super().__init__(samples)
        self.accuracy = accuracy
        self.ledger = ledger or Ledger()
        self.record = record
        self.checkpoint = checkpoint or {}


def tagged_samples(
    group: TrainingGroup, payloads: Sequence[Payload], to_experience: Callable[[Payload], Experience]
) -> list[TaggedExperience]:
    """The kept samples of a group, each with its tag. `payloads`: the whole pool's, by index."""
    return [
        TaggedExperience(**vars(to_experience(payloads[index])), tag=SampleTag(group.key, index, coefficient, weight))
        for index, coefficient, weight in zip(group.indices, group.coefficients, group.critic_weights, strict=True)
    ]


@dataclass(slots=True)
class _BatchSlot:
    """One prompt's place in the batch. `group` is None if the prompt was given up."""

    finished: FinishedPool[Result]
    group: TrainingGroup | None


@dataclass
class Batch:
    """`places` in the order of the batch. Prompts that lost their place: `replaced` had one outcome only; of
    `no_score` a rollout got no score, twice. `has_raw_scores`: scores may be any number, and are recorded."""

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

    def quota(self, place: int) -> int | None:
        """What the policy had asked of the prompt there, if it was given up."""
        slot = self.places[place]
        return slot.finished.wanted if slot.group is None else None

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
