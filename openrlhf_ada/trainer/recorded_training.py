"""What the synchronous and the asynchronous trainer share: the record of a run, and training on adaptive batches."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import ray

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.eval.held_out import HeldOut, as_logs, evaluation_metrics
from openrlhf_ada.host.classes import first_process
from openrlhf_ada.host.trainer import HostTrainer, shown_in_wandb
from openrlhf_ada.reporting.redaction import plain, redact
from openrlhf_ada.reporting.tracking import HOST_SAMPLE, Trackers
from openrlhf_ada.reward.weighted_sum import LOGGED_AS
from openrlhf_ada.rollout.engine_restart import EngineWaiter
from openrlhf_ada.rollout.records import RolloutBatch, StepRecord
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT, AdaptiveExperienceMaker
from openrlhf_ada.trainer.prompt_critic import PromptCritic
from openrlhf_ada.trainer.recorder import Recorder, emit, note
from openrlhf_ada.trainer.step_metrics import first_wave_stats, ledger_metrics, rewarded_wrong, step_metrics

TRAINED_ONLY = ("reward", "score", "return")
"""OpenRLHF's metrics that are means over the trained samples. Those are selected by outcome, so the name says so."""

BEST_METRIC = "accuracy"

SAVING = "saving the model"

_TRAINS_WRONG = (
    "{share:.0%} of the trained rollouts are not right and have a reward other than 0, {so}. Return 0 for them, or "
    "use a method with {instead}"
)

_FINISHED = (
    "the policy would end {share:.0%} of its answers at once: these prompts look finished. Do they hold the answer "
    "(--data.input_key), or does the model need --data.apply_chat_template?"
)


class ScoredLogs(dict[str, float]):
    """An evaluation's figures as OpenRLHF logs them and ours, with the answers they are made of and the policy's
    version. Any of them can choose the best checkpoint (--ckpt.best_metric_key)."""

    def __init__(self, logs: dict[str, float], held_out: HeldOut, version: int, positive_above: float) -> None:
        super().__init__(logs)
        self.of_host = dict(logs)
        self.held_out = held_out
        self.version = version
        if held_out.is_measurable:
            self.update(as_logs(evaluation_metrics(held_out, positive_above)))


class RecordedTraining(HostTrainer):
    """Mixed into a trainer of OpenRLHF. Mode off: training untouched, the record is added."""

    args: Any
    critic_model_group: Any
    recorder: Recorder
    num_steps: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with shown_in_wandb(lambda args: redact(plain(args))):
            super().__init__(*args, **kwargs)
        self.settings: Settings = self.args.ada
        self.is_adaptive = self.settings.mode != "off"
        self.trackers = Trackers(self.wandb_logger, self.tensorboard_logger)
        # OpenRLHF calls one logger then, which passes everything on to all.
        tracks = self.wandb_logger or self.tensorboard_logger
        self.wandb_logger: Any = self.trackers if tracks else None
        self.tensorboard_logger: Any = None
        self.prompt_critic: PromptCritic | None = None
        if self.is_adaptive:
            self.experience_maker: Any = AdaptiveExperienceMaker(
                self.experience_maker, uses_critic=not self.settings.own_critic
            )
        if self.settings.reads_critic:
            self.prompt_critic = PromptCritic(self.critic_model_group, self.args)
        if self.is_adaptive and not self.best_eval_metric_key:
            # OpenRLHF would take the datasource that comes first in the alphabet.
            self.best_eval_metric_key = BEST_METRIC
        self._step = 0
        self._trains_wrong = 0.0
        self._evaluated_step = -1
        self._batch = RolloutBatch()

    def open_record(self, states: dict[str, Any], num_steps: int) -> None:
        """Start the run directory, or go on with it. `num_steps`: rollout batches in the whole run."""
        self._step = states["global_step"]
        self.num_steps = num_steps
        self.recorder = Recorder(self.args, self._step or None, self.trackers)
        self.trackers.open(self._step or None)
        emit(self.args, "begin", step=self._step, max_steps=num_steps)

    @cached_property
    def engine_waiter(self) -> EngineWaiter:
        """For calls of this trainer to all engines."""
        return EngineWaiter(self.vllm_engines)

    def broadcast_to_vllm(self) -> None:
        if self.is_adaptive:
            # One that has died is started again, and has to be there before OpenRLHF pauses or wakes all.
            self.engine_waiter.wait()
        self._show_activity("sending weights to the engines")
        super().broadcast_to_vllm()

    def _show_activity(self, doing: str) -> None:
        """Show what a step is at. Asynchronous training has no one answer: it samples at the same time."""
        if not self.args.train.async_enable:
            emit(self.args, "doing", text=doing)

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        self._batch = rollout_samples
        self._show_activity("training the policy")
        groups = [self.actor_model_group]
        if self.critic_model_group is not None and not self.settings.own_critic:
            groups.append(self.critic_model_group)
        begun = [g.async_run_method(method_name="begin_step", version=global_step + 1) for g in groups]
        ray.get([ref for refs in begun for ref in refs])
        # Before the policy's step, after which weights wait on the engines' side of a shared GPU.
        critic_status = self._fit_pass_rate_critic()
        train = self.train_step_without_critic if self.settings.own_critic else super().train_step
        status, next_step = train(rollout_samples, global_step)
        if self.is_adaptive:
            status = self._with_ada_metrics(status, global_step) | critic_status
        elif rollout_samples.accuracy is not None:
            status["ada/first_wave_metric_mean"] = rollout_samples.accuracy
        return status, next_step

    def _fit_pass_rate_critic(self) -> dict[str, float]:
        if self.prompt_critic is None or not self.settings.own_critic:
            return {}
        start = time.monotonic()
        record = self._record()
        groups, threshold = record.all_groups, self.settings.positive_above
        trained = len(record.groups) * self.settings.group_size
        status = self.prompt_critic.fit(
            [group.prompt for group in groups],
            [len(group.pool) for group in groups],
            [group.pool.count_positives(threshold) for group in groups],
            updates=max(trained // self.args.train.batch_size, 1),
        )
        return status | {"timing/critic_fit": time.monotonic() - start}

    def _with_ada_metrics(self, status: dict[str, Any], version: int) -> dict[str, Any]:
        record = self._record()
        for name in list(status):
            if name in TRAINED_ONLY or name.startswith(LOGGED_AS):
                status[f"trained/{name}"] = status.pop(name)
        # It rode along to reach the critic.
        status.pop(CRITIC_WEIGHT, None)
        status |= first_wave_stats(record, self.settings.first_wave)
        status |= step_metrics(record, self.settings, version)
        status["ada/group_scale"] = self.experience_maker.group_scale
        if self.experience_maker.surprisal is not None:
            status["ada/surprisal"] = self.experience_maker.surprisal
        self._note_wrong_rewards(record)
        return status | self._logprob_metrics()

    def _note_wrong_rewards(self, record: StepRecord) -> None:
        """Once in a run, where wrong answers are to have a reward of 0."""
        s = self.settings
        if s.measures_factor:
            words = {
                "so": "with which the factor of the baseline may change what is optimised",
                "instead": "a factor of one",
            }
        elif s.baseline == "none" and not s.in_ppo:
            words = {"so": "so --ada_baseline none trains them, too", "instead": "a baseline"}
        else:
            return
        if not self._trains_wrong:
            self._trains_wrong = rewarded_wrong(record.groups, s.positive_above)
            if self._trains_wrong:
                note(self.args, _TRAINS_WRONG.format(share=self._trains_wrong, **words))

    def _logprob_metrics(self) -> dict[str, float]:
        gap = self.experience_maker.gap
        if gap is None:
            return {}
        if gap.mean > self.settings.logprob_stop / 10:
            limit = self.settings.logprob_stop
            note(self.args, f"{gap}, a tenth of --ada_logprob_stop {limit:g} or more")
        if gap.ends_at_once > 0.5:
            note(self.args, _FINISHED.format(share=gap.ends_at_once))
        return {"ada/logprob_gap_mean": gap.mean, "ada/logprob_gap_max": gap.maximum}

    def _record(self) -> StepRecord:
        if self._batch.record is None:
            raise RuntimeError("the batch came without the record of its sampling")
        return self._batch.record

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: dict[str, Any] | None = None, client_states: dict[str, Any] | None = None
    ) -> None:
        logs_dict, client_states = logs_dict or {}, client_states or {}
        self._step = global_step
        recorded = {k: v for k, v in logs_dict.items() if k != HOST_SAMPLE}
        client_states |= self._batch.checkpoint
        if self.is_adaptive:
            self.recorder.samples(global_step, self._record())
        row = self.recorder.step(global_step, recorded | ledger_metrics(self._batch.ledger), self.num_steps)
        if HOST_SAMPLE in logs_dict:
            row[HOST_SAMPLE] = logs_dict[HOST_SAMPLE]
        if global_step % self.args.ckpt.save_steps == 0:
            self._show_activity("saving a checkpoint")
        super().save_logs_and_checkpoints(global_step, row, client_states)
        self._commit_checkpoints()
        self._batch = RolloutBatch()
        self.recorder.begin_step()

    def save_best_checkpoint(
        self, eval_metrics: dict[str, float], global_step: int, client_states: dict[str, Any] | None = None
    ) -> None:
        """Called by OpenRLHF with every evaluation, so the place to record it."""
        if isinstance(eval_metrics, ScoredLogs):
            self.record_evaluation(eval_metrics.held_out, eval_metrics.version)
        super().save_best_checkpoint(self._fit_to_choose(eval_metrics), global_step, client_states)
        self._commit_checkpoints()
        # The step after this one starts now; evaluation is not part of it.
        self.recorder.begin_step()

    def _commit_checkpoints(self) -> None:
        """All processes have written theirs."""
        ray.get(first_process(self.actor_model_group).commit_checkpoints.remote(self.args.ada_origin))

    def _fit_to_choose(self, logs: dict[str, float]) -> dict[str, float]:
        """What may choose the best checkpoint: nothing where too many answers lack a score. Raises ConfigError."""
        key = self.best_eval_metric_key
        if isinstance(logs, ScoredLogs) and logs.held_out.missing_share > self.settings.max_no_score:
            share = logs.held_out.missing_share
            note(self.args, f"{share:.0%} of the held-out answers have no score: they choose no best checkpoint")
            return {}
        if key and key != "none" and logs and key not in logs:
            names = ", ".join(sorted(name for name in logs if name.startswith(("accuracy", "pass@", "eval_"))))
            raise ConfigError("--ckpt.best_metric_key", key, f"the evaluation has {names or 'no figures'}", "Use one")
        return logs

    def finish(self) -> None:
        """End the record; the model is exported before. It raises whatever keeps the report from being drawn."""
        self.recorder.finish()

    def record_evaluation(self, held_out: HeldOut, version: int) -> None:
        """Record an evaluation of the policy after `version` training steps."""
        self.recorder.evaluation(version, held_out)
        self._evaluated_step = version

    def evaluates_start(self) -> bool:
        """Is there an evaluation to make before the first step?"""
        return self.settings.eval_ends and self._step == 0

    def evaluates_end(self) -> bool:
        """Is there an evaluation to make after the last step?"""
        return self.settings.eval_ends and self._evaluated_step != self._step
