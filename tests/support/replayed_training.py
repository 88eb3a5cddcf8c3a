"""A run's training once more, with plain torch: from samples.jsonl, config.json and the first model, in one process,
without micro-batches. Formulas are written down anew; nothing of OpenRLHF or of this package is used.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

Row = dict[str, Any]
STRIDE = 1_000_003
"""Between the seeds of two steps."""


@dataclass(frozen=True)
class Batch:
    """Rollouts, padded at the right. `mask`: (B, L - 1), which next tokens were sampled; `row`: of samples.jsonl."""

    ids: torch.Tensor
    attention: torch.Tensor
    mask: torch.Tensor
    rows: list[Row]

    def of(self, name: str) -> torch.Tensor:
        """Shape (B, 1)."""
        return torch.tensor([float(row[name]) for row in self.rows]).unsqueeze(1)

    def __getitem__(self, at: list[int]) -> Batch:
        return Batch(self.ids[at], self.attention[at], self.mask[at], [self.rows[i] for i in at])


class Replay:
    """`step` gives the figures of one step after the other; `model` is then the policy after it."""

    def __init__(self, run: Path, steps: int) -> None:
        as_names: Callable[[Row], Any] = lambda pairs: SimpleNamespace(**pairs)  # noqa: E731
        self.sums: dict[str, tuple[float, float]] = {}
        self.run, self.args = run, json.loads((run / "config.json").read_text(), object_hook=as_names)
        name = self.args.actor.model_name_or_path
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.model, self.reference = (
            AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="eager") for _ in "ab"
        )
        adam, actor = self.args.actor.adam, self.args.actor
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=adam.lr, betas=tuple(adam.betas), eps=adam.eps, weight_decay=0.0
        )
        rollout, train = self.args.rollout, self.args.train
        updates = steps * rollout.batch_size * rollout.n_samples_per_prompt // train.batch_size * train.max_epochs
        self.scheduler = get_scheduler(
            actor.lr_scheduler, self.optimizer, math.ceil(actor.lr_warmup_ratio * updates), updates,
            {"min_lr_rate": actor.min_lr_ratio},
        )  # fmt: skip

    @cached_property
    def samples(self) -> list[Row]:
        """With the text of the prompt, and the stratum factor (N_c/N)/(k_c/n), in every row."""
        rows = [json.loads(line) for line in (self.run / "samples.jsonl").read_text().splitlines()]
        for _, group in groupby(rows, lambda row: row["key"]):
            pool = list(group)
            kept = [row["positive"] for row in pool if row["kept"]]
            for row in pool:
                alike = sum(other["positive"] == row["positive"] for other in pool) / len(pool)
                share = kept.count(row["positive"]) / len(kept)
                row |= {"prompt": pool[0]["prompt"], "stratum": alike / share if share else 0.0}
        return rows

    def drawn(self, step: int) -> list[Row]:
        return [row for row in self.samples if row["step"] == step]

    def batch(self, rows: list[Row]) -> Batch:
        texts, end = [], self.tokenizer.eos_token_id
        for row in rows:
            prompt, answer = (self.tokenizer(row[name])["input_ids"] for name in ("prompt", "response"))
            row["ended"] = len(answer) < row["tokens"]
            answer += [end] * row["ended"]
            assert len(answer) == row["tokens"], "the text is not all that was sampled"
            texts.append((len(prompt), torch.tensor(prompt + answer)))
        ids = torch.nn.utils.rnn.pad_sequence([text for _, text in texts], batch_first=True)
        places, lengths = torch.arange(ids.shape[1]), torch.tensor([[len(text)] for _, text in texts])
        starts = torch.tensor([[start] for start, _ in texts])
        sampled = (places >= starts) & (places < lengths)
        return Batch(ids, (places < lengths).long(), sampled[:, 1:].float(), rows)

    def log_probs(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the tokens; the entropy of their distribution; what engines say, which sample no end at the first token.
        Shapes (B, L - 1)."""
        table = model(batch.ids, attention_mask=batch.attention).logits[:, :-1].log_softmax(-1)
        chosen = table.gather(-1, batch.ids[:, 1:, None])[..., 0]
        is_first = batch.mask * (batch.mask.cumsum(1) == 1)
        said = chosen - (is_first * torch.log1p(-table[..., self.tokenizer.eos_token_id].exp()))
        return chosen, -(table.exp() * table).sum(-1), said

    def updates(self, version: int, size: int) -> Iterator[tuple[int, list[int]]]:
        """(epoch, rollouts of an optimizer step): each process shuffles its share."""
        train, processes = self.args.train, self.args.actor.num_gpus_per_node
        torch.manual_seed(train.seed + STRIDE * version)
        share, take = size // processes, train.batch_size // processes
        loader = DataLoader(range(share), batch_size=train.micro_batch_size, shuffle=True, collate_fn=list)
        for epoch in range(train.max_epochs):
            order = [i for micro in loader for i in micro]
            for start in range(0, share, take):
                yield epoch, [p * share + i for p in range(processes) for i in order[start : start + take]]

    def step(self, version: int) -> dict[str, float]:
        """OpenRLHF's figures of the step that makes this version of the weights, by name."""
        batch, self.sums, kl = self.batch([row for row in self.drawn(version) if row["kept"]]), {}, self.args.algo.kl
        with torch.no_grad():
            (old, _, said), (base, _, _) = (self.log_probs(model, batch) for model in (self.model, self.reference))
        # Of the policy, so a rollout counts as often as it stands for others of its pool.
        counted = batch.mask * batch.of("stratum")
        last: dict[str, float] = {"ada/surprisal": float((-old * counted).sum() / counted.sum())}
        estimator = self.args.algo.advantage.estimator
        penalty = kl.init_coef * (old - base) * batch.mask * (not kl.use_loss)
        if estimator == "gae":
            advantages, returns = self._gae(batch, penalty)
        else:
            # A rollout stands for others of its pool.
            penalty = penalty * batch.of("stratum")
            advantages = batch.of("coefficient") - penalty.flip(1).cumsum(1).flip(1)
        start = "reward" if estimator == "gae" else "coefficient"
        for row, of_tokens in zip(batch.rows, penalty, strict=True):
            row["return"] = row[start] - float(of_tokens.sum())
        whitened = estimator in ("gae", "reinforce_baseline")
        square = (advantages.square() * batch.mask).sum() / batch.mask.sum()
        last["ada/group_scale"] = float(square**-0.5) if whitened else 1.0
        advantages = advantages * last["ada/group_scale"]
        if self.args.algo.advantage.is_correction_level != "off":
            self.add("vllm_kl", said - old, batch.mask)
            advantages = advantages * (old - said).exp()
        if not kl.use_loss:
            by_sample = ((old - base) * counted).sum(1) / batch.mask.sum(1) * (kl.init_coef > 0)
            last |= dict.fromkeys(("kl", "logprobs_diff"), float(by_sample.mean()))
        for epoch, chosen in self.updates(version, len(batch.rows)):
            part = batch[chosen]
            if estimator == "gae":
                last["critic_grad_norm"] = self._train_critic(part, returns[chosen])
            self.optimizer.zero_grad()
            self._loss(part, old[chosen], base[chosen], advantages[chosen], epoch).backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.actor.max_norm)
            last["actor_grad_norm"] = float(norm)
            self.optimizer.step()
            self.scheduler.step()
        means = {name: total / count for name, (total, count) in self.sums.items()}
        return last | means | {"actor_lr": self.scheduler.get_last_lr()[0]}

    def add(self, name: str, values: torch.Tensor, counts: torch.Tensor) -> None:
        """To a mean over the whole step. `counts`: a mask of `values`, or what they are divided by."""
        total, count = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = total + float((values.detach() * counts).sum()), count + float(counts.sum())

    @cached_property
    def critic(self) -> tuple[Any, torch.Tensor]:
        """Body and head, as in the run's checkpoints: it has a learning rate of 0."""
        file = next(self.run.glob("ckpt/_critic/*1/mp_rank_00_model_states.pt"))
        weights = torch.load(file, weights_only=False)["module"]
        body, head = copy.deepcopy(self.reference.model), weights.pop("score.weight").requires_grad_()
        body.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
        return body, head

    def values(self, batch: Batch) -> torch.Tensor:
        body, head = self.critic
        states = body(batch.ids, attention_mask=batch.attention).last_hidden_state
        return (states @ head.T)[:, :-1, 0] * batch.mask

    def _gae(self, batch: Batch, penalty: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weighted advantages, and returns. The last token has the reward."""
        with torch.no_grad():
            values = self.values(batch)
        is_last = batch.mask * (batch.mask.flip(1).cumsum(1).flip(1) == 1)
        rewards = is_last * batch.of("reward") - penalty
        after = torch.nn.functional.pad(values, (0, 1))[:, 1:]
        advantages, carried = torch.zeros_like(values), torch.zeros(len(values))
        for t in reversed(range(values.shape[1])):
            carried = rewards[:, t] + after[:, t] - values[:, t] + self.args.algo.advantage.lambd * carried
            advantages[:, t] = carried
        return advantages * batch.of("coefficient"), advantages + values

    def _train_critic(self, batch: Batch, returns: torch.Tensor) -> float:
        """Its gradient's norm: each rollout counts by its stratum factor."""
        values, tokens = self.values(batch), batch.mask.sum()
        loss = (0.5 * (values - returns).square() * batch.mask * batch.of("stratum")).sum() / tokens
        self.add("critic_loss", loss, tokens)
        self.add("values", values, batch.mask)
        body, head = self.critic
        gradients = torch.autograd.grad(loss, [*body.parameters(), head])
        return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))

    def _loss(self, batch: Batch, old: Any, base: Any, advantages: Any, epoch: int) -> torch.Tensor:
        args, mask = self.args, batch.mask
        now, entropy, _ = self.log_probs(self.model, batch)
        if args.ada.wrong_epochs and epoch >= args.ada.wrong_epochs:
            advantages = advantages.clamp(min=0.0)
        shown = (advantages * mask != 0).any(1, keepdim=True) | (args.ada.zeros != "skip")
        log_ratio, by_token = now - old, args.actor.policy_loss_type == "ppo"
        if not by_token:
            log_ratio = ((log_ratio * mask).sum(1) / mask.sum(1)).unsqueeze(1).expand_as(mask)
        ratio, (low, high) = log_ratio.exp(), args.actor.eps_clip_low_high
        free, clipped = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
        gain = torch.min(free, clipped)
        if args.actor.dual_clip:
            gain = torch.where(advantages < 0, torch.max(gain, args.actor.dual_clip * advantages), gain)
        weights = mask / mask.sum() if by_token else mask / mask.sum(1, keepdim=True) / len(mask)
        if args.ada.loss == "sequence-constant":
            weights = mask / len(mask) / args.rollout.max_new_tokens
        loss = -(gain * weights).sum()
        self.add("policy_loss", loss, mask.sum() if by_token else torch.tensor(float(len(mask))))
        self.add("ppo_clip_ratio", (clipped < free).float(), mask * shown)
        self.add("ppo_kl", (old - now), mask * shown)
        if args.actor.entropy_coef is not None:
            self.add("entropy_loss", entropy, mask)
            loss = loss - args.actor.entropy_coef * (entropy * mask).sum() / mask.sum()
        if args.algo.kl.use_loss:
            far = (now - base).clamp(-10, 10)
            self.add("kl", far, mask)
            self.add("logprobs_diff", (now - base), mask)
            loss = loss + args.algo.kl.init_coef * (far * mask).sum() / mask.sum()
        trained = shown[:, 0].float()
        for name, values in {
            "response_length": mask.sum(1), "total_length": batch.attention.sum(1).float(),
            "truncated": 1 - batch.of("ended")[:, 0], "trained/reward": batch.of("reward")[:, 0],
            "trained/score": batch.of("metric")[:, 0], "trained/return": batch.of("return")[:, 0],
            "ones": torch.tensor([float(row["response"].count("1")) for row in batch.rows]),
            "response_clip_ratio": (batch.attention.sum(1) >= args.data.max_len).float(),
        }.items():  # fmt: skip
            self.add(name, values, trained)
        return loss
