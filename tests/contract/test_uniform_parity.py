"""Uniform sampling through our classes equals OpenRLHF's own advantages, estimator by estimator.

What users may rely on: with wave = n = N_max (so every pool is exactly the trained group) the advantages of
group_norm, dr_grpo and rloo are OpenRLHF's. Where OpenRLHF normalises over the batch (gae, reinforce_baseline) ours
differ by exactly what trainer/experience_maker.py documents: no mean is subtracted.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from run_flags import settings_with

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.rollout.records import SampleTag, TaggedExperience
from openrlhf_ada.trainer.experience_maker import AdaptiveExperienceMaker

PROMPT, LONGEST = 3, 5
WIDTH = PROMPT + LONGEST - 1
"""Log-probabilities per sequence: every sample is padded to the longest."""


def make_args(estimator: str, n: int, **reward: Any) -> SimpleNamespace:
    advantage = {"estimator": estimator, "gamma": 1.0, "lambd": 0.9, "no_std_norm": False}
    return SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(**advantage)),
        rollout=SimpleNamespace(micro_batch_size=3, n_samples_per_prompt=n, batch_size=5, max_new_tokens=LONGEST),
        train=SimpleNamespace(dynamic_batch_enable=False),
        data=SimpleNamespace(max_len=64),
        ada=settings_with(mode="seq", zeros="compute"),
        reward=SimpleNamespace(**({"clip_range": (-10, 10), "overlong_buffer_len": None} | reward)),
    )


def make_makers(args: SimpleNamespace, kl_coef: float) -> tuple[RemoteExperienceMaker, AdaptiveExperienceMaker]:
    tokenizer = SimpleNamespace(pad_token_id=0)
    host = RemoteExperienceMaker(
        None, None, None, None, FixedKLController(kl_coef), SimpleNamespace(args=args), tokenizer
    )
    return host, AdaptiveExperienceMaker(host)


def make_batch(n: int, seed: int, constant: bool = False) -> list[TaggedExperience]:
    """Five groups of n samples with rewards in eighths and answers of 1..5 tokens; no tags yet."""
    rng = np.random.default_rng(seed)
    batch = []
    for key in range(5):
        for index in range(n):
            tokens = int(rng.integers(1, LONGEST + 1))
            reward = 0.125 if constant and key == 2 else float(rng.integers(0, 9)) / 8
            mask = torch.zeros(1, WIDTH, dtype=torch.bool)
            mask[0, PROMPT - 1 : PROMPT - 1 + tokens] = True
            attention = torch.zeros(1, WIDTH + 1, dtype=torch.long)
            attention[0, : PROMPT + tokens] = 1
            batch.append(
                TaggedExperience(
                    sequences=attention.clone(),
                    attention_mask=attention,
                    action_mask=mask,
                    rewards=torch.tensor([reward]),
                    scores=torch.tensor([reward]),
                    response_length=torch.tensor([tokens]),
                    total_length=torch.tensor([float(PROMPT + tokens)]),
                    info={"reward": torch.tensor([reward])},
                    tag=SampleTag(key, index, 0.0, 1.0),
                )
            )
    return batch


def tagged(batch: list[TaggedExperience], estimator: str, n: int) -> list[TaggedExperience]:
    """As our generator hands it over: pools of exactly n samples through the policy of wave = n = N_max."""
    policy = make_policy(resolve(AdaConfig(mode="seq", wave=n, max_samples=n), n=n, advantage=estimator, batch=1))
    out = []
    for start in range(0, len(batch), n):
        group = batch[start : start + n]
        key = group[0].tag.key
        pool = [Sample(key, i, float(s.scores[0]), float(s.rewards[0]), 1) for i, s in enumerate(group)]
        built = policy.build(PromptPool(key, pool), np.random.default_rng([0, key]))
        assert built.indices == tuple(range(n)), "nothing is left out and the order is OpenRLHF's"
        for sample, coefficient, weight in zip(group, built.coefficients, built.critic_weights, strict=True):
            assert weight == 1.0
            sample.tag = SampleTag(key, sample.tag.index, coefficient, weight)
            out.append(sample)
    return out


def computed(maker: RemoteExperienceMaker, batch: list[Any], seed: int) -> list[Experience]:
    """Split as the maker does, add what the models would compute (the same for both), compute advantages."""
    maker._tags = [getattr(sample, "tag", None) for sample in batch]
    experiences = maker.split_rollout_samples(batch)
    noise = torch.Generator().manual_seed(seed)
    for experience in experiences:
        shape = experience.action_mask.shape
        experience.kl = torch.randn(shape, generator=noise) * experience.action_mask
        experience.values = torch.rand(shape, generator=noise)
        experience.action_log_probs = torch.full(shape, -0.5)
    return maker.compute_advantages_and_returns(experiences)


def both(
    estimator: str, n: int, seed: int, kl_coef: float = 0.0, constant: bool = False, **reward: Any
) -> tuple[list[Experience], list[Experience]]:
    args = make_args(estimator, n, **reward)
    host, ours = make_makers(args, kl_coef)
    plain, batch = make_batch(n, seed, constant), make_batch(n, seed, constant)
    # OpenRLHF applies length penalties when it computes advantages, we apply them when a sample arrives.
    apply_length_penalties(batch, args)
    return computed(host, plain, seed), computed(ours, tagged(batch, estimator, n), seed)


def assert_equal(theirs: list[Experience], ours: list[Experience], *names: str) -> None:
    for a, b in zip(theirs, ours, strict=True):
        assert a.index == b.index
        for name in names:
            torch.testing.assert_close(getattr(b, name), getattr(a, name), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(b.info["return"], a.info["return"], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo"])
def test_advantages_are_the_hosts(estimator: str, n: int, kl_coef: float) -> None:
    for seed in range(5):
        theirs, ours = both(estimator, n, seed, kl_coef)
        assert_equal(theirs, ours, "advantages", "returns")
        assert any(e.advantages.abs().max() > 0.1 for e in ours)


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo"])
def test_advantages_are_the_hosts_with_length_penalties(estimator: str) -> None:
    """A penalty of 1/4 per token beyond the first: the baseline sees it in both."""
    for seed in range(5):
        theirs, ours = both(estimator, 4, seed, overlong_buffer_len=4.0, overlong_penalty_factor=1.0)
        assert_equal(theirs, ours, "advantages", "rewards")


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo"])
def test_constant_group_is_zero_in_both(estimator: str) -> None:
    theirs, ours = both(estimator, 4, 0, constant=True)
    assert_equal(theirs, ours, "advantages")
    assert all(e.advantages[row].abs().max() == 0 for e in ours for row, i in enumerate(e.index) if i // 4 == 2)


@pytest.mark.parametrize("estimator", ["gae", "reinforce_baseline"])
def test_whitened_advantages_differ_by_the_mean_only(estimator: str) -> None:
    """host = (a - mean) / std over tokens, ours = a / rms, with the same a; returns are the same."""
    for seed in range(5):
        theirs, ours = both(estimator, 4, seed, kl_coef=0.05)
        assert_equal(theirs, ours, "returns")
        mask = torch.cat([e.action_mask.flatten() for e in ours])
        host_values = torch.cat([e.advantages.flatten() for e in theirs])[mask]
        our_values = torch.cat([e.advantages.flatten() for e in ours])[mask]
        standardised = (our_values - our_values.mean()) / our_values.std(correction=0)
        torch.testing.assert_close(standardised, host_values, rtol=1e-5, atol=1e-5)
        assert float(our_values.pow(2).mean()) == pytest.approx(1.0, abs=1e-5)


def test_this_comparison_would_notice() -> None:
    """A group's coefficients moved by one place are not OpenRLHF's."""
    host, ours = make_makers(make_args("dr_grpo", 4), 0.0)
    batch = tagged(make_batch(4, 0), "dr_grpo", 4)
    shifted = copy.deepcopy(batch)
    for sample, other in zip(shifted, batch[1:] + batch[:1], strict=True):
        sample.tag = other.tag
    theirs = computed(host, make_batch(4, 0), 0)
    with pytest.raises(AssertionError):
        assert_equal(theirs, computed(ours, shifted, 0), "advantages")
