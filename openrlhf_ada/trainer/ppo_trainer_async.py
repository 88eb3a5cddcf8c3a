"""OpenRLHF's asynchronous PPO trainer with adaptive sampling: one process samples while another trains.

Sampling state (pass rates, position in the data) lives with the generator and travels with each batch, so a checkpoint
holds the state that belongs to the batch it was written after, not to the ones sampled ahead.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import ray
from openrlhf.trainer import ppo_trainer_async as host
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from ray.exceptions import RayActorError
from ray.util.queue import Queue

from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.eval.held_out import HeldOut
from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.host.trainer import HostAsyncTrainer, HostSamplingActor
from openrlhf_ada.platforms.resources import on_this_node
from openrlhf_ada.rollout.reward_model import RewardModel
from openrlhf_ada.trainer.prompt_critic import PromptCritic
from openrlhf_ada.trainer.recorded_training import SAVING, RecordedTraining, ScoredLogs
from openrlhf_ada.trainer.recorder import emit
from openrlhf_ada.trainer.sampling import (
    eval_arguments,
    make_generator,
    optimizer_steps,
    restore_engine,
    training_steps,
)

logger = logging.getLogger(__name__)


class AdaGenerateSamplesActor(HostSamplingActor):
    """Samples as the flags say, ahead of training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policy = self._critic = self._reward_model = None
        self.samples_generator = make_generator(
            self.samples_generator,
            prompt_values=lambda prompts: self._critic.values(prompts),
            restore_engine=lambda engine: restore_engine(self._policy, engine, rank_0_only=True),
            score=lambda answers: self._reward_model(answers),
        )

    def use_groups(self, policy: Any, critic: Any, reward: Any) -> None:
        """The Ray groups that train, that predict pass rates and that score rollouts; the latter two as flags ask."""
        self._policy: Any = policy
        self._critic: Any = PromptCritic(critic, self.args) if self.args.ada.reads_critic else None
        self._reward_model: Any = RewardModel(reward, self.args) if scored_by_model(self.args) else None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Empty where the checkpoint ends an episode: the next one starts from the beginning."""
        if state_dict:
            super().load_state_dict(state_dict)

    def restore(self, states: dict[str, Any]) -> None:
        """Go on with what the generator had saved."""
        self.samples_generator.restore(states)

    def _version(self) -> int:
        """Updates that the engines' weights have had."""
        return ray.get(self.samples_generator.vllm_engines[0].weights_version.remote())

    def evaluate(self) -> tuple[HeldOut, int]:
        """Answers to held-out prompts, outside the training loop, and the version of the policy."""
        self.samples_generator.generate_eval_samples(**eval_arguments(self.args, self.generate_kwargs))
        return self.samples_generator.held_out, self._version()

    def finish_evaluation(self, logs: dict[str, float]) -> ScoredLogs:
        threshold = self.args.ada.positive_above
        return ScoredLogs(logs, self.samples_generator.held_out, self._version(), threshold)

    def get_max_steps(self) -> int:
        return optimizer_steps(self.args, len(self.prompts_dataloader), super().get_max_steps())

    def training_steps(self) -> int:
        """How many steps the data give."""
        return training_steps(self.args, len(self.prompts_dataloader))


HostTrainingActor = unwrap_ray_class(host.TrainingActor)


class AdaTrainingActor(RecordedTraining, HostTrainingActor):
    """Trains on the batches that arrive."""

    def broadcast_to_vllm(self) -> None:
        if not (self.args.train.partial_rollout_enable and self.is_adaptive):
            super().broadcast_to_vllm()
            return
        # As OpenRLHF's, which would keep the lock if it met an engine that dies while rollouts are on their way.
        ray.get(self.vllm_lock.acquire.remote())
        try:
            self._pause_engines()
            BasePPOTrainer.broadcast_to_vllm(self)
            self._resume_engines()
        finally:
            ray.get(self.vllm_lock.release.remote())

    def _pause_engines(self) -> None:
        while True:
            self.engine_waiter.wait()
            try:
                batch_vllm_engine_call(self.vllm_engines, "pause_generation")
                return
            except RayActorError:
                logger.warning("an engine died while weights were to be sent; waiting for it")

    def _resume_engines(self) -> None:
        for ref in [engine.resume_generation.remote() for engine in self.vllm_engines]:
            try:
                ray.get(ref)
            except RayActorError:
                logger.warning("an engine died after weights were sent; the generator deals with it")

    def fit(self, global_step: int = 0) -> None:
        emit(self.args, "phase", text="training")
        self.recorder.begin_step()
        super().fit(global_step)


class AdaPPOTrainerAsync(HostAsyncTrainer):
    """OpenRLHF's coordinator, starting our actors in place of its own."""

    def __init__(
        self, pretrain: str, strategy: Any, actor: Any, critic: Any, reward: Any, *groups: Any, **kwargs: Any
    ) -> None:
        super().__init__(pretrain, strategy, actor, critic, reward, *groups, **kwargs)
        self._args = strategy.args
        ray.get(self.generator_actor.use_groups.remote(actor, critic, reward))

    def own_actors(self) -> dict[str, Any]:
        here = on_this_node()
        return {
            # OpenRLHF's would spend ten seconds of processor time on importing OpenRLHF, to wait.
            "VLLMLock": ray.remote(asyncio.Lock).options(**on_this_node(takes_cpu=False)),
            "GenerateSamplesActor": ray.remote(AdaGenerateSamplesActor).options(**here),
            "Queue": partial(Queue, actor_options=here),
            "TrainingActor": ray.remote(AdaTrainingActor).options(**here),
        }

    def fit(self) -> None:
        """Train; with --ada_eval_ends also evaluate before the first and after the last step."""
        generator, trainer = self.generator_actor, self.trainer_actor
        states: Any = ray.get(trainer.init_checkpoint_states.remote())
        ray.get(trainer.open_record.remote(states, ray.get(generator.training_steps.remote())))
        ray.get(generator.restore.remote(states))
        if not states["global_step"]:
            # Else OpenRLHF does, from a checkpoint. Engines sample with no weights but the policy's.
            ray.get(trainer.broadcast_to_vllm.remote())
        if ray.get(trainer.evaluates_start.remote()):
            ray.get(trainer.record_evaluation.remote(*ray.get(generator.evaluate.remote())))
        super().fit()
        if ray.get(trainer.evaluates_end.remote()):
            ray.get(trainer.record_evaluation.remote(*ray.get(generator.evaluate.remote())))
        emit(self._args, "doing", text=SAVING)

    def finish(self) -> None:
        """See `RecordedTraining.finish`."""
        ray.get(self.trainer_actor.finish.remote())


RayAdaPPOTrainerAsync = ray.remote(AdaPPOTrainerAsync)
