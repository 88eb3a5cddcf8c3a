"""OpenRLHF's synchronous PPO trainer with adaptive sampling, a run record, and evaluation before and after."""

from __future__ import annotations

from typing import Any

import ray

from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.host.trainer import HostSyncTrainer
from openrlhf_ada.rollout.reward_model import RewardModel
from openrlhf_ada.trainer.recorded_training import SAVING, RecordedTraining, ScoredLogs
from openrlhf_ada.trainer.recorder import emit
from openrlhf_ada.trainer.sampling import (
    eval_arguments,
    make_generator,
    optimizer_steps,
    restore_engine,
    training_steps,
)


class AdaPPOTrainer(RecordedTraining, HostSyncTrainer):
    """Mode off: OpenRLHF's generator and experience maker, untouched; only the record is added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        values = None if self.prompt_critic is None else self.prompt_critic.values
        self.samples_generator = make_generator(
            self.samples_generator,
            prompt_values=values,
            restore_engine=lambda engine: restore_engine(self.actor_model_group, engine, rank_0_only=False),
            score=RewardModel(self.reward_model_group, self.args) if scored_by_model(self.args) else None,
        )

    def fit(self, global_step: int = 0) -> None:
        """Train; with --ada_eval_ends also evaluate before the first and after the last step."""
        states = self.init_checkpoint_states()
        self.open_record(states, training_steps(self.args, len(self.prompts_dataloader)))
        self.samples_generator.restore(states)
        if not self._step:
            # Else OpenRLHF does, from a checkpoint. Engines sample with no weights but the policy's.
            self.broadcast_to_vllm()
        if self.evaluates_start():
            self._evaluate_now()
        emit(self.args, "phase", text="training")
        self.recorder.begin_step()
        super().fit(global_step)
        if self.evaluates_end():
            self._evaluate_now()
        self._show_activity(SAVING)

    def _evaluate_now(self) -> None:
        """Evaluate outside OpenRLHF's loop."""
        emit(self.args, "phase", text="evaluating on held-out prompts")
        self.samples_generator.generate_eval_samples(**eval_arguments(self.args, self.generate_kwargs))
        self.record_evaluation(self.samples_generator.held_out, self._step)

    def evaluate(self, global_step: int, **generate_kwargs: Any) -> ScoredLogs:
        self._show_activity("evaluating on held-out prompts")
        logs = super().evaluate(global_step, **generate_kwargs)
        return ScoredLogs(logs, self.samples_generator.held_out, self._step, self.settings.positive_above)

    def get_max_steps(self) -> int:
        return optimizer_steps(self.args, len(self.prompts_dataloader), super().get_max_steps())


RayAdaPPOTrainer = ray.remote(AdaPPOTrainer)
