"""A critic trained on a balanced group learns the pool's mean, because each sample counts with its stratum factor."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import pool_of, sequential
from openrlhf.models import ValueLoss
from openrlhf.trainer.ppo_utils import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.types import TrainingGroup
from openrlhf_ada.trainer.critic import AdaCriticTrainer, StratumValueLoss
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT, critic_weights


def group_of(positives: int, negatives: int, n: int) -> TrainingGroup:
    """The trained group of a pool in which the positives came first."""
    policy = sequential(1, 1, n=n, wave=n, cap=8, estimator="gae")
    return policy.build(pool_of([1] * positives + [0] * negatives), np.random.default_rng(0))


def loss_of(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    loss = StratumValueLoss(0.5)
    loss.weights = weights
    old_values = values.detach()
    return loss(values, old_values, returns, action_mask=mask, dp_size=1, batch_num_tokens=mask.sum())


@pytest.mark.parametrize("n", [2, 4])
def test_weighted_kept_loss_is_the_pool_loss(n: int) -> None:
    """One value for the prompt, returns 0 or 1, one token each: all pools with up to 6 of either outcome."""
    for positives, negatives in itertools.product(range(7), repeat=2):
        if positives + negatives < n:
            continue
        group = group_of(positives, negatives, n)
        weights = torch.tensor(group.critic_weights)
        returns = torch.tensor([[float(i < positives)] for i in group.indices])
        all_returns = torch.tensor([[1.0]] * positives + [[0.0]] * negatives)
        value = 0.3
        kept_loss = loss_of(torch.full((n, 1), value), returns, torch.ones(n, 1), weights)
        pool_loss = ValueLoss(0.5)(
            torch.full_like(all_returns, value),
            torch.full_like(all_returns, value),
            all_returns,
            action_mask=torch.ones_like(all_returns),
            batch_num_tokens=len(all_returns),
        )
        assert float(kept_loss) == pytest.approx(float(pool_loss), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("pass_rate", [1 / 8, 1 / 2, 7 / 8])
def test_critic_converges_to_the_pass_rate_not_to_one_half(pass_rate: float) -> None:
    positives = round(8 * pass_rate)
    group = group_of(positives, 8 - positives, 4)
    returns = torch.tensor([[float(i < positives)] for i in group.indices])
    weights = torch.tensor(group.critic_weights)
    value = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(value.expand(4, 1), returns, torch.ones(4, 1), weights).backward()
        optimizer.step()
    assert value.item() == pytest.approx(pass_rate, abs=1e-3)


def test_weights_of_one_are_the_hosts_loss() -> None:
    torch.manual_seed(0)
    values, old_values, returns = torch.randn(3, 5, 4).unbind(0)
    mask = torch.rand(5, 4) > 0.3
    ours = StratumValueLoss(0.2)
    ours.weights = torch.ones(5)
    batch = {"dp_size": 2, "batch_num_tokens": torch.tensor(7.0), "global_batch_size": torch.tensor(5.0)}
    theirs = ValueLoss(0.2)(values, old_values, returns, action_mask=mask, **batch)
    assert ours(values, old_values, returns, action_mask=mask, **batch) == theirs


def test_masked_tokens_stay_masked() -> None:
    values, returns = torch.tensor([[1.0, 50.0]]), torch.zeros(1, 2)
    mask = torch.tensor([[True, False]])
    assert float(loss_of(values, returns, mask, torch.tensor([0.5]))) == pytest.approx(0.5 * 0.5)


def test_without_weights_the_loss_is_the_hosts() -> None:
    """Mode off: to the bit, whatever the mask's type is."""
    values, old_values, returns = torch.randn(3, 5, 4).bfloat16().unbind(0)
    mask = torch.rand(5, 4) > 0.3
    ours = StratumValueLoss(0.2)(values, old_values, returns, action_mask=mask, batch_num_tokens=torch.tensor(7.0))
    theirs = ValueLoss(0.2)(values, old_values, returns, action_mask=mask, batch_num_tokens=torch.tensor(7.0))
    assert ours == theirs and ours.dtype == theirs.dtype


class Critic(torch.nn.Module):
    """The value of a token is the number of the one before it, and some more with each step of the optimizer."""

    steps = 0

    def forward(self, sequences: torch.Tensor, action_mask: torch.Tensor, **_: Any) -> tuple[torch.Tensor, Any]:
        return sequences[:, :-1].float() + self.steps, SimpleNamespace()


class Strategy:
    """One process, two optimizer steps of four samples."""

    ring_attn_group = None

    def __init__(self, micro: int) -> None:
        self.accumulated_gradient, self.num_calls = 4 // micro, 0

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        self.num_calls += 1

    def optimizer_step(self, _: Any, critic: Any, *__: Any, **___: Any) -> None:
        critic.steps = self.num_calls // self.accumulated_gradient

    def get_grad_norm(self, critic: Any) -> float:
        return 7.0 * critic.steps

    def is_rank_0(self) -> bool:
        return False

    def all_reduce(self, data: Any, op: str = "mean") -> Any:
        return data


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_figures_do_not_depend_on_micro_batches(micro: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over tokens: OpenRLHF takes means over micro-batches, of the gradient's norm too."""
    trainer: Any = AdaCriticTrainer.__new__(AdaCriticTrainer)
    trainer.strategy, trainer.critic, trainer.critic_loss_fn = Strategy(micro), Critic(), ValueLoss()
    trainer.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=False),
        ds=SimpleNamespace(tensor_parallel_size=2),  # OpenRLHF does not shuffle then
        actor=SimpleNamespace(aux_loss_coef=0.0),
    )
    trainer.max_epochs, trainer.dataloader_pin_memory, trainer.aux_loss, trainer.critic_optim = 1, False, False, None
    trainer.critic_scheduler = SimpleNamespace(get_last_lr=lambda: [0.5**trainer.critic.steps])
    trainer._finite = SimpleNamespace(step=lambda _: nullcontext())
    trainer.replay_buffer = NaiveReplayBuffer(sample_batch_size=micro)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    lengths = [1, 9, 2, 3, 30, 1, 1, 4]
    for length in lengths:
        tokens = torch.full((1, length + 1), length)
        shown, zeros = torch.ones_like(tokens), torch.zeros(1, length)
        fields = {"sequences": tokens, "attention_mask": shown, "action_mask": shown[:, 1:], "values": zeros}
        trainer.replay_buffer.append(Experience(**fields, returns=zeros))
    values = np.repeat([length + step for step, of in enumerate((lengths[:4], lengths[4:])) for length in of], lengths)
    assert trainer.ppo_train() == pytest.approx(
        {"values": values.mean(), "critic_loss": (values**2).mean() / 2, "critic_lr": 0.25, "critic_grad_norm": 14.0}
    )


def test_weights_pass_through_the_hosts_replay_buffer() -> None:
    """Batches are split into samples, their padding removed, shuffled and batched again: the weights go with them."""
    buffer = NaiveReplayBuffer(sample_batch_size=2)
    length = torch.tensor([3.0, 4.0, 5.0])
    attention = torch.arange(6).expand(3, 6) < length.unsqueeze(1)
    buffer.append(
        Experience(
            sequences=torch.arange(18).reshape(3, 6),
            attention_mask=attention.long(),
            action_mask=attention[:, 1:],
            returns=torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 5).clone(),
            total_length=length,
            info={CRITIC_WEIGHT: torch.tensor([0.25, 0.5, 1.75])},
        )
    )
    batch = buffer.collate_fn([buffer[2], buffer[0]])
    assert critic_weights(batch).tolist() == [1.75, 0.25]
    assert [row[mask].tolist() for row, mask in zip(batch.returns, batch.action_mask, strict=True)] == [
        [3.0] * 4,
        [1.0] * 2,
    ]
    assert critic_weights(batch.to_device(torch.device("cpu"))).shape == (2,)
