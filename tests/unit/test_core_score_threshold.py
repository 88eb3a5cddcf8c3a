"""Which raw scores are positive: fixed within a step, decided by earlier steps alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.core.score_threshold import ScoreThreshold, quantile_below_top

SCORES = st.lists(st.floats(-50, 50), min_size=1, max_size=40)
STEPS = st.lists(SCORES, min_size=1, max_size=8)
SHARES = st.floats(0.01, 0.99)


# -- the quantile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ordered", "share", "value"),
    [
        ([1, 2, 3, 4], 0.5, 2),  # 3 and 4 exceed it
        ([1, 2, 3, 4], 0.51, 3),
        ([1, 2, 3, 4], 0.75, 3),
        ([1, 2, 3, 4], 0.9, 3),  # 4 would be exceeded by nothing
        ([1, 2, 3, 4], 0.01, 1),
        (list(range(1, 11)), 0.7, 7),  # 0.7 x 10 is 7.000000000000001 in floats
        ([1, 1, 1, 5], 0.5, 1),
        ([1, 5, 5, 5], 0.5, 1),  # half cannot exceed one of three equal ones at the top: all three do
        ([0, 0, 1, 1, 1], 0.8, 0),  # a verifier's: as its own threshold
        ([2, 2, 2], 0.5, 2),  # no score is better than another
        ([7], 0.5, 7),
    ],
)
def test_quantile_by_hand(ordered: list[float], share: float, value: float) -> None:
    assert quantile_below_top(ordered, share) == value


@given(SCORES, SHARES)
def test_at_most_one_minus_quantile_exceeds_threshold(scores: list[float], share: float) -> None:
    ordered = sorted(scores)
    value = quantile_below_top(ordered, share)
    above = sum(score > value for score in ordered)
    assert value in ordered
    if ordered[0] == ordered[-1]:
        assert above == 0
        return
    assert above > 0
    ties_at_top = ordered.count(ordered[-1])
    assert above <= max((1 - share) * len(ordered) + 1e-6, ties_at_top)


# -- from step to step ----------------------------------------------------------------------------------------------


def test_first_step_uses_given_threshold_then_quantile() -> None:
    threshold = ScoreThreshold(start=0.5, quantile=0.5)
    assert [threshold.outcome(score) for score in (0.5, 0.51, -3.0)] == [0.0, 1.0, 0.0]
    assert threshold.observe([4.0, -2.0, 1.0, 3.0]) == {"ada/score_threshold": 0.5, "ada/raw_score_mean": 1.5}
    assert threshold.value == 1.0
    assert [threshold.outcome(score) for score in (1.0, 1.5)] == [0.0, 1.0]
    # Of -2, 1, 3, 4 and 8, 9: the third of six.
    assert threshold.observe([9.0, 8.0])["ada/score_threshold"] == 1.0
    assert (threshold.value, threshold.start) == (3.0, 0.5)


def test_without_a_quantile_it_stays() -> None:
    threshold = ScoreThreshold(start=-1.25)
    for scores in ([5.0, 6.0], [-9.0]):
        threshold.observe(scores)
    assert threshold.value == -1.25
    assert threshold.state_dict() == {}


def test_it_looks_back_so_many_steps() -> None:
    threshold = ScoreThreshold(start=0.0, quantile=0.5, window=2)
    for step in ([1.0, 2.0], [10.0, 20.0], [30.0, 40.0]):
        threshold.observe(step)
    assert threshold.value == 20.0


@given(STEPS, SHARES, st.integers(1, 4))
def test_a_step_never_decides_about_itself(steps: list[list[float]], share: float, window: int) -> None:
    """The threshold of step t is a function of the steps before t: other scores in t change later steps only."""
    threshold, other = (ScoreThreshold(0.0, share, window) for _ in range(2))
    for scores in steps[:-1]:
        threshold.observe(scores)
        other.observe(scores)
    assert threshold.observe(steps[-1])["ada/score_threshold"] == other.observe([999.0])["ada/score_threshold"]


@given(STEPS, SHARES)
def test_the_order_of_a_steps_scores_does_not_matter(steps: list[list[float]], share: float) -> None:
    forward, backward = (ScoreThreshold(0.0, share) for _ in range(2))
    for scores in steps:
        forward.observe(scores)
        backward.observe(scores[::-1])
    assert forward.value == backward.value
    assert forward.state_dict() == backward.state_dict()


def test_a_step_without_scores_is_an_error() -> None:
    with pytest.raises(ValueError, match="no scores"):
        ScoreThreshold(0.0, 0.5).observe([])


# -- the checkpoint -------------------------------------------------------------------------------------------------


@given(STEPS, STEPS, SHARES, st.integers(1, 4))
def test_a_run_that_resumes_has_the_same_thresholds(
    before: list[list[float]], after: list[list[float]], share: float, window: int
) -> None:
    straight = ScoreThreshold(0.0, share, window)
    for scores in before:
        straight.observe(scores)
    resumed = ScoreThreshold(0.0, share, window)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for scores in after:
        assert straight.observe(scores) == resumed.observe(scores)
    assert straight.value == resumed.value


@pytest.mark.parametrize(("quantile", "state"), [(0.5, {}), (None, {"recent": [[1.0]]})], ids=["lacks", "holds"])
def test_a_checkpoint_of_other_flags_is_refused(quantile: float | None, state: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="--ada_positive_quantile"):
        ScoreThreshold(0.0, quantile).load_state_dict(state)


def test_a_state_is_not_the_threshold_itself() -> None:
    """Asynchronous training keeps it while sampling goes on."""
    threshold = ScoreThreshold(0.0, 0.5)
    threshold.observe([1.0])
    state = threshold.state_dict()
    threshold.observe([2.0])
    assert state == {"recent": [[1.0]]}
