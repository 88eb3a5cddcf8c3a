"""Numbers of a step come from the pool or the first wave, never from the group that was selected by outcome."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openrlhf_ada.config import AdaConfig
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import Ledger, PromptPool, Sample
from openrlhf_ada.reporting.metrics import check_metric_name
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.samples_generator import GroupRecord, StepRecord
from openrlhf_ada.trainer.ppo_trainer import make_policy
from openrlhf_ada.trainer.step_metrics import first_wave_stats, step_metrics

N = 2


def make_record(*pools: Sequence[float], estimator: str = "dr_grpo") -> StepRecord:
    """One group per pool of 0/1 outcomes; sample i is i + 1 tokens long and truncated from the third on."""
    policy = Sequential(ExitRule(1, 1, 0.5), wave=2, max_samples=8, group_size=N, estimator=estimator)
    ledger, groups = Ledger(), []
    for key, outcomes in enumerate(pools):
        samples = [Sample(key, i, o, o, i + 1) for i, o in enumerate(outcomes)]
        group = policy.build(PromptPool(key, samples), np.random.default_rng(0))
        ledger.record_group(samples, group.indices)
        payloads = [
            SimpleNamespace(
                rewards=torch.tensor([s.reward]),
                response_length=torch.tensor([s.num_tokens]),
                truncated=torch.tensor([s.index >= 2]),
            )
            for s in samples
        ]
        groups.append(GroupRecord(PromptRequest(key, key, "", "", None), samples, group, payloads))
    return StepRecord(groups, ledger, num_rounds=4)


def metrics_of(record: StepRecord, *, critic: bool = False) -> dict:
    return step_metrics(record, group_size=N, threshold=0.5, critic_is_baseline=critic)


RESCUED, EASY, HOPELESS = (0, 0, 0, 0, 0, 0, 0, 1), (1, 0), (0,) * 8


def test_step_by_hand() -> None:
    """Three prompts, 18 rollouts, 6 of them trained. Uniform n = 2 would have had one mixed group of three."""
    metrics = metrics_of(make_record(RESCUED, EASY, HOPELESS))
    assert metrics["ada/prompts"] == 3
    assert (metrics["ada/drawn"], metrics["ada/kept"], metrics["ada/unused"]) == (18, 6, 12)
    assert metrics["ada/drawn_tokens"] == 36 + 3 + 36
    assert metrics["ada/rollouts_per_prompt"] == 6.0
    assert metrics["ada/rounds"] == 4
    assert metrics["ada/metric_mean"] == pytest.approx(2 / 18)
    assert metrics["ada/first_wave_metric_mean"] == pytest.approx(1 / 6)
    assert metrics["ada/signal_share"] == pytest.approx(2 / 3)
    assert metrics["ada/signal_share_uniform"] == pytest.approx(1 / 3)
    assert metrics["ada/resolved_share"] == pytest.approx(2 / 3)
    # Stratum factors: rescued (1 of 8 right, 1 of 2 kept) 1/4 and 7/4, the others 1.
    assert metrics["ada/stratum_factor_std"] == pytest.approx(np.std([1 / 4, 7 / 4, 1, 1, 1, 1]))


def test_first_wave_is_an_honest_picture_of_the_policy() -> None:
    """Half of the trained samples are right by construction; of the first two of each prompt, one in six is."""
    stats = first_wave_stats(make_record(RESCUED, EASY, HOPELESS), N)
    assert stats["rollout/reward_mean"] == pytest.approx(1 / 6)
    assert stats["rollout/reward_std"] == pytest.approx(np.std([0, 0, 1, 0, 0, 0], ddof=1))
    assert stats["rollout/response_length_mean"] == 1.5
    assert stats["rollout/truncated_rate"] == 0.0
    assert stats["rollout/num_samples"] == 6.0


def test_single_sample_has_no_spread() -> None:
    assert first_wave_stats(make_record((1, 0)), 1)["rollout/reward_std"] == 0.0


def test_with_a_critic_signal_means_both_outcomes() -> None:
    """PPO's coefficients are weights and say nothing of signal."""
    record = make_record(EASY, HOPELESS, estimator="gae")
    assert metrics_of(record)["ada/signal_share"] == 1.0
    assert metrics_of(record, critic=True)["ada/signal_share"] == 0.5


def test_every_metric_name_is_known() -> None:
    for name in metrics_of(make_record(EASY)):
        check_metric_name(name)


# -- the policy that the flags name -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ({}, ExitRule(2, 2, 0.5)),
        ({"exit": "pos"}, ExitRule(1, 0, 0.5)),
        ({"k_pos": 3, "k_neg": 1, "positive_threshold": 0.0}, ExitRule(3, 1, 0.0)),
    ],
)
def test_flags_become_the_policy(flags: dict, rule: ExitRule) -> None:
    policy = make_policy(AdaConfig(mode="seq", wave=3, max_samples=17, **flags), 4, "rloo")
    assert policy == Sequential(rule=rule, wave=3, max_samples=17, group_size=4, estimator="rloo")
