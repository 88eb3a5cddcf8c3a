"""A critic's value of a prompt, before anything is sampled: PPO's own, or a pass-rate model for critic-free training.

The value at the last prompt token is what the critic expects of the prompt. PPO's critic learns it by the way. In
critic-free training OpenRLHF's critic model is started for it and fitted to what was drawn: all rollouts, not the
selected ones, so it learns the pass rate and not one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.utils.utils import zero_pad_sequences

from openrlhf_ada.host.models import HostCriticActor, before_optimizer_steps
from openrlhf_ada.host.tokenizer import SharedTokenizer
from openrlhf_ada.trainer.critic import UncommittedCheckpoints

PromptRows = dict[str, torch.Tensor]
"""sequences, attention_mask (b, T) and action_mask (b, T - 1): prompts with one token after them, as the critic's
forward pass wants them; the action mask holds the place where the value of the last prompt token comes out."""


class PromptCritic:
    """Values of prompts from a Ray group of critics, and the training of a pass-rate critic."""

    def __init__(self, group: RayActorGroup, args: Any) -> None:
        self.group = group
        self._args = args
        self._tokenizer = SharedTokenizer(
            args.actor.model_name_or_path, use_fast=not args.data.disable_fast_tokenizer
        ).load()
        self._copies = args.ds.ring_attn_size * args.ds.tensor_parallel_size
        self._processes = args.critic.num_nodes * args.critic.num_gpus_per_node // self._copies

    def values(self, prompts: Sequence[str]) -> list[float]:
        """The critic's value of every prompt, in reward units."""
        batches = self._batches(len(prompts), self._args.rollout.micro_batch_size)
        tokens = [self._encode(prompt) for prompt in prompts]
        rows = [self._rows([tokens[i] for i in batch]) for batch in batches]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        refs = self.group.async_run_method_batch("forward", **columns)
        results = [value for part in ray.get(refs)[:: self._copies] for value in part]
        values: dict[int, float] = {}
        for batch, result in zip(batches, results, strict=True):
            values |= zip(batch, result.float().sum(dim=-1).tolist(), strict=True)
        return [values[i] for i in range(len(prompts))]

    def fit(
        self, prompts: Sequence[str], draws: Sequence[int], positives: Sequence[int], updates: int
    ) -> dict[str, float]:
        """One pass of squared error between value and outcome over all rollouts drawn; returns what to log.

        `updates`: optimiser steps per epoch, those of the policy. A prompt counts once for every rollout.
        """
        train = self._args.train
        updates = min(updates, len(prompts))
        tokens = [self._encode(prompt) for prompt in prompts]
        for _ in range(train.max_epochs):
            for part in np.array_split(np.arange(len(prompts)), updates):
                self._append_update(part.tolist(), tokens, draws, positives)
        if self._args.ds.enable_sleep:
            ray.get(self.group.async_run_method("reload_states"))
        status = ray.get(self.group.async_run_method("fit_pass_rates"))[0]
        if self._args.ds.enable_sleep:
            ray.get(self.group.async_run_method("offload_states"))
        return {"critic_loss": status["loss"], "critic_lr": status["lr"], "critic_grad_norm": status["grad_norm"]}

    def _append_update(
        self, chosen: list[int], tokens: list[list[int]], draws: Sequence[int], positives: Sequence[int]
    ) -> None:
        """Hand the rollouts of one optimiser step to the critics, equally many micro-batches to each."""
        total = sum(draws[i] for i in chosen)
        counted: set[int] = set()
        rows: list[PromptRows] = []
        for batch in self._batches(len(chosen), self._args.train.micro_batch_size):
            members = [chosen[i] for i in batch]
            row = self._rows([tokens[i] for i in members])
            row["target"] = torch.tensor([positives[i] / draws[i] for i in members])
            row["weight"] = torch.tensor([0.0 if i in counted else draws[i] / total for i in members])
            counted.update(members)
            rows.append(row)
        per_process = len(rows) // self._processes
        for place, row in enumerate(rows):
            # The last micro-batch of each process ends the step.
            row["ends_update"] = torch.tensor((place + 1) % per_process == 0)
        ray.get(self.group.async_run_method_batch("append_prompts", rows=rows))

    def _batches(self, count: int, micro_batch: int) -> list[list[int]]:
        """Positions in micro-batches, equally many for every process; short of prompts, some are there twice."""
        number = self._processes * math.ceil(count / (micro_batch * self._processes))
        parts = [part.tolist() for part in np.array_split(np.arange(count), number)]
        return [part or [0] for part in parts]

    def _encode(self, prompt: str) -> list[int]:
        """As the engines read it: cut from the left where it leaves no room for an answer."""
        room = self._args.data.max_len - (self._args.rollout.max_new_tokens or 1)
        tokens: list[int] = self._tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        return tokens[-room:]

    def _rows(self, prompts: Sequence[list[int]]) -> PromptRows:
        # OpenRLHF's critic gives no value at the very last position, so one more token stands there, never read.
        sequences = [torch.tensor([*tokens, tokens[-1]]) for tokens in prompts]
        action_masks = [torch.zeros(len(tokens), dtype=torch.long) for tokens in prompts]
        for mask in action_masks:
            mask[-1] = 1
        return {
            "sequences": zero_pad_sequences(sequences, "right", self._tokenizer.pad_token_id, stack=True),
            "attention_mask": zero_pad_sequences([torch.ones_like(s) for s in sequences], "right", stack=True),
            "action_mask": zero_pad_sequences(action_masks, "right", stack=True),
        }


class PassRateCriticActor(UncommittedCheckpoints, HostCriticActor):
    """OpenRLHF's critic actor, fitted to pass rates of prompts instead of returns of tokens."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        super().init_model_from_pretrained(*args, **kwargs)
        before_optimizer_steps(self.critic)
        self._waiting: list[PromptRows] = []

    def append_prompts(self, rows: PromptRows) -> None:
        """Keep one micro-batch until `fit_pass_rates`: PromptRows with target, weight (b,) and ends_update ()."""
        self._waiting.append(rows)

    def fit_pass_rates(self) -> dict[str, float]:
        """Train on what was appended. The weights of an optimiser step sum to 1 over all processes."""
        device = torch.cuda.current_device()
        engine = self.critic
        engine.train()
        ds = self.strategy.args.ds
        copies = ds.ring_attn_size * ds.tensor_parallel_size
        # DeepSpeed averages over processes and divides by its own number of accumulation steps, which is the policy's.
        scale = torch.distributed.get_world_size() // copies * engine.gradient_accumulation_steps()
        losses: list[float] = []
        for rows in self._waiting:
            batch = {name: value.to(device) for name, value in rows.items()}
            ends = bool(rows["ends_update"])
            engine.set_gradient_accumulation_boundary(ends)
            values, _ = engine(
                batch["sequences"],
                action_mask=batch["action_mask"],
                attention_mask=batch["attention_mask"],
                return_output=True,
                ring_attn_group=self.strategy.ring_attn_group,
            )
            loss = (batch["weight"] * (values.float().sum(dim=-1) - batch["target"]) ** 2).sum()
            self.strategy.backward(loss * scale, engine, self.critic_optim)
            self.strategy.optimizer_step(self.critic_optim, engine, self.critic_scheduler, name="critic")
            losses.append(float(loss))
        updates = sum(bool(rows["ends_update"]) for rows in self._waiting)
        self._waiting = []
        return {
            "loss": self.strategy.all_reduce(sum(losses) / updates / copies, op="sum"),
            "lr": self.critic_scheduler.get_last_lr()[0],
            "grad_norm": self.strategy.get_grad_norm(engine),
        }


RayPassRateCritic = ray.remote(num_gpus=1)(PassRateCriticActor)
