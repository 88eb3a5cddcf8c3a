"""TRL's GRPOTrainer, in which a policy decides how many rollouts each prompt gets.

It samples in waves, and hands what is trained to TRL's own step as if it had just been generated. Advantages are
coefficients; loss, optimizer and generation are TRL's. It has no public hook for how often a prompt is sampled, so
private methods are overridden.

Contract: test_trl.test_hooks_of_the_synchronous_trainer
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from openrlhf_ada.adapters.pools import Pools, Visit
from openrlhf_ada.adapters.supported import settings_for
from openrlhf_ada.config.flags import ConfigError, Problem, raise_first
from openrlhf_ada.config.schema import AdaConfig

TESTED = "1.16"
ROW = "ada_row"
"""Column with a prompt's position in the training set, its identity from epoch to epoch."""

STATE = "ada_state.json"
"""File of a checkpoint."""

ADVANTAGES = {"none": ("dr_grpo", "rloo", "flash_reinforce"), "group": ("group_norm",)}
"""By scale_rewards: OpenRLHF's names of what it means."""

Ada = AdaConfig | str


def refuse(scale_rewards: str, dataset: Any) -> Iterator[Problem]:
    """What neither of TRL's trainers can carry out."""
    if not trl.__version__.startswith(f"{TESTED}."):
        rule = f"the adapter overrides private methods of TRL {TESTED}, and is tested with no other"
        yield "trl", trl.__version__, rule, f"pip install 'trl=={TESTED}.*'"
    if scale_rewards not in ADVANTAGES:
        rule = "coefficients are computed prompt by prompt, and this divides by what the whole batch shows"
        yield "scale_rewards", scale_rewards, rule, "Use 'none', or 'group' for group_norm"
    if not isinstance(dataset, Dataset):
        yield "train_dataset", type(dataset).__name__, "a prompt is known by its row", "Load it whole, as a Dataset"


def _refuse_in_step(args: GRPOConfig, columns: Sequence[str], options: dict[str, Any]) -> Iterator[Problem]:
    used_up = "rollouts must be used up by the next checkpoint, which does not hold them"
    if args.num_iterations != 1:
        yield "num_iterations", args.num_iterations, used_up, "Use 1"
    if args.gradient_accumulation_steps % (args.steps_per_generation or 1):
        rule = f"{used_up}, so it must divide gradient_accumulation_steps {args.gradient_accumulation_steps}"
        yield "steps_per_generation", args.steps_per_generation, rule, "Leave it out, or raise the other"
    if args.multi_objective_aggregation != "sum_then_normalize":
        rule = "it normalises each reward over groups of one size, and a policy draws groups of many"
        yield "multi_objective_aggregation", args.multi_objective_aggregation, rule, "Use 'sum_then_normalize'"
    if args.remove_unused_columns:
        yield "remove_unused_columns", True, f"the column {ROW} is needed", "Leave it out"
    if images := {"image", "images"} & set(columns):
        yield "train_dataset", sorted(images), "prompts with images are not supported", "Use text alone"
    for name in ("tools", "environment_factory", "rollout_func"):
        if options.get(name) is not None:
            yield name, options[name], "only the trainer's own generation is asked for more", "Leave it out"


class Checkpointed:
    """What both trainers do with checkpoints."""

    pools: Pools

    def _restore(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self.pools.load_state_dict(state)

    def _save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        # First, since the older checkpoint is removed at the end.
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STATE).write_text(json.dumps(self.pools.state_dict()))
        super()._save_checkpoint(model, trial)  # pyright: ignore

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        checkpoint = kwargs.get("resume_from_checkpoint")
        if checkpoint is not None and not Path(checkpoint, STATE).is_file():
            rule = f"it has no {STATE}, so what the policy learned is not known"
            raise ConfigError("resume_from_checkpoint", checkpoint, rule, "Name a checkpoint of this trainer")
        self._restore(None if checkpoint is None else json.loads(Path(checkpoint, STATE).read_text()))
        return super()._inner_training_loop(*args, **kwargs)  # pyright: ignore


@dataclass(frozen=True, slots=True)
class _Rollout:
    """One rollout as TRL's step wants it. `rewards`: of each reward function, NaN for none."""

    row: dict[str, Any]
    prompt_ids: list[int]
    completion_ids: list[int]
    completion: Any
    logprobs: list[float] | None
    rewards: tuple[float, ...]


class AdaGRPOTrainer(Checkpointed, GRPOTrainer):
    """GRPOTrainer with adaptive sampling.

    A step draws as many rollouts as the policy asks for and trains `generation_batch_size` of them, on average
    `num_generations` of a prompt. The first reward function is the score, which decides: a number from 0 to 1. The
    weighted sum of all is the reward, which is trained.

    Args:
        model: GRPOTrainer's.
        reward_funcs: GRPOTrainer's.
        args: GRPOTrainer's. `scale_rewards="none"` has plain advantages, `"group"` divides by the pool's deviation.
        train_dataset: with a length.
        ada: our flags, or the name of a method.
        options: GRPOTrainer's other arguments.

    Raises ConfigError for what it cannot carry out.
    """

    def __init__(
        self, model: Any, reward_funcs: Any, args: GRPOConfig, train_dataset: Dataset, *, ada: Ada, **options: Any
    ) -> None:
        raise_first(refuse(args.scale_rewards, train_dataset))
        raise_first(_refuse_in_step(args, train_dataset.column_names, options))
        n, total = cast("int", args.num_generations), cast("int", args.generation_batch_size)
        settings = settings_for(ada, n=n, advantages=ADVANTAGES[args.scale_rewards], batch=total // n)
        if settings.trains_varying:
            rule = f"outcomes decide how many rollouts that are, and a step of TRL trains {total}"
            raise ConfigError("--ada_select", "all", rule, "Use another selection, or --ada_mode est")
        self.pools = Pools(settings, args.seed)
        self._trained: list[_Rollout] | None = None
        rows: Any = list(range(len(train_dataset)))
        super().__init__(model, reward_funcs, args, train_dataset.add_column(ROW, rows), **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        visit = self._sample({row[ROW]: row for row in gather_object(inputs)}, len(inputs))
        closed = self.pools.build(visit)
        figures = self.pools.record(closed)
        chosen = [(group.key, i) for group in closed.groups for i in group.indices]
        coefficients = [c for group in closed.groups for c in group.coefficients]
        if len(chosen) != self.args.generation_batch_size:
            raise RuntimeError(f"{len(chosen)} rollouts are trained, TRL expects {self.args.generation_batch_size}")
        self._trained = [visit.payloads[place] for place in chosen]
        mine = self._share(len(inputs))
        try:
            output = super()._generate_and_score_completions([dict(r.row) for r in self._trained[mine]])
        finally:
            self._trained = None
        output["advantages"] = torch.tensor(coefficients[mine], device=output["advantages"].device)
        self._correct_logs(visit, coefficients, figures)
        return output

    def _correct_logs(self, visit: Visit, coefficients: list[float], figures: dict[str, float]) -> None:
        """TRL's rewards are those of trained rollouts; of a prompt's first ones the mean is the policy's."""
        metrics, first_scores = self._metrics["train"], self.pools.settings.first_scores
        first = [r.rewards for (_, index), r in visit.payloads.items() if index < first_scores]
        columns = [f"rewards/{name}" for name in self.reward_func_names]
        rewards = dict(zip(columns, np.array(first).T, strict=True))
        rewards["reward"] = np.array([self._weighted(of_one) for of_one in first])
        for name, values in rewards.items():
            mean, std = (f"{name}/mean", f"{name}/std") if name in columns else (name, f"{name}_std")
            metrics[mean][-1], metrics[std][-1] = float(np.nanmean(values)), float(np.nanstd(values, ddof=1))
        metrics["frac_reward_zero_std"][-1] = 1.0 - figures["ada/signal_share"]
        for name, value in figures.items():
            metrics[name].append(value)
        for _ in coefficients:
            self._logs["advantages"].pop()
        self._logs["advantages"].extend(coefficients)

    def _sample(self, rows: dict[int, dict[str, Any]], size: int) -> Visit:
        """Draw until the policy has closed every prompt, `size` rollouts a process at a time."""
        visit, version = self.pools.open(list(rows)), self.state.global_step
        while due := list(visit.due()):
            for at in range(0, len(due), size * self.accelerator.num_processes):
                requests = due[at : at + size * self.accelerator.num_processes]
                drawn = self._draw([rows[visit.rows[request.key]] for request in requests])
                for request, rollout in zip(requests, drawn, strict=False):
                    visit.payloads[request[:2]] = rollout
                    reward = self._weighted(rollout.rewards)
                    self.pools.report(visit, request, rollout.rewards[0], reward, len(rollout.completion_ids), version)
                for surplus in drawn[len(requests) :]:
                    visit.scheduler.waste.surplus.add(len(surplus.completion_ids))
                    visit.scheduler.num_sent += 1
        # Columns that reward functions logged are of all that was drawn, and TRL's table is of what is trained.
        self._pending_extra_logs.clear()
        return visit

    def _draw(self, rows: Sequence[dict[str, Any]]) -> list[_Rollout]:
        """One rollout for each of these rows, from all processes. All generate equally many, so there may be more."""
        share = math.ceil(len(rows) / self.accelerator.num_processes)
        mine = [rows[i % len(rows)] for i in range(share * self.accelerator.num_processes)][self._share(share)]
        prompts = [row["prompt"] for row in mine]
        prompt_ids, completion_ids, _, completions, logprobs, *_ = super()._generate(prompts)
        rewards = super()._calculate_rewards(mine, prompts, completions, completion_ids)
        logprobs = logprobs or [None] * len(mine)
        generated: list[Any] = gather_object(
            list(zip(mine, prompt_ids, completion_ids, completions, logprobs, strict=True))
        )
        return [_Rollout(*one, rewards=tuple(r)) for one, r in zip(generated, rewards.tolist(), strict=True)]

    def _share(self, size: int) -> slice:
        """Of a list from all processes, `size` of each."""
        return slice(self.accelerator.process_index * size, (self.accelerator.process_index + 1) * size)

    def _weighted(self, rewards: tuple[float, ...]) -> float:
        """As TRL: reward functions that give none are left out."""
        known = [w * r for w, r in zip(self.reward_weights.tolist(), rewards, strict=True) if not math.isnan(r)]
        return math.fsum(known) if known else math.nan

    def _generate(self, prompts: list[Any]) -> Any:
        if self._trained is None:
            return super()._generate(prompts)
        mine = self._trained[self._share(len(prompts))]
        logprobs = None if mine[0].logprobs is None else [r.logprobs for r in mine]
        ids = [r.prompt_ids for r in mine], [r.completion_ids for r in mine]
        return *ids, None, [r.completion for r in mine], logprobs, {}, None, []

    def _generate_single_turn(self, prompt_ids: Any, images: Any, parts: Any, num_generations: int) -> Any:
        # TRL takes every num_generations-th prompt, and asks a vLLM server for so many rollouts of it.
        alone = 1 if self.model.training else num_generations
        return super()._generate_single_turn(prompt_ids, images, parts, alone)

    def _calculate_rewards(self, *generated: Any) -> Any:
        if self._trained is None:
            return super()._calculate_rewards(*generated)
        return torch.tensor([r.rewards for r in self._trained], device=self.accelerator.device)
