"""What sampling hands to training: the batch, and the record of everything that was drawn for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.choice import Choice
from openrlhf_ada.core.scheduling import Payload
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, TrainingGroup
from openrlhf_ada.reward.grade import TimedGrade


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
