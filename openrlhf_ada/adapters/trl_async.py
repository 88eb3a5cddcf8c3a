"""TRL's AsyncGRPOTrainer, in which a policy decides how many rollouts each prompt gets.

Its worker gets another order of work, in which every rollout is a group of its own. What the trainer takes from the
worker's queue is learned from and accounted for, so that a checkpoint has it. TRL's loop has no public hooks.

Contract: test_trl.test_hooks_of_the_asynchronous_trainer
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

import numpy as np
from datasets import Dataset
from trl.experimental.async_grpo import async_rollout_worker as worker
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

from openrlhf_ada.adapters.pools import Closed, Pools, Visit
from openrlhf_ada.adapters.supported import settings_for
from openrlhf_ada.adapters.trl import ADVANTAGES, Ada, Checkpointed, refuse
from openrlhf_ada.config.flags import ConfigError, raise_first
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import TrainingGroup


@dataclass(kw_only=True)
class _Sample(worker.RolloutSample):
    """The first one of a visit. `closed`: all that came of it."""

    closed: Closed


class _AdaRolloutLoop(worker._AsyncRolloutLoop):
    """TRL's loop, for which every rollout is a group of its own: what it generates next comes from open visits.

    Args:
        ada: settings of the run.
        seed: of the run.
        visit_size: prompts that are opened together.
        ada_state: of `Pools`, None for a fresh start.
    """

    def __init__(
        self, *, ada: Settings, seed: int, visit_size: int, ada_state: dict[str, Any] | None, **options: Any
    ) -> None:
        options["num_generations"] = 1
        super().__init__(**options)
        self._pools, self._visit_size = Pools(ada, seed), visit_size
        if ada_state is not None:
            self._pools.load_state_dict(ada_state)
        # TRL goes on from the first prompt that was not trained.
        self._first_key = self._pools.next_key = options["dataset_start_index"]
        self._visits: list[Visit] = []
        self._sent: dict[int, tuple[Visit, Request]] = {}

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for group_id in count():
            visit, request = self._sent[group_id] = self._next()
            yield group_id, self.dataset[visit.rows[request.key]]

    def _next(self) -> tuple[Visit, Request]:
        """What an open visit waits for, the oldest first, or else the first rollout of a new one."""
        for visit in self._visits:
            for request in visit.due():
                return visit, request
        first = self._pools.next_key
        visit = self._pools.open([key % len(self.dataset) for key in range(first, first + self._visit_size)])
        self._visits.append(visit)
        return visit, next(visit.due())

    async def _score_group(self, group: worker.RolloutGroup) -> list[Any]:
        samples = await super()._score_group(group)
        visit, request = self._sent.pop(group.group_id)
        visit.payloads[request[:2]] = samples
        value, reward = (samples[0].metrics[name] for name in (f"rewards/{self.reward_func_names[0]}", "reward"))
        tokens = len(group.completions_ids[0])
        self._pools.report(visit, request, value, reward, tokens, group.model_version)
        if not visit.scheduler.is_done:
            return []
        self._visits.remove(visit)
        closed = self._pools.build(visit)
        self._push_metrics({**self._pools.record(closed)})
        trained = [sample for group in closed.groups for sample in self._samples(visit, group)]
        first = {f.name: getattr(trained[0], f.name) for f in fields(worker.RolloutSample)}
        return [_Sample(**first, closed=closed), *trained[1:]]

    def _samples(self, visit: Visit, group: TrainingGroup) -> Iterator[worker.RolloutSample]:
        """With one version, lest TRL drop a part of the group as stale, and with the rewards of the prompt's first
        rollouts, whose mean is the policy's."""
        drawn = {index: samples for (key, index), samples in visit.payloads.items() if key == group.key}
        first = [drawn[i][0].metrics for i in sorted(drawn) if i < self._pools.settings.first_scores]
        fair = {name: float(np.nanmean([m[name] for m in first])) for name in first[0] if "reward" in name}
        fair["reward_std"] = float(np.nanstd([m["reward"] for m in first]))
        oldest = min(samples[0].model_version for samples in drawn.values())
        for index, coefficient in zip(group.indices, group.coefficients, strict=True):
            for sample in drawn[index]:
                sample.advantage, sample.model_version = coefficient, oldest
                sample.group_id, sample.metrics = group.key - self._first_key, sample.metrics | fair
                yield sample


class _Taken:
    """TRL's queue of samples. What the trainer takes is learned from and accounted for."""

    def __init__(self, queue: Any, pools: Pools) -> None:
        self.qsize, self._queue, self._pools = queue.qsize, queue, pools

    def get(self, timeout: float | None = None) -> worker.RolloutSample:
        """Raises queue.Empty."""
        sample = self._queue.get(timeout=timeout)
        if isinstance(sample, _Sample):
            self._pools.record(sample.closed)
        return sample


class AdaAsyncGRPOTrainer(Checkpointed, AsyncGRPOTrainer):
    """AsyncGRPOTrainer with adaptive sampling. The books are of what the trainer has taken from its queue.

    `num_generations` is the number of rollouts of a prompt that are trained. Reward functions are called with one
    rollout at a time. The first one is the score, which decides: a number from 0 to 1. The sum of all is the reward,
    which is trained.

    Args:
        model: a folder or hub name.
        reward_funcs: AsyncGRPOTrainer's.
        args: AsyncGRPOTrainer's.
        train_dataset: with a length.
        ada: our flags, or the name of a method.
        scale_rewards: as in GRPOConfig, "none" or "group".
        options: AsyncGRPOTrainer's other arguments.

    Raises ConfigError for what it cannot carry out.
    """

    def __init__(
        self,
        model: str,
        reward_funcs: Any,
        args: AsyncGRPOConfig,
        train_dataset: Dataset,
        *,
        ada: Ada,
        scale_rewards: str = "group",
        **options: Any,
    ) -> None:
        raise_first(refuse(scale_rewards, train_dataset))
        if options.get("rollout_worker") is not None:
            rule = "the adapter needs TRL's own worker"
            raise ConfigError("rollout_worker", options["rollout_worker"], rule, "Leave it out")
        n, step = args.num_generations, args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        batch = max(step // n, 1)
        settings = settings_for(ada, n=n, advantages=ADVANTAGES[scale_rewards], batch=batch)
        self.pools = Pools(settings, args.seed)
        super().__init__(model, reward_funcs, args, train_dataset, **options)
        # A budget is split among a step's prompts together.
        self._work = {"ada": settings, "seed": args.seed, "visit_size": batch if settings.mode == "est" else 1}
        if isinstance(self.rollout_worker, worker.AsyncRolloutWorker):
            self.rollout_worker._loop_cls = _AdaRolloutLoop
            self.rollout_queue = _Taken(self.rollout_queue, self.pools)

    def _restore(self, state: dict[str, Any] | None) -> None:
        super()._restore(state)
        if isinstance(self.rollout_worker, worker.AsyncRolloutWorker):
            self.rollout_worker._loop_kwargs |= self._work | {"ada_state": state}
