"""AdaptiveSamplesGenerator: the host's generator, with the number of rollouts per prompt decided by a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.fleet import Failed, Fleet, Limits, RolloutError, run
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import FinishedPool, Scheduler, SchedulerName
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, TrainingGroup, Waste
from openrlhf_ada.rollout.engine import SamplingSetup
from openrlhf_ada.rollout.prompts import PromptRequest, PromptSource
from openrlhf_ada.rollout.ray_fleet import EngineLines, RayFleet
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.records import GroupRecord, RolloutBatch, StepRecord, TaggedExperience, tagged_samples
from openrlhf_ada.rollout.responses import ResponseReader, sampling_params

PromptValues = Callable[[Sequence[str]], Sequence[float]]
"""A critic's value of every prompt."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What the generator needs besides a policy.

    `refill_limit`: fresh prompts per step in place of unresolved ones, at most. `num_texts`: prompts of a step whose
    answers are recorded as text. `policy_version`: updates that the engines' weights have had so far. `verdict_above`:
    rewards must be 1 for verdicts above this and 0 for others, as the critic that learns them is read as a pass rate.
    `on_progress`: gets the prompts closed so far and in all; `on_note`: what a user should read. `scheduler` and
    `least_chance`: see `core.scheduling`. `speculation`: rollouts on an engine up to which it sends some ahead (None:
    the engine's own figure). `timeout_s`: how long a rollout may take.
    """

    plan: BatchPlan
    refill_limit: int
    num_texts: int
    policy_version: Callable[[], int]
    prompt_values: PromptValues | None = None
    verdict_above: float | None = None
    on_progress: Callable[[int, int], None] = lambda closed, total: None
    on_note: Callable[[str], None] = lambda text: None
    scheduler: SchedulerName = "stream"
    speculation: int | None = None
    least_chance: float = 0.1
    timeout_s: float = 1800.0


@dataclass
class _Batch:
    """A training batch while it is being sampled."""

    requests: dict[PromptKey, PromptRequest] = field(default_factory=dict)
    finished: list[tuple[FinishedPool[Experience], TrainingGroup]] = field(default_factory=list)
    replaced: list[FinishedPool[Experience]] = field(default_factory=list)
    num_rounds: int = 0
    num_dispatched: int = 0
    waste: list[Waste] = field(default_factory=list[Waste])
    failures: list[Failed] = field(default_factory=list[Failed])


class AdaptiveSamplesGenerator(RecordedGenerator):
    """Draws a pool per prompt as the policy decides and hands the trained groups to the host."""

    def __init__(self, host: SamplesGenerator, policy: Policy, options: SamplingOptions) -> None:
        super().__init__(host)
        self.policy = policy
        self.options = options
        self.prompts = PromptSource(
            self.prompts_dataloader, options.plan, self.args.train.seed, self.args.train.num_episodes
        )
        self._lines = EngineLines(self.vllm_engines)

    def restore(self, states: dict[str, Any]) -> None:
        """Go on from a checkpoint's states (or from the host's initial ones)."""
        self.prompts.restore(consumed=states["total_consumed_prompts"], episode=states["episode"])
        if states["global_step"]:
            # A policy that remembers refuses a checkpoint that does not.
            self.policy.load_state_dict(states.get("ada_policy", {}))

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, None, int, bool]:
        """One training batch: (samples, None, prompts consumed, loader exhausted), as the host's trainer expects."""
        first_key = self.prompts.next_key
        requests, exhausted = self.prompts.next_batch()
        if not requests:
            return RolloutBatch(), None, self.prompts.next_key - first_key, exhausted
        batch = _Batch()
        values = self._critic_values(requests)
        self._sample(batch, requests, values, generate_kwargs)
        exhausted = self._refill(batch, exhausted, generate_kwargs)
        record = self._record(batch)
        samples = [s for finished, group in batch.finished for s in tagged_samples(group, finished.payloads)]
        self._check_size(samples, len(requests))
        checkpoint: dict[str, Any] = {"ada_policy": self.policy.state_dict()}
        if exhausted:
            # The host would note a finished loader of this episode, and serve the episode again.
            checkpoint |= {"episode": self.prompts.episodes_done, "data_loader_state_dict": {}}
        return (
            RolloutBatch(samples, record.ledger, record, checkpoint),
            None,
            self.prompts.next_key - first_key,
            exhausted,
        )

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        yield
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")

    def _check_size(self, samples: Sequence[TaggedExperience], prompts: int) -> None:
        expected = prompts * self.options.plan.group_size
        if len(samples) != expected:
            raise RuntimeError(f"{prompts} prompts gave {len(samples)} trained rollouts, expected {expected}")

    # -- sampling -----------------------------------------------------------------------------------------------------

    def _critic_values(self, requests: Sequence[PromptRequest]) -> Sequence[float] | None:
        """Before the engines wake up: a critic may share their GPU."""
        if not self.policy.reads_critic:
            return None
        if self.options.prompt_values is None:
            raise RuntimeError("the policy reads a critic, but none was started")
        return self.options.prompt_values([request.prompt for request in requests])

    def _sample(
        self,
        batch: _Batch,
        requests: Sequence[PromptRequest],
        values: Sequence[float] | None,
        generate_kwargs: dict[str, Any],
    ) -> None:
        """Sample these prompts to the end and append their groups to the batch."""
        batch.requests |= {request.key: request for request in requests}
        pools = [PromptPool(request.key, row=request.row) for request in requests]
        for pool, value in zip(pools, values or (), strict=values is not None):
            pool.critic_value = value
        scheduler = Scheduler[Experience](
            self.policy, pools, self.options.scheduler, least_chance=self.options.least_chance
        )
        fleet = self._fleet(batch.requests, generate_kwargs)
        with self._awake():
            finished = self._run(scheduler, fleet, batch, total=len(pools))
        batch.num_rounds += max(entry.num_waves for entry in finished)
        batch.num_dispatched += scheduler.num_sent
        batch.waste.append(scheduler.waste)
        batch.finished += [(entry, self._build(entry.pool)) for entry in finished]

    def _run(
        self, scheduler: Scheduler[Experience], fleet: Fleet[Experience], batch: _Batch, *, total: int
    ) -> list[FinishedPool[Experience]]:
        progress = lambda num_closed: self.options.on_progress(num_closed, total)  # noqa: E731
        try:
            return run(scheduler, fleet, self._limits, progress, batch.failures.append)
        except RolloutError as error:
            request = batch.requests[error.request.key]
            raise RuntimeError(
                f"row {request.row} (prompt {request.prompt[-200:]!r}) has no verdict: {error.reason}, again when it "
                f"was repeated. A rollout without a verdict is not a wrong one, so the run ends here."
            ) from error

    def _refill(self, batch: _Batch, exhausted: bool, generate_kwargs: dict[str, Any]) -> bool:
        """Replace unresolved prompts by fresh ones, within the limit; returns whether the episode ends here.

        Where limit or data end, the unresolved ones stay in the batch: nothing that was accepted is lost.
        """
        left = self.options.refill_limit
        while left and not exhausted:
            places = [i for i, (_, group) in enumerate(batch.finished) if not group.resolved][:left]
            fresh, exhausted = self.prompts.spare(len(places)) if places else ([], False)
            if not fresh:
                break
            left -= len(fresh)
            rest = batch.finished
            batch.finished = []
            self._sample(batch, fresh, self._critic_values(fresh), generate_kwargs)
            for place, replacement in zip(places, batch.finished, strict=False):
                batch.replaced.append(rest[place][0])
                rest[place] = replacement
            batch.finished = rest
        return exhausted

    def _build(self, pool: PromptPool) -> TrainingGroup:
        # Seeded by identity, so that the choice depends neither on the order of prompts nor on a shared stream.
        return self.policy.build(pool, np.random.default_rng([self.args.train.seed, pool.key]))

    def _reader(self, generate_kwargs: dict[str, Any]) -> ResponseReader:
        # The host's own: the parent's counts, and here the ledger does.
        process = partial(SamplesGenerator._process_response_into_experience, self, **generate_kwargs)
        return ResponseReader(self.args, process, self.options.verdict_above)

    def _fleet(
        self, requests: Mapping[PromptKey, PromptRequest], generate_kwargs: dict[str, Any]
    ) -> Fleet[Experience]:
        """The engines, for these prompts."""
        setup = SamplingSetup(
            sampling_params(self.args, generate_kwargs),
            generate_kwargs["max_len"],
            self.tokenizer,
            self.options.timeout_s,
        )
        version = self.options.policy_version
        return RayFleet(
            self._lines, requests, setup, self._reader(generate_kwargs), seed=self.args.train.seed, version=version
        )

    @cached_property
    def _limits(self) -> Limits:
        slots, automatic = ray.get(self.vllm_engines[0].capacity.remote())
        wanted = self.options.speculation
        return Limits(slots, min(automatic if wanted is None else wanted, slots))

    # -- the record ---------------------------------------------------------------------------------------------------

    def _record(self, batch: _Batch) -> StepRecord:
        ledger = Ledger()
        for finished, group in batch.finished:
            ledger.record_group(finished.pool.samples, group.indices)
        for finished in batch.replaced:
            ledger.record_group(finished.pool.samples, ())
        for waste in batch.waste:
            ledger.record_waste(waste)
        ledger.check(drawn=batch.num_dispatched)
        pools = [finished.pool for finished, _ in batch.finished] + [finished.pool for finished in batch.replaced]
        # The log shows the prompts that came first.
        shown = set(sorted(batch.requests)[: self.options.num_texts])
        groups = [self._group_record(batch, finished, group, shown) for finished, group in batch.finished]
        replaced = [self._group_record(batch, finished, None, shown) for finished in batch.replaced]
        figures = self.policy.observe(pools)
        self._tell_of_failures(batch)
        version, num_failed = self.options.policy_version(), len(batch.failures)
        return StepRecord(groups, replaced, ledger, batch.num_rounds, figures, version, num_failed)

    def _tell_of_failures(self, batch: _Batch) -> None:
        if not batch.failures:
            return
        last = batch.failures[-1]
        self.options.on_note(
            f"{len(batch.failures)} rollouts came to no verdict and were repeated where needed; the last, of row "
            f"{batch.requests[last.request.key].row}: {last.reason}"
        )

    def _group_record(
        self, batch: _Batch, finished: FinishedPool[Experience], group: TrainingGroup | None, shown: set[PromptKey]
    ) -> GroupRecord:
        request = batch.requests[finished.pool.key]
        return GroupRecord(
            row=request.row,
            prompt=request.prompt,
            pool=finished.pool,
            group=group,
            lengths=[int(payload.response_length[0]) for payload in finished.payloads],
            truncated=[bool(payload.truncated[0]) for payload in finished.payloads],
            texts=[self._text(payload) for payload in finished.payloads] if request.key in shown else [],
        )

    def _text(self, payload: Experience) -> str:
        mask = payload.action_mask[0].bool()
        return self.tokenizer.load().decode(payload.sequences[0, 1:][mask], skip_special_tokens=True)
