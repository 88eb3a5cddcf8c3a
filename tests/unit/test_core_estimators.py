"""Pass rates from counts: the formula, fading by step age, giving up and coming back, a state that resumes exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.core.estimators import Calibration, PassRateCounts, RewardMeans, brier, spread_of_rates


def make_counts(half_life: float = 10.0, mean: float = 0.5, strength: float = 2.0, give_up: int = 0) -> PassRateCounts:
    return PassRateCounts(half_life, mean, strength, give_up)


def idle(counts: PassRateCounts, steps: int) -> None:
    """Steps in which only other prompts are visited, at the prior's rate."""
    for _ in range(steps):
        counts.observe([99], [2], [1])


# -- the estimate -------------------------------------------------------------------------------------------------


def test_unseen_prompt_has_the_priors_mean() -> None:
    assert make_counts(mean=0.3).predict([0, 17]).tolist() == pytest.approx([0.3, 0.3])


def test_beta_counts_by_hand() -> None:
    """Prior 1/2 worth 2 rollouts, then 1 of 4: the population's mean is (1/2 x 2 + 1/4) / 3 = 5/12."""
    counts = make_counts(half_life=1e9)
    counts.observe([5], [4], [1])
    assert counts.population_mean == pytest.approx(5 / 12)
    assert counts.predict([5])[0] == pytest.approx((1 + 2 * 5 / 12) / (4 + 2))
    assert counts.predict([6])[0] == pytest.approx(5 / 12), "a prompt never seen counts as a typical one"


def test_evidence_halves_with_steps_not_with_visits() -> None:
    counts = make_counts(half_life=10)
    counts.observe([1], [8], [8])
    fresh = counts.predict([1])[0]
    idle(counts, 9)
    mean = counts.population_mean
    assert counts.predict([1])[0] == pytest.approx((4 + 2 * mean) / (4 + 2))
    idle(counts, 1000)
    assert counts.predict([1])[0] == pytest.approx(counts.population_mean, abs=1e-9)
    assert fresh > counts.predict([1])[0]


def test_draws_are_of_the_beta_posterior() -> None:
    """Mean as predicted, variance of Beta(a, b): narrow where much was seen, and wide again as counts fade."""
    counts = make_counts(half_life=10)
    counts.observe([1], [8], [8])
    rng = np.random.default_rng(0)
    for steps in (0, 10, 100):
        idle(counts, steps)
        mean = counts.predict([1])[0]
        size = 8 * 0.5 ** ((counts.step - 0) / 10) + 2
        draws = counts.draw([1] * 40_000, rng)
        assert draws.mean() == pytest.approx(mean, abs=0.01)
        assert draws.var() == pytest.approx(mean * (1 - mean) / (size + 1), rel=0.05)
        assert (draws >= 0).all() and (draws <= 1).all()


def test_population_mean_weighs_every_visit_alike() -> None:
    """A hard prompt that drew ten times as much must not pull the mean down ten times as hard."""
    counts = make_counts(half_life=1e9, strength=1e-9)
    counts.observe([0, 1], [40, 4], [0, 4])
    assert counts.population_mean == pytest.approx(0.5)


def test_row_twice_in_a_step_counts_both_visits() -> None:
    once, twice = make_counts(), make_counts()
    once.observe([3, 4], [8, 8], [3, 1])
    twice.observe([3, 3, 4], [4, 4, 8], [1, 2, 1])
    assert twice.state_dict()["draws"] == once.state_dict()["draws"]
    assert twice.state_dict()["positives"] == once.state_dict()["positives"]


visits = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.floats(0, 1)), min_size=1, max_size=6), max_size=12
)


def feed(counts: PassRateCounts, steps: list[list[tuple[int, int, float]]]) -> None:
    for step in steps:
        rows, draws, shares = zip(*step, strict=True)
        counts.observe(rows, draws, [int(n * share) for n, share in zip(draws, shares, strict=True)])


@given(visits)
def test_estimates_are_pass_rates(steps: list[list[tuple[int, int, float]]]) -> None:
    counts = make_counts(give_up=30)
    feed(counts, steps)
    rates = counts.predict(range(25))
    assert ((rates > 0) & (rates < 1)).all()


@pytest.mark.slow
@given(visits, visits)
def test_saved_and_loaded_equals_never_stopped_to_the_bit(
    before: list[list[tuple[int, int, float]]], after: list[list[tuple[int, int, float]]]
) -> None:
    """Through JSON, so plain numbers only."""
    whole, resumed = make_counts(give_up=30), make_counts(give_up=30)
    feed(whole, before)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    feed(whole, after)
    feed(resumed, after)
    rows = range(25)
    assert (whole.predict(rows) == resumed.predict(rows)).all()
    assert (whole.given_up(rows) == resumed.given_up(rows)).all()
    assert whole.state_dict() == resumed.state_dict()


def test_earlier_state_is_converted_from_misses() -> None:
    """It saved the step of the last full look as well."""
    earlier = {
        "step": 7, "population": [3.0, 9.0], "rows": [2, 5], "draws": [70.0, 20.0], "positives": [0.0, 4.0],
        "seen_at": [6.0, 6.0], "misses": [70.0, 3.0], "gave_up_at": [1.0, -1.0],
    }  # fmt: skip
    counts = make_counts(give_up=64)
    counts.load_state_dict(earlier)
    assert counts.given_up([2, 5]).tolist() == [True, False]
    assert counts.state_dict() == {name: value for name, value in earlier.items() if name != "gave_up_at"}


def test_state_without_a_column_is_refused_by_name() -> None:
    state = make_counts().state_dict()
    del state["misses"]
    with pytest.raises(ValueError, match=r"\bmisses\b"):
        make_counts().load_state_dict(state)


@pytest.mark.parametrize(("draws", "positives"), [([0], [0]), ([4], [5]), ([4], [-1])])
def test_impossible_evidence_is_refused(draws: list[int], positives: list[int]) -> None:
    with pytest.raises(ValueError, match="draw"):
        make_counts().observe([0], draws, positives)


# -- giving up, without a state that absorbs ------------------------------------------------------------------------


def test_prompt_is_given_up_after_n_misses() -> None:
    counts = make_counts(give_up=16)
    counts.observe([0], [8], [0])
    assert not counts.given_up([0])[0]
    counts.observe([0], [8], [0])
    assert counts.given_up([0, 1]).tolist() == [True, False]


def test_one_positive_revives() -> None:
    counts = make_counts(give_up=8)
    counts.observe([0], [8], [0])
    assert counts.given_up([0])[0]
    counts.observe([0], [2], [1])
    assert not counts.given_up([0])[0]
    counts.observe([0], [7], [0])
    assert not counts.given_up([0])[0], "counted anew"


def test_no_number_of_steps_revives() -> None:
    """Nor does any make up for missing: misses are counted in visits, however far apart."""
    counts = make_counts(half_life=5, give_up=16)
    counts.observe([0], [8], [0])
    idle(counts, 100)
    assert counts.predict([0])[0] == pytest.approx(counts.population_mean, abs=1e-5), "what was counted has faded"
    counts.observe([0], [8], [0])
    for _ in range(100):
        assert counts.given_up([0])[0]
        idle(counts, 1)


def test_zero_never_gives_up() -> None:
    counts = make_counts(give_up=0)
    for _ in range(50):
        counts.observe([0], [32], [0])
    assert not counts.given_up([0])[0]


# -- is a critic better than nothing? -------------------------------------------------------------------------------


def test_brier_by_hand() -> None:
    """1 of 4 right, predicted 1/2: every outcome is 1/2 away. Predicted 1/4: (9/16 + 3/16) / 4."""
    assert brier([0.5], [4], [1]) == pytest.approx(0.25)
    assert brier([0.25], [4], [1]) == pytest.approx(3 / 16)
    assert brier([0.5, 0.25], [4, 4], [1, 1]) == pytest.approx((0.25 + 3 / 16) / 2), "every prompt counts the same"


def record(calibration: Calibration, *, better: bool) -> None:
    """One prompt, all right, predicted 0.9 or 0.1 where the mean says 1/2."""
    calibration.record([0.9 if better else 0.1], 0.5, [4], [4])


def test_critic_is_trusted_once_it_was_better_on_average() -> None:
    calibration = Calibration(window=3)
    for better in (False, True, True):
        assert not calibration.trusted
        record(calibration, better=better)
    assert not calibration.trusted, "0.81 - 0.25 lost once is more than 0.25 - 0.01 won twice"
    record(calibration, better=True)
    assert calibration.trusted


def test_critic_is_dropped_only_after_a_window_of_losses() -> None:
    calibration = Calibration(window=3, trusted=True)
    for better in (True, False, False):
        record(calibration, better=better)
        assert calibration.trusted
    record(calibration, better=False)
    assert not calibration.trusted


def test_calibration_resumes() -> None:
    calibration, resumed = Calibration(3), Calibration(3)
    for better in (True, False, True, True):
        record(calibration, better=better)
    resumed.load_state_dict(json.loads(json.dumps(calibration.state_dict())))
    assert resumed == calibration
    assert resumed.state_dict() == calibration.state_dict()


# -- what outcomes are worth ----------------------------------------------------------------------------------------


def test_reward_means_start_as_scores_and_follow_rewards() -> None:
    means = RewardMeans(half_life=1e9)
    assert (means.scale.negative, means.scale.positive) == (0.0, 1.0)
    means.observe(np.array([-1.0, -1.0, -0.5]), np.array([False, False, False]))
    assert means.scale.negative == pytest.approx(-5 / 6)
    assert means.scale.positive == 1.0, "never seen"
    means.observe(np.array([0.5]), np.array([True]))
    assert means.scale.positive == pytest.approx(0.5)


# -- how rates are spread ---------------------------------------------------------------------------------------------


def signal(rates: np.ndarray, samples: int) -> float:
    """Chance that so many rollouts of a prompt show both outcomes."""
    return float(np.mean(1 - rates**samples - (1 - rates) ** samples))


POPULATIONS = {
    "wide": lambda rng: rng.beta(0.6, 0.6, 20_000),
    "hard": lambda rng: rng.beta(0.5, 20.0, 20_000),
    "hopeless": lambda rng: np.where(rng.random(20_000) < 0.4, 0.0, rng.beta(1.0, 2.0, 20_000)),
}


@pytest.mark.parametrize("stops", [False, True], ids=["fixed", "until-right"])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_spread_of_rates_is_the_populations(name: str, stops: bool) -> None:
    """For as many rollouts as were drawn; beyond, no data say it. K / N of each prompt is further off."""
    rng = np.random.default_rng(0)
    rates = POPULATIONS[name](rng)
    outcomes = rng.random((len(rates), 8)) < rates[:, None]
    draws = np.where(outcomes.any(axis=1), outcomes.argmax(axis=1) + 1, 8) if stops else np.full(len(rates), 8)
    positives = np.array([row[:n].sum() for row, n in zip(outcomes, draws, strict=True)])
    found = spread_of_rates(positives, draws)
    assert found.shape == (1000,) and (np.diff(found) >= 0).all() and 0 <= found[0] <= found[-1] <= 1
    if stops:
        # Prompts that stop at once tell rates near 1 from each other no more.
        assert np.mean(found) == pytest.approx(rates.mean(), abs=0.03)
        return
    for samples in (2, 4, 8):
        assert signal(found, samples) == pytest.approx(signal(rates, samples), abs=0.025)
    assert abs(signal(positives / 8, 8) - signal(rates, 8)) > 2 * abs(signal(found, 8) - signal(rates, 8))


def test_prompts_without_draws_say_nothing_of_rates() -> None:
    assert (spread_of_rates([0, 3], [0, 4]) == spread_of_rates([3], [4])).all()
