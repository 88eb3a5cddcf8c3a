"""The whole path, not only the formula: a softmax policy whose expected parameter update is f'(p) grad p.

A table of logits answers with one token. Pools are drawn from it and stopped by the policies under test, tagged,
turned into advantages by AdaptiveExperienceMaker, and differentiated through OpenRLHF's PolicyLoss. The mean update
over many batches must equal the gradient of the objective within Monte-Carlo error (z-test per logit, fixed seeds).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import expected_weight, sequential
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from run_flags import settings_with

from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective, effective_weight
from openrlhf_ada.core.policies import Close, Draw, Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup
from openrlhf_ada.rollout.records import TaggedExperience, tagged_samples
from openrlhf_ada.trainer.experience_maker import AdaptiveExperienceMaker

pytestmark = pytest.mark.slow

LOGITS = torch.tensor([1.2, 0.3, -0.5, 0.0, 0.8, -1.0], dtype=torch.float64)
RIGHT = torch.tensor([0, 0, 1, 0, 0, 1], dtype=torch.float64)
PI = torch.softmax(LOGITS, 0)
P = float(PI @ RIGHT)
GRAD_P = (PI * (RIGHT - P)).numpy()

POOLS, BATCHES, N = 40, 60, 4
Z_LIMIT = 4.0
"""Six logits in each of a dozen cases: 1 in 250 to exceed it by chance, and the seeds are fixed."""


class TableMaker(AdaptiveExperienceMaker):
    """Without remote models: the log-probabilities come from the table."""

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        for experience in samples_list:
            experience.kl = torch.zeros_like(experience.action_mask, dtype=torch.float32)
            experience.action_log_probs = log_probs(LOGITS, experience)
        return samples_list


def log_probs(logits: torch.Tensor, experience: Experience) -> torch.Tensor:
    """Of the one token of each answer, shape (B, 1)."""
    return torch.log_softmax(logits, 0)[experience.sequences[:, 1:]]


def make_maker() -> TableMaker:
    advantage = SimpleNamespace(estimator="dr_grpo", gamma=1.0, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage),
        rollout=SimpleNamespace(micro_batch_size=64, n_samples_per_prompt=N),
        train=SimpleNamespace(dynamic_batch_enable=False),
        ada=settings_with(mode="seq", zeros="compute"),
        reward=SimpleNamespace(clip_range=(-10, 10)),
    )
    host: Any = SimpleNamespace(
        actor_model_group=None,
        critic_model_group=None,
        reward_model_group=None,
        initial_model_group=None,
        kl_ctl=FixedKLController(0.0),
        strategy=SimpleNamespace(args=args),
        tokenizer=SimpleNamespace(pad_token_id=0),
    )
    return TableMaker(host)


def answer(token: int) -> Experience:
    return Experience(
        sequences=torch.tensor([[0, token]]),
        attention_mask=torch.ones(1, 2, dtype=torch.long),
        action_mask=torch.ones(1, 1, dtype=torch.long),
        rewards=RIGHT[token].reshape(1).float(),
        total_length=torch.tensor([2.0]),
        info={},
    )


Trained = tuple[TrainingGroup, list[Experience]]


def drawn_by(policy: Sequential, key: int, rng: np.random.Generator) -> Trained:
    """One prompt, sampled until the policy closes it."""
    pool, tokens = PromptPool(key), []
    while True:
        (action,) = policy.decide([pool])
        if isinstance(action, Close):
            pool.predicted = P
            return policy.build(pool, rng), [answer(t) for t in tokens]
        extend(pool, tokens, action, rng)


def extend(pool: PromptPool, tokens: list[int], draw: Draw, rng: np.random.Generator) -> None:
    new = rng.choice(len(PI), size=draw.count, p=PI.numpy()).tolist()
    start = len(pool)
    pool.add(Sample(pool.key, start + i, float(RIGHT[t]), float(RIGHT[t]), 1) for i, t in enumerate(new))
    tokens += new


def update_of(batch: list[TaggedExperience], prompts: int) -> np.ndarray:
    """Direction of one gradient step on OpenRLHF's loss, per n samples of a prompt; shape (6,)."""
    logits = LOGITS.clone().requires_grad_()
    loss_fn = PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.2)
    total = torch.zeros((), dtype=torch.float64)
    for experience in make_maker().make_experience_batch(batch):
        loss, *_ = loss_fn(
            log_probs(logits, experience),
            experience.action_log_probs,
            experience.advantages,
            action_mask=experience.action_mask,
            batch_num_tokens=prompts * N,
        )
        total = total + loss
    total.backward()
    return -logits.grad.numpy()


def z_scores(draw: Callable[[int, np.random.Generator], Trained], weight: float) -> np.ndarray:
    """Of the mean update against `weight` x grad p, one per logit. Also makes sure that it could notice a quarter."""
    rng = np.random.default_rng(0)
    updates = []
    for _ in range(BATCHES):
        groups = [draw(key, rng) for key in range(POOLS)]
        updates.append(
            update_of(
                [s for group, answers in groups for s in tagged_samples(group, answers, lambda answer: answer)], POOLS
            )
        )
    error = np.std(updates, axis=0, ddof=1) / np.sqrt(BATCHES)
    largest = np.argmax(np.abs(GRAD_P))
    assert error[largest] < 0.08 * abs(weight * GRAD_P[largest]), "too few batches to tell"
    return (np.mean(updates, axis=0) - weight * GRAD_P) / error


EXITS = {"pos 2": (2, 0), "balance": (2, 2)}


@pytest.mark.parametrize(("name", "exit_name"), [("linear", "pos 2"), ("log", "pos 2"), ("sqrt", "balance")])
def test_stratum_updates_by_the_gradient_of_the_objective(name: str, exit_name: str) -> None:
    f = Objective(name)
    policy = sequential(
        *EXITS[exit_name], n=N, wave=4, cap=16, baseline="estimator", correction="stratum", objective=f
    )
    assert np.abs(z_scores(lambda key, rng: drawn_by(policy, key, rng), f.weight(P))).max() < Z_LIMIT


def test_mean_of_positives_follows_truncated_log_gradient() -> None:
    policy = sequential(1, 0, n=N, wave=4, cap=12, correction="positives", objective=Objective("log"))
    weight = (1 - (1 - P) ** 12) / P
    assert np.abs(z_scores(lambda key, rng: drawn_by(policy, key, rng), weight)).max() < Z_LIMIT


@pytest.mark.parametrize("exit_name", EXITS)
def test_published_code_updates_by_its_effective_weight(exit_name: str) -> None:
    """The identity itself: what enumeration says of the uncorrected builder is what the parameters see."""
    policy = sequential(*EXITS[exit_name], n=N, wave=4, cap=16)

    def weight_of(drawn: int, positives: int) -> float:
        pool = PromptPool(0, [Sample(0, i, float(i < positives), float(i < positives), 1) for i in range(drawn)])
        group = policy.build(pool, np.random.default_rng(0))
        return effective_weight(group.coefficients, [i < positives for i in group.indices], P, N)

    weight = expected_weight(policy.plan, P, weight_of)
    scores = z_scores(lambda key, rng: drawn_by(policy, key, rng), weight)
    assert np.abs(scores).max() < Z_LIMIT
    assert abs(weight - 1) > 0.15, "and it is not the linear objective's"


@pytest.mark.parametrize("correction", ["stratum", "paper"])
def test_unequal_est_groups_follow_log_gradient(correction: str) -> None:
    """Groups of 2, 4 and 6, all trained, decided before sampling. `paper` shares 1/p between number and gradient."""
    sizes = (2, 4, 6)
    # As if the priority of a prompt that gets 4 were 1/sqrt(p); these three get as many as chance has it.
    builder = GroupBuilder(
        Selection("all", N, 0.5), "dr_grpo", "critic", correction, Objective("log"), allocated=lambda p: p**-0.5
    )

    def draw(key: int, rng: np.random.Generator) -> Trained:
        pool, tokens = PromptPool(key), []
        extend(pool, tokens, Draw(key, sizes[key % 3]), rng)
        return builder.build(pool, rng, predicted=P), [answer(t) for t in tokens]

    sizes_of_batch = [sizes[key % 3] for key in range(POOLS)]
    share = 1.0 if correction == "stratum" else np.mean(sizes_of_batch) / N * P**0.5
    assert np.abs(z_scores(draw, share / P)).max() < Z_LIMIT
