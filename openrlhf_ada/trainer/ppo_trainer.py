"""The host's synchronous PPO trainer with adaptive sampling, a run record, and evaluation before and after."""

from __future__ import annotations

import time
from typing import Any

import ray

from openrlhf_ada.config.host_rules import batch_plan, processes_by_model
from openrlhf_ada.config.loss_rules import averages_over_tokens
from openrlhf_ada.config.overlap_rules import groups_of_a_part
from openrlhf_ada.config.score_rules import scored_by_model
from openrlhf_ada.host.trainer import HostSyncTrainer
from openrlhf_ada.rollout.records import TaggedExperience
from openrlhf_ada.rollout.reward_model import RewardModel
from openrlhf_ada.trainer.overlap import Overlap, estimated_totals, exact_totals
from openrlhf_ada.trainer.recorded_training import SAVING, RecordedTraining, ScoredLogs
from openrlhf_ada.trainer.sampling import (
    eval_arguments,
    make_generator,
    optimizer_steps,
    restore,
    restore_engine,
    training_steps,
)
from openrlhf_ada.trainer.step_parts import LossTotals


class AdaPPOTrainer(RecordedTraining, HostSyncTrainer):
    """Mode off: the host's generator and experience maker, untouched; only the record is added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        values = None if self.prompt_critic is None else self.prompt_critic.values
        self.overlap: Overlap | None = None
        if self.ada.overlap and self.is_adaptive:
            plan, processes = batch_plan(self.args, self.settings), processes_by_model(self.args)["actor"]
            unit = groups_of_a_part(self.args, plan, processes)
            self.overlap = Overlap(unit, self.args.rollout.batch_size, self._train_part)
        self._part_totals: LossTotals | None = None
        self._waited_s = 0.0
        self.samples_generator = make_generator(
            self.samples_generator,
            prompt_values=values,
            restore_engine=self._restore_engine,
            score=RewardModel(self.reward_model_group, self.args) if scored_by_model(self.args) else None,
            on_closed=None if self.overlap is None else self.overlap.offer,
        )

    def _restore_engine(self, engine: int) -> list[Any]:
        def start() -> list[Any]:
            return restore_engine(self.actor_model_group, engine, rank_0_only=False)

        return start() if self.overlap is None else self.overlap.in_turn(start)

    def fit(self, global_step: int = 0) -> None:
        """Train; with --ada_eval_ends also evaluate before the first and after the last step."""
        states = self.init_checkpoint_states()
        self.open_record(states, training_steps(self.args, len(self.prompts_dataloader)))
        restore(self.samples_generator, states)
        if not self._step:
            # Else the host does, from a checkpoint. Engines sample with no weights but the policy's.
            self.broadcast_to_vllm()
        if self.evaluates_start():
            self._evaluate_now()
        self.recorder.emit("phase", text="training")
        self.recorder.begin_step()
        super().fit(global_step)
        if self.evaluates_end():
            self._evaluate_now()
        self._show_activity(SAVING)

    def _evaluate_now(self) -> None:
        """Evaluate outside the host's loop."""
        self.recorder.emit("phase", text="evaluating on held-out prompts")
        self.samples_generator.generate_eval_samples(**eval_arguments(self.args, self.generate_kwargs))
        self.record_evaluation(self.samples_generator.held_out, self._step)

    def evaluate(self, global_step: int, **generate_kwargs: Any) -> ScoredLogs:
        self._show_activity("evaluating on held-out prompts")
        logs = super().evaluate(global_step, **generate_kwargs)
        return ScoredLogs(logs, self.samples_generator.held_out, self._step, self.settings.positive_above)

    def get_max_steps(self) -> int:
        return optimizer_steps(self.args, len(self.prompts_dataloader), super().get_max_steps())

    # -- a step in parts ----------------------------------------------------------------------------------------------

    def _train_part(self, samples: list[TaggedExperience]) -> None:
        """While others are sampled, in a thread of its own: what the host's training step does, but for the step."""
        experiences = self.experience_maker.make_part(samples)
        policy = self.actor_model_group
        ray.get(policy.async_run_method_batch(method_name="append", experience=experiences))
        if self._part_totals is None:
            self._part_totals = estimated_totals(experiences, self.args.train.batch_size)
        arguments = {"kl_ctl": self.kl_ctl.value, "totals": self._part_totals}
        ray.get(policy.async_run_method(method_name="fit_part", **arguments))

    def left_to_train(self, rollout_samples: Any) -> Any:
        if self.overlap is None:
            return rollout_samples
        start = time.monotonic()
        rest = self.overlap.rest(rollout_samples)
        self._waited_s = time.monotonic() - start
        if self._part_totals is not None:
            by_token = averages_over_tokens(self.settings, self.args)
            totals = exact_totals(rollout_samples, self._part_totals, by_token=by_token)
            ray.get(self.actor_model_group.async_run_method(method_name="begin_part", totals=totals))
        return rest

    def trained_before(self) -> list[Any]:
        return self.experience_maker.earlier if self.is_adaptive else []

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        status, next_step = super().train_step(rollout_samples, global_step)
        if self.overlap is not None:
            early = sum(len(e.index) for e in self.experience_maker.earlier)
            status["ada/overlapped"] = early / len(rollout_samples)
            status["timing/overlap_wait"] = self._waited_s
            self.experience_maker.earlier, self._part_totals = [], None
        return status, next_step


RayAdaPPOTrainer = ray.remote(AdaPPOTrainer)
