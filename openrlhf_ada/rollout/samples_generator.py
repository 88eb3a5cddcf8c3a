"""AdaptiveSamplesGenerator: the host's generator, with the number of rollouts per prompt decided by a policy."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.policies import Draw, Policy
from openrlhf_ada.core.types import Ledger, PromptKey, Sample, TrainingGroup
from openrlhf_ada.rollout.prompts import PromptRequest, number_rows, take_prompts
from openrlhf_ada.rollout.rounds import FinishedPool, run_rounds
from openrlhf_ada.rollout.shared_tokenizer import SharedTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampleTag:
    """Where a trained sample comes from and what it weighs: the group's identity, carried instead of guessed."""

    key: PromptKey
    index: int
    coefficient: float
    critic_weight: float


@dataclass
class TaggedExperience(Experience):
    """One sample with its tag. The host merges the fields it knows; the tag is read before that."""

    tag: SampleTag | None = None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Everything that was drawn for one prompt, and the group that is trained."""

    request: PromptRequest
    pool: Sequence[Sample]
    group: TrainingGroup
    payloads: Sequence[Experience]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step's sampling: the groups in batch order, the ledger, and the number of rounds."""

    groups: Sequence[GroupRecord]
    ledger: Ledger
    num_rounds: int


class EvalRecorder(SamplesGenerator):
    """The host's generator that counts and remembers: what it drew for the last batch (the host's filter may reject
    some of it), and its last evaluation, for intervals. It sends its tokenizer by name.
    """

    eval_samples: list[Experience]
    num_drawn: int = 0
    num_drawn_tokens: int = 0

    def __init__(self, host: SamplesGenerator) -> None:
        tokenizer = SharedTokenizer(
            host.args.actor.model_name_or_path, use_fast=not host.args.data.disable_fast_tokenizer
        )
        super().__init__(host.strategy, host.prompts_dataloader, host.eval_dataloader, tokenizer, host.vllm_engines)

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> Any:
        self.num_drawn = self.num_drawn_tokens = 0
        return super().generate_samples(**generate_kwargs)

    def _process_response_into_experience(self, response: Any, **generate_kwargs: Any) -> Experience:
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        self.num_drawn += 1
        self.num_drawn_tokens += int(experience.action_mask.sum())
        return experience

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        self.eval_samples = super().generate_eval_samples(**generate_kwargs)
        return self.eval_samples


class AdaptiveSamplesGenerator(EvalRecorder):
    """Draws a pool per prompt as the policy decides and hands the trained groups to the host, n samples each."""

    def __init__(
        self, host: SamplesGenerator, policy: Policy, plan: BatchPlan, on_round: Callable[[int, int], None]
    ) -> None:
        super().__init__(host)
        self.policy = policy
        self.plan = plan
        self.on_round = on_round
        self.next_key: PromptKey = 0
        self.last_step: StepRecord
        self.episodes_done = 0
        self._loader: Any = None
        self._waiting: list[PromptRequest] = []
        number_rows(self.prompts_dataloader.dataset)

    def checkpoint_states(self) -> dict[str, Any]:
        """What a checkpoint needs besides the host's states."""
        return {"ada_policy": self.policy.state_dict()}

    def restore(self, states: dict[str, Any]) -> None:
        """Go on from a checkpoint's states (or from the host's initial ones)."""
        self.next_key = states["total_consumed_prompts"]
        self.episodes_done = states["episode"]
        self.policy.load_state_dict(states.get("ada_policy", {}))

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[TaggedExperience], None, int, bool]:
        """One training batch: (samples, None, prompts consumed, loader exhausted), as the host's trainer expects."""
        requests, exhausted = self._next_prompts()
        if not requests:
            return [], None, 0, exhausted
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        self.last_step = self._sample_pools(requests, generate_kwargs)
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")
        samples = [sample for record in self.last_step.groups for sample in _tagged(record)]
        return samples, None, len(requests), exhausted

    def _next_prompts(self) -> tuple[list[PromptRequest], bool]:
        """The next batch of prompts and whether the episode ends with it.

        The host's replay buffer drops samples that do not fill a training batch. So an incomplete last batch waits for
        the next episode; at the end of the last one, what cannot fill a training batch is not sampled, and said so.
        """
        if self._loader is None:
            # The host's loader shuffles with torch's global generator, which nobody seeds in this process.
            torch.manual_seed(self.args.train.seed + self.episodes_done)
            self._loader = iter(self.prompts_dataloader)
        missing = self.args.rollout.batch_size - len(self._waiting)
        taken, exhausted = take_prompts(self._loader, missing, self.next_key)
        self.next_key += len(taken)
        requests, self._waiting = self._waiting + taken, []
        if not exhausted:
            return requests, False
        self._loader = None
        self.episodes_done += 1
        if self.episodes_done < self.args.train.num_episodes:
            self._waiting = requests
            return [], True
        usable = self.plan.trainable(len(requests))
        if usable < len(requests):
            logger.warning(
                "the last %d prompts of the data do not fill a training batch of %d rollouts and are not sampled",
                len(requests) - usable,
                self.plan.train_batch,
            )
        return requests[:usable], True

    def _sample_pools(self, requests: Sequence[PromptRequest], generate_kwargs: dict[str, Any]) -> StepRecord:
        by_key = {request.key: request for request in requests}
        result = run_rounds(
            self.policy,
            list(by_key),
            lambda draws: self._sample_wave(draws, by_key, generate_kwargs),
            _describe,
            self.on_round,
        )
        ledger = Ledger()
        groups: list[GroupRecord] = []
        for finished in result.finished:
            group = self._build(finished)
            ledger.record_group(finished.pool.samples, group.indices)
            groups.append(GroupRecord(by_key[group.key], finished.pool.samples, group, finished.payloads))
        ledger.check(drawn=result.num_dispatched)
        return StepRecord(groups, ledger, result.num_rounds)

    def _build(self, finished: FinishedPool[Experience]) -> TrainingGroup:
        # Seeded by identity, so that the choice depends neither on the order of prompts nor on a shared stream.
        rng = np.random.default_rng([self.args.train.seed, finished.pool.key])
        return self.policy.build(finished.pool, rng)

    def _sample_wave(
        self, draws: Sequence[Draw], requests: Mapping[PromptKey, PromptRequest], generate_kwargs: dict[str, Any]
    ) -> dict[PromptKey, list[Experience]]:
        by_count: dict[int, list[PromptRequest]] = defaultdict(list)
        for draw in draws:
            by_count[draw.count].append(requests[draw.key])
        refs: dict[PromptKey, Any] = {}
        for count, batch in by_count.items():
            dispatched = self._dispatch_prompts_to_vllm(
                [r.prompt for r in batch],
                [r.label for r in batch],
                images=[r.image for r in batch],
                **(generate_kwargs | {"n_samples_per_prompt": count}),
            )
            refs.update(zip((r.key for r in batch), dispatched, strict=True))
        responses = ray.get(list(refs.values()))
        wave = {
            key: [self._to_experience(requests[key], response, generate_kwargs) for response in answers]
            for key, answers in zip(refs, responses, strict=True)
        }
        apply_length_penalties([sample for samples in wave.values() for sample in samples], self.args)
        return wave

    def _to_experience(
        self, request: PromptRequest, response: dict[str, Any], generate_kwargs: dict[str, Any]
    ) -> Experience:
        experience = self._process_response_into_experience(response, **generate_kwargs)
        if experience.rewards is None or experience.scores is None:
            # The host turns a failed reward into an info line and goes on without; a zero would be a false verdict.
            raise RuntimeError(
                f"no reward for row {request.row} (prompt {request.prompt[-200:]!r}): the reward function raised or "
                f"returned nothing. Its message is in the engine's log; run with --verbose to see it."
            )
        # Group statistics need more than half precision, as in the host.
        dtype = torch.promote_types(experience.rewards.dtype, torch.float32)
        experience.rewards = experience.rewards.to(dtype)
        return experience


def _describe(key: PromptKey, index: int, experience: Experience) -> Sample:
    return Sample(
        key=key,
        index=index,
        # The host copies an absent 'scores' from 'rewards' before any penalty: never the shaped reward.
        metric=float(experience.scores[0]),
        reward=float(experience.rewards[0]),
        num_tokens=int(experience.action_mask.sum()),
    )


def _tagged(record: GroupRecord) -> list[TaggedExperience]:
    group = record.group
    tagged: list[TaggedExperience] = []
    for index, coefficient, weight in zip(group.indices, group.coefficients, group.critic_weights, strict=True):
        sample = record.payloads[index]
        host_fields = {f.name: getattr(sample, f.name) for f in fields(Experience)}
        tagged.append(TaggedExperience(**host_fields, tag=SampleTag(group.key, index, coefficient, weight)))
    return tagged
