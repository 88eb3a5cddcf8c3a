"""One finite log-probability of at most 0 per sampled token, or the rollout has no score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.messages import check_log_probs

Mutate = Callable[[dict[str, Any]], None]


def response() -> dict[str, Any]:
    """Two turns of an agent: two tokens of the prompt, three sampled, one of the environment, two sampled."""
    return {
        "observation_tokens": [5, 6, 7, 8, 9, 4, 3, 2],
        "action_ranges": [(2, 5), (6, 8)],
        "rollout_log_probs": [0.0, 0.0, -0.5, 0.0, -20.0, 0.0, -0.1, -1.0],
    }


def put(value: Any, position: int = 7) -> Mutate:
    return lambda answer: answer["rollout_log_probs"].__setitem__(position, value)


MUTANTS: dict[str, tuple[Mutate, str]] = {
    "none at all": (lambda r: r.update(rollout_log_probs=None), "without the log-probabilities"),
    "too few": (lambda r: r["rollout_log_probs"].pop(), "8 tokens have 7 log-probabilities"),
    "too many": (lambda r: r["rollout_log_probs"].append(-1.0), "8 tokens have 9 log-probabilities"),
    "not a number": (put(math.nan), "has the log-probability nan"),
    "minus infinity": (put(-math.inf), "has the log-probability -inf"),
    "infinity": (put(math.inf), "has the log-probability inf"),
    "a probability": (put(0.3), r"has the log-probability 0\.3"),
    "one missing": (put(None), "has the log-probability None"),
    "in the first turn": (put(1e-9, 2), "has the log-probability 1e-09"),
    "text": (put("-1"), "has the log-probability '-1'"),
    "tokens that are not there": (lambda r: r["action_ranges"].append((8, 9)), "8 tokens those from 8 to 9"),
    "a range backwards": (lambda r: r["action_ranges"].append((7, 6)), "8 tokens those from 7 to 6"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_breaks_the_contract_has_no_score(mutant: str) -> None:
    mutate, told = MUTANTS[mutant]
    answer = response()
    check_log_probs(answer, asked=True)
    mutate(answer)
    with pytest.raises(NoScoreError, match=told):
        check_log_probs(answer, asked=True)


def test_log_probs_are_needed_only_on_request() -> None:
    check_log_probs(response() | {"rollout_log_probs": None}, asked=False)


@given(st.lists(st.floats(max_value=0.0, allow_nan=False, allow_infinity=False), min_size=1))
def test_response_that_keeps_the_contract_passes(values: list[float]) -> None:
    tokens = [1] * len(values)
    answer = {"observation_tokens": tokens, "action_ranges": [(0, len(tokens))], "rollout_log_probs": values}
    check_log_probs(answer, asked=True)
