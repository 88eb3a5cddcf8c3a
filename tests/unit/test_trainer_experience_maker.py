"""R1 at OpenRLHF's boundary: advantages come from each sample's own group, however the batch is ordered and cut.

The real class and OpenRLHF's real splitting, KL penalty and returns; only the models' forward passes are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import pool_of, sequential
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from run_flags import settings_with

from openrlhf_ada.rollout.records import SampleTag, TaggedExperience
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT, AdaptiveExperienceMaker, critic_weights

UNSCALED = ("group_norm", "dr_grpo", "rloo")
"""Estimators whose advantages OpenRLHF does not normalise over the batch."""

N = 4
PROMPT_LENGTH = 2


class Maker(AdaptiveExperienceMaker):
    """Without models: equal log-probabilities, no KL, and values where a test gives some."""

    values: torch.Tensor | None = None
    kl: torch.Tensor | None = None

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        for experience in samples_list:
            experience.action_log_probs = torch.full(experience.action_mask.shape, -0.5)
            experience.kl = (
                torch.zeros_like(experience.action_mask, dtype=torch.float32) if self.kl is None else self.kl
            )
            experience.values = self.values
        return samples_list


def make_maker(estimator: str, *, micro_batch: int = 4, kl_coef: float = 0.0, **advantage: Any) -> Maker:
    args = SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(
                **({"estimator": estimator, "gamma": 1.0, "lambd": 1.0, "no_std_norm": False} | advantage)
            )
        ),
        ada=settings_with(mode="seq", zeros="compute"),
        rollout=SimpleNamespace(micro_batch_size=micro_batch, n_samples_per_prompt=N),
        train=SimpleNamespace(dynamic_batch_enable=False),
        reward=SimpleNamespace(clip_range=(-10, 10)),
    )
    host = SimpleNamespace(
        actor_model_group=None,
        critic_model_group=None,
        reward_model_group=None,
        initial_model_group=None,
        kl_ctl=FixedKLController(kl_coef),
        strategy=SimpleNamespace(args=args),
        tokenizer=SimpleNamespace(pad_token_id=0),
    )
    return Maker(host)


def make_sample(tag: SampleTag | None, reward: float = 0.0, tokens: int = 1) -> TaggedExperience:
    length = PROMPT_LENGTH + tokens
    mask = torch.zeros(1, length - 1, dtype=torch.bool)
    mask[0, PROMPT_LENGTH - 1 :] = True
    return TaggedExperience(
        sequences=torch.ones(1, length, dtype=torch.long),
        attention_mask=torch.ones(1, length, dtype=torch.long),
        action_mask=mask,
        rewards=torch.tensor([reward]),
        total_length=torch.tensor([float(length)]),
        info={"reward": torch.tensor([reward])},
        tag=tag,
    )


def make_group(key: int, rewards: Sequence[float], estimator: str) -> list[TaggedExperience]:
    """The trained group of a pool, sample i being i % 3 + 1 tokens long."""
    policy = sequential(1, 1, n=N, wave=4, cap=32, estimator=estimator)
    group = policy.build(pool_of(rewards, key), np.random.default_rng([0, key]))
    return [
        make_sample(SampleTag(key, i, c, w), rewards[i], tokens=i % 3 + 1)
        for i, c, w in zip(group.indices, group.coefficients, group.critic_weights, strict=True)
    ]


def advantages_of(maker: Maker, samples: list[TaggedExperience]) -> dict[tuple[int, int], list[float]]:
    """(key, index) -> the advantages of its response tokens."""
    tags = [s.tag for s in samples]
    result = {}
    for experience in maker.make_experience_batch(samples):
        for row, position in enumerate(experience.index):
            values = experience.advantages[row][experience.action_mask[row].bool()]
            assert torch.isfinite(experience.advantages).all()
            result[tags[position].key, tags[position].index] = values.tolist()
    return result


rewards_of_a_pool = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.35, 1 / 3, 1.0]), min_size=N, max_size=12)
batches = st.lists(rewards_of_a_pool, min_size=1, max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", UNSCALED)
@settings(max_examples=25)
@given(pools=batches, micro_batch=st.integers(1, 9), data=st.data())
def test_order_and_micro_batching_change_nothing(
    estimator: str, pools: list[list[float]], micro_batch: int, data: st.DataObject
) -> None:
    """Every token of a sample has the sample's coefficient, whoever stands next to it."""
    samples = [s for key, rewards in enumerate(pools) for s in make_group(key, rewards, estimator)]
    expected = {(s.tag.key, s.tag.index): s.tag.coefficient for s in samples}
    shuffled = data.draw(st.permutations(samples))
    result = advantages_of(make_maker(estimator, micro_batch=micro_batch), shuffled)
    assert result.keys() == expected.keys()
    for name, values in result.items():
        assert len(values) == name[1] % 3 + 1
        assert values == pytest.approx([expected[name]] * len(values), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("estimator", UNSCALED)
def test_another_group_changes_nothing(estimator: str) -> None:
    pools = {0: [1, 0, 0, 0, 0], 1: [1, 1, 1, 0], 2: [0.1] * 8, 3: [1 / 3, 1, 0, 0.35]}
    groups = {key: make_group(key, rewards, estimator) for key, rewards in pools.items()}
    together = advantages_of(make_maker(estimator), [s for g in groups.values() for s in g])
    for key, group in groups.items():
        alone = advantages_of(make_maker(estimator), list(group))
        assert alone == {name: values for name, values in together.items() if name[0] == key}
        without = advantages_of(make_maker(estimator), [s for k, g in groups.items() if k != key for s in g])
        assert without == {name: values for name, values in together.items() if name[0] != key}


@pytest.mark.parametrize("estimator", [*UNSCALED, "reinforce_baseline"])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.35, 1 / 3])
def test_constant_group_has_exactly_zero_advantage(estimator: str, reward: float) -> None:
    mixed, constant = make_group(0, [1, 0, 0, 0], estimator), make_group(1, [reward] * 8, estimator)
    result = advantages_of(make_maker(estimator), mixed + constant)
    assert all(v == 0.0 for name, values in result.items() if name[0] == 1 for v in values)
    assert any(v != 0.0 for name, values in result.items() if name[0] == 0 for v in values)


def test_batch_without_signal_is_zero() -> None:
    for estimator in (*UNSCALED, "reinforce_baseline"):
        maker = make_maker(estimator)
        result = advantages_of(maker, make_group(0, [0.1] * 4, estimator))
        assert set().union(*result.values()) == {0.0}


def test_sample_without_a_tag_is_an_error_not_a_guess() -> None:
    samples = [make_sample(SampleTag(0, 0, 1.0, 1.0)), make_sample(None)]
    with pytest.raises(ValueError, match="sample 1 of the batch carries no group tag"):
        make_maker("group_norm").make_experience_batch(samples)


# -- normalisation over the batch ---------------------------------------------------------------------------------


def test_whitening_divides_by_root_mean_square_only() -> None:
    """Coefficients 3/4 (1 token) and -1/4 (3 tokens): mean square over tokens (9/16 + 3/16) / 4 = 3/16."""
    samples = [make_sample(SampleTag(0, 0, 0.75, 1.0), tokens=1), make_sample(SampleTag(0, 1, -0.25, 1.0), tokens=3)]
    maker = make_maker("reinforce_baseline")
    result = advantages_of(maker, samples)
    scale = (3 / 16) ** -0.5
    assert maker.group_scale == pytest.approx(scale)
    assert result[0, 0] == pytest.approx([0.75 * scale])
    assert result[0, 1] == pytest.approx([-0.25 * scale] * 3)


def test_whitening_keeps_every_ratio() -> None:
    group, others = [1, 0, 0, 0, 0, 0], [[1, 1, 1, 1, 1, 0], [0.5, 0, 0, 0.3]]
    alone = advantages_of(make_maker("reinforce_baseline"), make_group(0, group, "reinforce_baseline"))
    batch = make_group(0, group, "reinforce_baseline")
    for key, rewards in enumerate(others, start=1):
        batch += make_group(key, rewards, "reinforce_baseline")
    together = advantages_of(make_maker("reinforce_baseline", micro_batch=5), batch)
    ratios = {values[0] / together[name][0] for name, values in alone.items()}
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-5)
    assert min(ratios) > 0


@pytest.mark.parametrize(("estimator", "options"), [("reinforce_baseline", {"no_std_norm": True}), ("rloo", {})])
def test_no_scale_where_the_host_has_none(estimator: str, options: dict[str, Any]) -> None:
    maker = make_maker(estimator, **options)
    assert advantages_of(maker, [make_sample(SampleTag(0, 0, 0.75, 1.0))]) == {(0, 0): [0.75]}
    assert maker.group_scale == 1.0


# -- rewards per token --------------------------------------------------------------------------------------------


def test_kl_penalty_is_the_hosts() -> None:
    """Coefficient 1 at the last of three tokens, KL .1 .2 .3 at 1/2: returns 1 - .05 - .1 - .15, then upwards."""
    maker = make_maker("dr_grpo", kl_coef=0.5)
    maker.kl = torch.tensor([[9.0, 0.1, 0.2, 0.3]])  # the first position is of the prompt and masked
    (experience,) = maker.make_experience_batch([make_sample(SampleTag(0, 0, 1.0, 1.0), tokens=3)])
    maker.kl = None
    assert experience.action_mask.tolist() == [[False, True, True, True]]
    assert experience.advantages[0, 1:].tolist() == pytest.approx([0.70, 0.75, 0.85])
    assert experience.kl is None, "OpenRLHF drops it, too: it is not trained on"
    assert experience.info["return"].shape == (1,)


def test_gae_uses_critic_and_coefficient_as_weight() -> None:
    """Values 1/2, 1/4; reward 1 at the end; gamma = lambda = 1: advantages 1/2 and 3/4, returns 1. Then weight 2."""
    maker = make_maker("gae", no_std_norm=True)
    maker.values = torch.tensor([[7.0, 0.5, 0.25]])
    (experience,) = maker.make_experience_batch([make_sample(SampleTag(0, 0, 2.0, 0.5), reward=1.0, tokens=2)])
    assert experience.returns[0, 1:].tolist() == [1.0, 1.0]
    assert experience.advantages[0, 1:].tolist() == [1.0, 1.5]
    assert experience.info["return"].tolist() == [1.0]


def test_length_penalties_are_not_applied_a_second_time() -> None:
    """They are in the rewards already (the pool's baseline needs them); this object has not even their flags."""
    maker = make_maker("gae", no_std_norm=True)
    maker.values = torch.zeros(1, 2)
    (experience,) = maker.make_experience_batch([make_sample(SampleTag(0, 0, 1.0, 1.0), reward=0.25)])
    assert experience.rewards.tolist() == [0.25]


# -- critic weights -----------------------------------------------------------------------------------------------


def test_critic_weights_stay_with_their_samples() -> None:
    samples = [make_sample(SampleTag(k, 0, 0.0, weight), tokens=k + 1) for k, weight in enumerate((0.5, 1.5, 1.0))]
    batches = make_maker("dr_grpo", micro_batch=2).make_experience_batch(samples)
    assert [b.info[CRITIC_WEIGHT].tolist() for b in batches] == [[0.5, 1.5], [1.0]]


def test_critic_weights_are_one_tensor_after_collation() -> None:
    scalars = SimpleNamespace(info={CRITIC_WEIGHT: [torch.tensor(0.5), torch.tensor(1.5)]})
    assert critic_weights(scalars).tolist() == [0.5, 1.5]
    assert critic_weights(SimpleNamespace(info={CRITIC_WEIGHT: torch.tensor([0.5])})).tolist() == [0.5]
