"""AdaptiveSamplesGenerator: OpenRLHF's generator, with the number of rollouts per prompt decided by a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from ray.exceptions import RayActorError

from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.choice import PromptChooser
from openrlhf_ada.core.fleet import DispatchLimits, Ended, Fleet, run
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import FinishedPool, Progress, Scheduler, SchedulerName
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.core.speculation import LEAST_CHANCE
from openrlhf_ada.core.types import PromptKey, PromptPool, TrainingGroup
from openrlhf_ada.rollout.engine import SamplingSetup
from openrlhf_ada.rollout.engine_connections import SILENCE_S, EngineConnections, Restore
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import ChosenPrompts, PromptRequest, PromptSource
from openrlhf_ada.rollout.ray_fleet import RayFleet, ScoreAnswers
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.records import Batch, RolloutBatch
from openrlhf_ada.rollout.responses import ResponseReader, sampling_params

PromptValues = Callable[[Sequence[str]], Sequence[float]]
"""A critic's value of every prompt."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What the generator needs besides flags and a policy.

    `restore_engine`: gives an engine that died its weights. `on_progress`: gets a function that says how far the
    sampling is, whenever engines have answered; `on_note`: what a user should read. `known_counts`: draws and
    positives by row, from before the run. `threshold`: makes scores of raw scores; None where they are in [0, 1].
    `score`: scores answers, where the engines have no reward function. `chooser`: chooses prompts; None where all are
    sampled in the loader's order.
    """

    plan: BatchPlan
    restore_engine: Restore
    prompt_values: PromptValues | None = None
    on_progress: Callable[[Callable[[], Progress]], None] = lambda look: None
    on_note: Callable[[str], None] = lambda text: None
    known_counts: tuple[Sequence[int], Sequence[int]] | None = None
    threshold: ScoreThreshold | None = None
    score: ScoreAnswers | None = None
    chooser: PromptChooser | None = None


class AdaptiveSamplesGenerator(RecordedGenerator):
    """Draws a pool per prompt as the policy decides and hands the trained groups to OpenRLHF."""

    least_chance = LEAST_CHANCE
    """See `core.scheduling`."""

    def __init__(self, host: SamplesGenerator, policy: Policy, options: SamplingOptions) -> None:
        super().__init__(host)
        self.policy = policy
        self.options = options
        self.settings: Settings = host.args.ada
        self._num_batches = 0
        train = self.args.train
        source = (self.prompts_dataloader, options.plan, train.seed, train.num_episodes)
        chooser = options.chooser
        self.prompts = PromptSource(*source) if chooser is None else ChosenPrompts(*source, chooser)
        self._connections = EngineConnections(
            self.vllm_engines,
            options.restore_engine,
            options.on_note,
            # An engine tells of a rollout that takes too long itself.
            patience_s=self.settings.timeout + SILENCE_S,
        )

    def restore(self, states: dict[str, Any]) -> None:
        """Go on from a checkpoint's states (or from OpenRLHF's initial ones)."""
        self.prompts.restore(consumed=states["total_consumed_prompts"], episode=states["episode"])
        if states["global_step"]:
            self.prompts.load_state_dict(states.get("ada_prompts", {}))
            # A policy that remembers refuses a checkpoint that does not.
            self.policy.load_state_dict(states.get("ada_policy", {}))
            self._restore_threshold(states.get("ada_threshold", {}))
        elif self.options.known_counts is not None:
            self.policy.load_prior_counts(*self.options.known_counts)

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, None, int, bool]:
        """One training batch: (samples, None, prompts consumed, loader exhausted), as OpenRLHF's trainer expects."""
        first_key = self.prompts.next_key
        requests, exhausted = self.prompts.next_batch()
        if not requests:
            return RolloutBatch(), None, self.prompts.next_key - first_key, exhausted
        batch = Batch(has_raw_scores=self.options.threshold is not None)
        values = self._critic_values(requests, while_sampling=False)
        self._let_engines("wake_up")
        self._sample(batch, requests, values, generate_kwargs)
        exhausted = self._replace(batch, exhausted, generate_kwargs)
        self._let_engines("sleep")
        if self.options.plan.varies:
            # Seeded by identity, as the choice within a prompt.
            batch.thin(self.options.plan.unit, np.random.default_rng([self.args.train.seed, first_key, 1]))
        self._num_batches += 1
        pools = batch.pools()
        figures = self.policy.observe(pools) | self.prompts.end_step(pools)
        to_experience = self._reader(generate_kwargs).experience
        if self.options.threshold is not None:
            # It is another one from here on.
            figures |= self.options.threshold.observe(batch.first_raw_scores(self.settings.first_scores))
        record = batch.record(self._texts_of(batch, to_experience), figures)
        self._note_failures(batch)
        samples = batch.samples(to_experience)
        self._check_size(samples, len(requests))
        return (
            RolloutBatch(samples, record.ledger, record, self._checkpoint(exhausted)),
            None,
            self.prompts.next_key - first_key,
            exhausted,
        )

    def _checkpoint(self, exhausted: bool) -> dict[str, Any]:
        """What a checkpoint after this step holds of sampling. `exhausted`: the episode ends with it."""
        checkpoint: dict[str, Any] = {"ada_policy": self.policy.state_dict()}
        if self.options.threshold is not None:
            checkpoint["ada_threshold"] = self.options.threshold.state_dict()
        if self.options.chooser is not None:
            # Nothing is read from OpenRLHF's loader.
            checkpoint |= {"ada_prompts": self.prompts.state_dict(), "data_loader_state_dict": {}}
        if exhausted:
            # OpenRLHF would note a finished loader of this episode, and serve the episode again.
            checkpoint |= {"episode": self.prompts.episodes_done, "data_loader_state_dict": {}}
        return checkpoint

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """As OpenRLHF's, of scores and not of shaped rewards; once more from the start if an engine dies."""
        self._connections.wait_until_ready()
        try:
            samples = super().generate_eval_samples(**generate_kwargs)
        except RayActorError:
            self._connections.wait_until_ready()
            self.restart_evaluation()
            samples = super().generate_eval_samples(**generate_kwargs)
        for sample in samples:
            sample.rewards = sample.scores
        if self.options.threshold is not None:
            # Always against the same score, so that evaluations can be compared.
            self.held_out = self.held_out.above(self.options.threshold.start)
        return samples

    def _let_engines(self, call: str) -> None:
        """`sleep` or `wake_up`, if they do, once per step: all weights of an engine are copied then."""
        # One that has died is waited for.
        self._connections.wait_until_ready()
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, call)

    def _check_size(self, samples: Sequence[Experience], prompts: int) -> None:
        if self.options.plan.varies:
            return
        expected = prompts * self.options.plan.group_size
        if len(samples) != expected:
            raise RuntimeError(f"{prompts} prompts gave {len(samples)} trained rollouts, expected {expected}")

    def _restore_threshold(self, state: dict[str, Any]) -> None:
        if self.options.threshold is not None:
            self.options.threshold.load_state_dict(state)
        elif state:
            raise ValueError(
                "the checkpoint holds the recent scores of --ada_positive_quantile; resume with the --ada_... flags "
                "that it was written with"
            )

    # -- sampling -----------------------------------------------------------------------------------------------------

    def _critic_values(self, requests: Sequence[PromptRequest], *, while_sampling: bool) -> Sequence[float] | None:
        """None for policies that read no critic. It may share the engines' GPU, so they sleep meanwhile."""
        if not self.policy.reads_critic:
            return None
        if self.options.prompt_values is None:
            raise RuntimeError("the policy reads a critic, but none was started")
        if while_sampling:
            self._let_engines("sleep")
        values = self.options.prompt_values([request.prompt for request in requests])
        if while_sampling:
            self._let_engines("wake_up")
        return values

    def _sample(
        self,
        batch: Batch,
        requests: Sequence[PromptRequest],
        values: Sequence[float] | None,
        generate_kwargs: dict[str, Any],
        at: Sequence[int] | None = None,
    ) -> None:
        """Sample these prompts to the end, for new places in the batch or in place of the prompts `at` these."""
        batch.requests |= {request.key: request for request in requests}
        pools = [PromptPool(request.key, row=request.row) for request in requests]
        for pool, place in zip(pools, at or (), strict=at is not None):
            pool.quota = batch.quota(place)
        for pool, value in zip(pools, values or (), strict=values is not None):
            pool.critic_value = value
        scheduler = Scheduler[Result](
            self.policy, pools, cast("SchedulerName", self.settings.scheduler), least_chance=self.least_chance
        )
        fleet = self.fleet(batch.requests, generate_kwargs)
        look = partial(scheduler.progress, self.options.plan.group_size)
        on_give_up = partial(self._on_prompt_failed, batch)
        run(scheduler, fleet, self._limits, partial(self.options.on_progress, look), batch.failures.append, on_give_up)
        batch.add(scheduler, self._build, at)

    def _replace(self, batch: Batch, exhausted: bool, generate_kwargs: dict[str, Any]) -> bool:
        """Fresh prompts for given-up and, within the limit, unresolved ones (else kept); does the episode end here?"""
        left = self.settings.refill_limit if self.settings.refills else 0
        while True:
            hopeless = [i for i, place in enumerate(batch.places) if place.group is None]
            places = hopeless + batch.unresolved()[:left]
            fresh, exhausted = self.prompts.take_extra(len(places)) if places and not exhausted else ([], exhausted)
            if len(fresh) < len(hopeless):
                # The episode has no other prompts: some of this batch take their places, as visits of their own.
                sampled = [batch.requests[place.finished.pool.key] for place in batch.places if place.group]
                fresh = fresh + self.prompts.repeat_prompts(sampled, len(hopeless) - len(fresh))
            if len(fresh) < len(hopeless):
                reason = batch.places[hopeless[-1]].finished.failure
                raise RuntimeError(f"no prompt of this step got a score; the last: {reason}")
            if not fresh:
                return exhausted
            places = places[: len(fresh)]
            left -= len(places) - len(hopeless)
            # An engine that died while the others were sampled may not be back yet.
            self._connections.wait_until_ready()
            self._sample(batch, fresh, self._critic_values(fresh, while_sampling=True), generate_kwargs, at=places)

    def _on_prompt_failed(self, batch: Batch, given_up: FinishedPool[Result]) -> None:
        """Raises RuntimeError where this is one prompt too many; at once, so time decides which prompt it names."""
        batch.num_hopeless += 1
        # A product such as 0.07 x 100 may come out just above the whole number that it is.
        allowed = math.ceil(self.settings.max_no_score * self.args.rollout.batch_size - 1e-9)
        if batch.num_hopeless > allowed:
            request = batch.requests[given_up.pool.key]
            raise RuntimeError(
                f"Row {request.row} (prompt {request.prompt[-200:]!r}) has no score: {given_up.failure}, again when "
                f"it was repeated. {batch.num_hopeless} prompts of this step got no score and {allowed} may "
                f"(--ada_max_no_score): a rollout without a score is not a wrong one, so the run ends here."
            )

    def _build(self, pool: PromptPool) -> TrainingGroup:
        # Seeded by identity, so that the choice depends neither on the order of prompts nor on a shared stream.
        return self.policy.build(pool, np.random.default_rng([self.args.train.seed, pool.key]))

    def _reader(self, generate_kwargs: dict[str, Any]) -> ResponseReader:
        s = self.settings
        # OpenRLHF's critic learns rewards, and is read as a pass rate.
        binary_above = s.positive_above if s.reads_critic and not s.own_critic else None
        return ResponseReader(self.args, generate_kwargs["max_len"], binary_above, self.options.threshold)

    def fleet(
        self, requests: Mapping[PromptKey, PromptRequest], generate_kwargs: dict[str, Any]
    ) -> Fleet[Ended[Result]]:
        """The engines, for these prompts."""
        params = sampling_params(self.args, generate_kwargs, logprobs=self._asks_logprobs)
        setup = SamplingSetup(params, generate_kwargs["max_len"], self.tokenizer, self.settings.timeout)
        to_sample = self._reader(generate_kwargs).sample
        return RayFleet(
            self._connections, requests, setup, to_sample, seed=self.args.train.seed, score=self.options.score
        )

    @property
    def _asks_logprobs(self) -> bool:
        if self.settings.measures_factor:
            return True
        steps = self.settings.logprob_steps
        # An agent may go on with parameters of its own, which ask for none, and OpenRLHF would mix up the two.
        return steps > 0 and self._num_batches % steps == 0 and not self.args.train.agent_func_path

    @cached_property
    def _limits(self) -> DispatchLimits:
        slots, automatic = ray.get(self.vllm_engines[0].capacity.remote())
        wanted = self.settings.speculation
        return DispatchLimits(slots, min(automatic if wanted is None else wanted, slots))

    # -- the record ---------------------------------------------------------------------------------------------------

    def _note_failures(self, batch: Batch) -> None:
        if not batch.failures:
            return
        last = batch.failures[-1]
        replaced = f" {len(batch.no_score)} prompts were given up and replaced." if batch.no_score else ""
        self.options.on_note(
            f"{len(batch.failures)} rollouts got no score and were repeated where needed; the last, of row "
            f"{batch.requests[last.request.key].row}: {last.reason}.{replaced}"
        )

    def _texts_of(
        self, batch: Batch, to_experience: Callable[[Result], Experience]
    ) -> Callable[[FinishedPool[Result]], list[str]]:
        # The log shows the prompts that came first.
        shown = set(sorted(batch.requests)[: self.settings.log_texts])
        text = lambda result: self._text(to_experience(result))  # noqa: E731
        return lambda finished: [text(result) for result in finished.payloads] if finished.pool.key in shown else []

    def _text(self, experience: Experience) -> str:
        mask = experience.action_mask[0].bool()
        return self.tokenizer.load().decode(experience.sequences[0, 1:][mask], skip_special_tokens=True)
