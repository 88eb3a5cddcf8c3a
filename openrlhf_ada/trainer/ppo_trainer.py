"""The host's PPO trainer with adaptive sampling, a run record, and evaluation before and after."""

from __future__ import annotations

from typing import Any

import ray
from openrlhf.trainer import ppo_trainer as host

from openrlhf_ada.config import AdaConfig, from_namespace
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.host_rules import batch_plan
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, EvalRecorder, StepRecord
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT, AdaptiveExperienceMaker
from openrlhf_ada.trainer.recorder import Recorder
from openrlhf_ada.trainer.step_metrics import first_wave_stats, step_metrics
from openrlhf_ada.upstream import unwrap_ray_class

TRAINED_ONLY = ("reward", "score", "return")
"""Host metrics that are means over the trained samples. Those are selected by outcome, so the name says so."""


def make_policy(config: AdaConfig, group_size: int, estimator: str) -> Sequential:
    """The policy that `--ada_mode` names, for groups of n samples."""
    k_pos, k_neg = config.exit_counts(group_size)
    rule = ExitRule(k_pos=k_pos, k_neg=k_neg, threshold=config.positive_threshold)
    return Sequential(
        rule=rule, wave=config.wave, max_samples=config.max_samples, group_size=group_size, estimator=estimator
    )


class AdaPPOTrainer(unwrap_ray_class(host.PPOTrainer)):
    """Mode off: the host's generator and experience maker, untouched; only the record is added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ada = from_namespace(self.args.ada)
        self.group_size = self.args.rollout.n_samples_per_prompt
        self.estimator = self.args.algo.advantage.estimator
        self.recorder: Recorder
        self.adaptive: AdaptiveSamplesGenerator | None = None
        if self.ada.mode == "off":
            self.samples_generator = EvalRecorder(self.samples_generator)
        else:
            self.adaptive = AdaptiveSamplesGenerator(
                self.samples_generator,
                make_policy(self.ada, self.group_size, self.estimator),
                batch_plan(self.args),
                lambda closed, total: self.recorder.sampling(closed, total),
            )
            self.samples_generator = self.adaptive
            self.experience_maker: Any = AdaptiveExperienceMaker(self.experience_maker)
        self._uniform_ledger: dict[str, int] = {}
        self._evaluated_step = -1
        self._step = 0

    def fit(self, global_step: int = 0) -> None:
        """Train; with --ada_eval_ends also evaluate before the first and after the last step."""
        states = super().init_checkpoint_states()
        self._step = states["global_step"]
        self.recorder = Recorder(self.ada, self.args, self._step or None)
        if self.adaptive is not None:
            self.adaptive.restore(states)
        if self.ada.eval_ends and self._step == 0:
            self._evaluate_now()
        self.recorder.emit("phase", text="training")
        self.recorder.begin_step()
        super().fit(global_step)
        if self.ada.eval_ends and self._evaluated_step != self._step:
            self._evaluate_now()
        self.recorder.finish()

    def _evaluate_now(self) -> None:
        """Evaluate outside the host's loop, whose loggers are not open before the first and after the last step."""
        self.recorder.emit("phase", text="evaluating on held-out prompts")
        self.samples_generator.generate_eval_samples(**self._eval_arguments())
        self._record_evaluation(self._step)

    def _eval_arguments(self) -> dict[str, Any]:
        return self.generate_kwargs | {
            "temperature": self.args.eval.temperature,
            "n_samples_per_prompt": self.args.eval.n_samples_per_prompt,
        }

    def evaluate(self, global_step: int, **generate_kwargs: Any) -> dict[str, float]:
        logs = super().evaluate(global_step, **generate_kwargs)
        self._record_evaluation(global_step)
        # The step after this one starts now; evaluation is not part of it.
        self.recorder.begin_step()
        return logs

    def _record_evaluation(self, global_step: int) -> None:
        dataset = self.eval_dataloader.dataset
        datasources = dict(zip(dataset.prompts, dataset.datasources, strict=True))
        samples = self.samples_generator.eval_samples
        self.recorder.evaluation(global_step, samples, self.args.eval.n_samples_per_prompt, datasources)
        self._evaluated_step = global_step

    def train_step(self, rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
        status, next_step = super().train_step(rollout_samples, global_step)
        if self.adaptive is not None:
            return self._with_ada_metrics(status, self.adaptive.last_step), next_step
        tokens = sum(int(sample.action_mask.sum()) for sample in rollout_samples)
        self._uniform_ledger = {
            "ada/drawn": self.samples_generator.num_drawn,
            "ada/kept": len(rollout_samples),
            "ada/unused": self.samples_generator.num_drawn - len(rollout_samples),
            "ada/drawn_tokens": self.samples_generator.num_drawn_tokens,
            "ada/kept_tokens": tokens,
            "ada/unused_tokens": self.samples_generator.num_drawn_tokens - tokens,
        }
        return status, next_step

    def _with_ada_metrics(self, status: dict[str, Any], record: StepRecord) -> dict[str, Any]:
        for name in TRAINED_ONLY:
            if name in status:
                status[f"trained/{name}"] = status.pop(name)
        # It rode along to reach the critic; its mean is 1.
        status.pop(CRITIC_WEIGHT, None)
        metrics = step_metrics(
            record,
            group_size=self.group_size,
            threshold=self.ada.positive_threshold,
            critic_is_baseline=self.estimator == "gae",
        )
        metrics["ada/group_scale"] = self.experience_maker.group_scale
        return status | first_wave_stats(record, self.group_size) | metrics

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: dict[str, Any] | None = None, client_states: dict[str, Any] | None = None
    ) -> None:
        logs_dict, client_states = logs_dict or {}, client_states or {}
        self._step = global_step
        recorded = {k: v for k, v in logs_dict.items() if k != "generated_samples"} | self._uniform_ledger
        if self.adaptive is not None:
            client_states |= self.adaptive.checkpoint_states()
            self.recorder.samples(global_step, self.adaptive.last_step, self.tokenizer)
        self.recorder.step(global_step, recorded, self._num_steps())
        # The host's loggers take scalars.
        scalars = {k: v for k, v in logs_dict.items() if not isinstance(v, dict)}
        super().save_logs_and_checkpoints(global_step, scalars, client_states)
        self.recorder.begin_step()

    def get_max_steps(self) -> int:
        """Optimiser steps of the whole run, for the learning-rate schedule.

        The host counts whole batches per episode; in an adaptive mode an episode's rest is trained in the next one.
        """
        if self.adaptive is None:
            return super().get_max_steps()
        return self.adaptive.plan.optimizer_steps(self._num_prompts()) * self.args.train.max_epochs

    def _num_steps(self) -> int:
        """Rollout batches in the whole run."""
        if self.adaptive is not None:
            return self.adaptive.plan.steps(self._num_prompts())
        per_episode = -(-len(self.prompts_dataloader) // self.args.rollout.batch_size)
        return per_episode * self.args.train.num_episodes

    def _num_prompts(self) -> int:
        return len(self.prompts_dataloader) * self.args.train.num_episodes


RayAdaPPOTrainer = ray.remote(AdaPPOTrainer)
