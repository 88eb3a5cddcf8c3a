"""Numbers of a step come from the pool or the first wave, never from the group that was selected by outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from documented import DOCUMENTED
from run_flags import settings_with

from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.types import Ledger, PromptPool, Sample
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.rollout.records import GroupRecord, StepRecord
from openrlhf_ada.trainer.step_metrics import first_wave_stats, ledger_metrics, rewarded_wrong, step_metrics

N = 2
Outcomes = Sequence[float]


def settings_of(mode: str = "seq", advantage: str = "dr_grpo", **flags: Any) -> Settings:
    plain: dict[str, Any] = {"exit": "balance", "wave": 2, "max_samples": 8} if mode == "seq" else {}
    return settings_with(n=N, advantage=advantage, mode=mode, **plain | flags)


def group_of(settings: Settings, key: int, outcomes: Outcomes, versions: Sequence[Any], trained: bool) -> GroupRecord:
    """Sample i is i + 1 tokens long and truncated from the third on."""
    samples = [
        Sample(key, i, o, o, i + 1, *(version if isinstance(version, tuple) else (version, version)))
        for i, (o, version) in enumerate(zip(outcomes, versions, strict=True))
    ]
    pool = PromptPool(key, samples, row=key)
    pool.predicted = 0.5 if settings.remembers else None
    return GroupRecord(
        row=key,
        prompt="",
        pool=pool,
        group=make_policy(settings).build(pool, np.random.default_rng(0)) if trained else None,
        truncated=[sample.index >= 2 for sample in samples],
        texts=[],
    )


def make_record(
    *pools: Outcomes,
    settings: Settings | None = None,
    replaced: Sequence[Outcomes] = (),
    versions: Sequence[Sequence[Any]] | None = None,
    figures: dict[str, float] | None = None,
) -> StepRecord:
    """One trained group per pool of outcomes, then one replaced prompt per pool of `replaced`."""
    settings = settings or settings_of()
    drawn_at = versions or [[0] * len(outcomes) for outcomes in (*pools, *replaced)]
    records = [
        group_of(settings, key, outcomes, drawn_at[key], trained=key < len(pools))
        for key, outcomes in enumerate((*pools, *replaced))
    ]
    ledger = Ledger()
    for record in records:
        ledger.record_group(record.pool.samples, () if record.group is None else record.group.indices)
    return StepRecord(records[: len(pools)], records[len(pools) :], ledger, figures or {})


def metrics_of(record: StepRecord, settings: Settings | None = None, version: int = 0) -> dict[str, Any]:
    return step_metrics(record, settings or settings_of(), version)


RESCUED, EASY, HOPELESS = (0, 0, 0, 0, 0, 0, 0, 1), (1, 0), (0,) * 8


def test_step_by_hand() -> None:
    """Three prompts, 18 rollouts, 6 of them trained. Uniform n = 2 would have had one mixed group of three."""
    metrics = metrics_of(make_record(RESCUED, EASY, HOPELESS))
    assert metrics["ada/prompts"] == 3
    assert metrics["ada/replaced"] == 0
    assert metrics["ada/rollouts_per_prompt"] == 6.0
    assert metrics["ada/metric_mean"] == metrics["ada/reward_mean"] == pytest.approx(2 / 18)
    assert metrics["ada/first_wave_metric_mean"] == pytest.approx(1 / 6)
    assert metrics["ada/signal_share"] == pytest.approx(2 / 3)
    assert metrics["ada/signal_share_uniform"] == pytest.approx(1 / 3)
    assert metrics["ada/resolved_share"] == pytest.approx(2 / 3)
    assert metrics["ada/draws_histogram"] == {"2": 1, "8": 2}
    assert metrics["ada/allocation_by_pass_rate"] == {
        "0": {"prompts": 1, "rollouts": 8},
        "0-0.2": {"prompts": 1, "rollouts": 8},
        "0.4-0.6": {"prompts": 1, "rollouts": 2},
    }


def test_wrong_rollouts_with_a_reward_are_counted() -> None:
    assert rewarded_wrong(make_record(RESCUED, EASY, HOPELESS).groups, 0.5) == 0.0
    assert rewarded_wrong(make_record((0.25, 1), (0, 0), EASY).groups, 0.5) == pytest.approx(1 / 6)


def test_ledger_is_recorded_in_every_mode() -> None:
    record = make_record(RESCUED, EASY, HOPELESS)
    assert ledger_metrics(record.ledger) == {
        "ada/drawn": 18,
        "ada/kept": 6,
        "ada/unused": 12,
        "ada/aborted": 0,
        "ada/drawn_tokens": 36 + 3 + 36,
        "ada/kept_tokens": record.ledger.kept_tokens,
        "ada/unused_tokens": 75 - record.ledger.kept_tokens,
        "ada/aborted_tokens": 0,
    }


def test_scores_that_a_program_could_have_forged_are_counted() -> None:
    record = make_record(EASY, EASY)
    grades = [TimedGrade(1.0, "", 0.5, forgeable=True), TimedGrade(0.0, "time limit", 1.5), None]
    groups = [replace(group, grades=grades[: 2 + at]) for at, group in enumerate(record.groups)]
    found = metrics_of(replace(record, groups=groups))
    assert (found["ada/forgeable"], found["ada/causes"]) == (2, {"time limit": 2})
    assert "ada/forgeable" not in metrics_of(record)


def test_replaced_prompts_are_drawn_but_not_trained() -> None:
    """Trained: rescued and easy. Replaced: hopeless, 8 rollouts. 10 + 8 rollouts of three prompts."""
    metrics = metrics_of(make_record(RESCUED, EASY, replaced=[HOPELESS]))
    assert (metrics["ada/prompts"], metrics["ada/replaced"]) == (2, 1)
    assert metrics["ada/rollouts_per_prompt"] == 9.0
    assert metrics["ada/metric_mean"] == pytest.approx(2 / 18)
    assert metrics["ada/signal_share"] == 1.0, "of what is trained"
    assert metrics["ada/signal_share_uniform"] == pytest.approx(1 / 3), "of what was sampled"
    assert metrics["ada/resolved_share"] == pytest.approx(2 / 3), "of what was sampled"
    assert "0" not in metrics["ada/effective_weight"], "nothing of it is trained"
    assert metrics["ada/allocation_by_pass_rate"]["0"] == {"prompts": 1, "rollouts": 8}


def test_first_wave_is_unbiased_for_the_policy() -> None:
    """Half of the trained samples are right by construction; of the first two of each prompt, one in six is."""
    for record in (make_record(RESCUED, EASY, HOPELESS), make_record(RESCUED, EASY, replaced=[HOPELESS])):
        stats = first_wave_stats(record, N)
        assert stats["rollout/reward_mean"] == pytest.approx(1 / 6)
        assert stats["rollout/reward_std"] == pytest.approx(np.std([0, 0, 1, 0, 0, 0], ddof=1))
        assert stats["rollout/response_length_mean"] == 1.5
        assert stats["rollout/truncated_rate"] == 0.0
        assert stats["rollout/num_samples"] == 6.0


def test_single_sample_has_no_spread() -> None:
    assert first_wave_stats(make_record((1, 0)), 1)["rollout/reward_std"] == 0.0


@pytest.mark.parametrize(
    ("outcomes", "flags", "largest"),
    [
        (RESCUED, {}, 7 / 8),
        (RESCUED, {"correction": "stratum", "baseline": "estimator", "objective": "linear"}, 1),
        ((1, 0, 0, 0), {}, 3 / 4),
        (HOPELESS, {}, 0),
    ],
)
def test_largest_coefficient_is_over_all_trained_samples(
    outcomes: Outcomes, flags: dict[str, Any], largest: float
) -> None:
    """1 of 8: the positive has 1 - 1/8. Stratum, prediction 1/2: the unbiased share s is 0, since the only positive
    came in the last wave, and the negative has (1 - s) x 2 / 1 x 1/2."""
    settings = settings_of(**flags)
    assert metrics_of(make_record(outcomes, HOPELESS, settings=settings), settings)["ada/coefficient_max"] == largest


def test_with_a_critic_signal_means_both_outcomes() -> None:
    """PPO's coefficients are weights and say nothing of signal."""
    ppo = settings_of(advantage="gae")
    assert metrics_of(make_record(EASY, HOPELESS, settings=ppo), ppo)["ada/signal_share"] == 0.5


@pytest.mark.parametrize("flags", [{"correction": "stratum"}, {"mode": "est"}, {"baseline": "estimator"}])
def test_with_a_prediction_signal_means_both_outcomes(flags: dict[str, Any]) -> None:
    """A hopeless prompt that was predicted at 1/2 has coefficients of -1/2: a gradient, and no signal."""
    predicting = settings_of(**flags)
    record = make_record((1, 0), HOPELESS, settings=predicting)
    assert any(record.groups[1].group.coefficients)  # type: ignore[union-attr]
    assert metrics_of(record, predicting)["ada/signal_share"] == 0.5


def test_uniform_sampling_of_one_is_no_comparison() -> None:
    """Until the first right answer, one at a time: a single rollout never shows two outcomes."""
    single = replace(settings_of(exit="pos", wave=1, select="all", baseline="none"), group_size=1)
    metrics = metrics_of(make_record([1.0], [0.0, 1.0], settings=single), single)
    assert metrics["ada/signal_share"] == metrics["ada/resolved_share"] == 0.5
    assert "ada/signal_share_uniform" not in metrics


# -- the weight of each pass rate ---------------------------------------------------------------------------------


def test_effective_weight_by_hand() -> None:
    """(C+/p + C-/(1 - p))/n with half a rollout of each kind more in p.

    Rescued, 1 of 8: p = 1.5/9; kept one of each with 7/8 and -1/8: (7/8 x 6 + 1/8 x 6/5)/2 = 2.7.
    Easy, 1 of 2: p = 1/2; 1/2 and -1/2: (1/2 x 2 + 1/2 x 2)/2 = 1. Hopeless: no coefficient, no weight.
    """
    weights = metrics_of(make_record(RESCUED, EASY, HOPELESS))["ada/effective_weight"]
    assert weights == {"0": 0.0, "0-0.2": pytest.approx(2.7), "0.4-0.6": pytest.approx(1.0)}


def test_effective_weight_is_mean_over_bin() -> None:
    weights = metrics_of(make_record(EASY, (1, 0), (1, 0, 1, 0)))["ada/effective_weight"]
    assert weights == {"0.4-0.6": pytest.approx(1.0)}


def test_effective_weight_in_ppo_assumes_perfect_critic() -> None:
    """Rescued with strata 1/4 and 7/4 on advantages 1 - p and -p: (1/4 x 7.5/1.5 + 7/4 x 1.5/7.5)/2 = 0.8."""
    ppo = settings_of(advantage="gae")
    weights = metrics_of(make_record(RESCUED, EASY, settings=ppo), ppo)["ada/effective_weight"]
    assert weights == {"0-0.2": pytest.approx(0.8), "0.4-0.6": pytest.approx(1.0)}


def test_stratum_weight_is_that_of_its_objective() -> None:
    """f' = 1/p of log at the pool's pass rate: 8 for the rescued prompt, 2 for the easy one (up to half rollouts)."""
    exact = settings_of(correction="stratum", baseline="pool")
    weights = metrics_of(make_record(RESCUED, EASY, settings=exact), exact)["ada/effective_weight"]
    rescued = 8 * (1 / 8) * (7 / 8) * (9 / 1.5 + 9 / 7.5)  # C+ = C- = 8 x 2 x 1/8 x 7/8
    assert weights == {"0-0.2": pytest.approx(rescued), "0.4-0.6": pytest.approx(2.0)}


# -- policy versions ----------------------------------------------------------------------------------------------


def test_synchronous_training_is_never_stale() -> None:
    metrics = metrics_of(make_record(EASY, HOPELESS, versions=[[7] * 2, [7] * 8]), version=7)
    assert metrics["ada/staleness_mean"] == 0.0


def test_staleness_is_mean_over_trained_prompts() -> None:
    """Trained on version 9: two rollouts are four updates old, two are three; the replaced prompt's do not count."""
    versions = [[5, 5], [6, 6], [0] * 8]
    record = make_record(EASY, (1, 0), replaced=[HOPELESS], versions=versions)
    metrics = metrics_of(record, version=9)
    assert metrics["ada/staleness_mean"] == pytest.approx((4 + 4 + 3 + 3) / 4)


# -- names and values ---------------------------------------------------------------------------------------------

FIGURES = {"ada/prior_brier": 0.25, "ada/estimator_brier": 0.2, "ada/given_up": 1.0}


def test_figures_of_the_policy_pass_through() -> None:
    metrics = metrics_of(make_record(EASY, figures=FIGURES))
    assert {name: metrics[name] for name in FIGURES} == FIGURES


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in numbers_in(inner)]
    return [float(value)]


CASES = {
    "seq": (settings_of(), [RESCUED, EASY, HOPELESS]),
    "seq, remembering": (settings_of(baseline="estimator"), [RESCUED, EASY, HOPELESS]),
    "est": (settings_of("est"), [(1, 0), (0, 0, 0), (1,) * 3]),
    "est with a critic": (settings_of("est", estimator="critic"), [(1, 0), (0, 0, 0), (1,) * 3]),
    "ppo": (settings_of(advantage="gae"), [RESCUED, EASY, HOPELESS]),
    "factor": (
        settings_of(baseline="estimator", correction="stratum", baseline_factor="least_noise"),
        [RESCUED, EASY],
    ),
    "all right": (settings_of(correction="stratum", baseline="pool"), [(1, 1), (1,) * 8]),
}


@pytest.mark.parametrize(("settings", "pools"), CASES.values(), ids=CASES)
def test_every_name_is_in_the_table_and_every_value_finite(settings: Settings, pools: list[Outcomes]) -> None:
    record = make_record(*pools, settings=settings)
    policy = make_policy(settings)
    for group in record.groups:
        group.pool.critic_value = 0.4
    figures = policy.observe([group.pool for group in record.groups])
    metrics = metrics_of(make_record(*pools, settings=settings, replaced=[(0, 0)], figures=figures), settings)
    for name, value in (metrics | ledger_metrics(record.ledger)).items():
        assert name in DOCUMENTED
        assert all(math.isfinite(number) for number in numbers_in(value)), name
