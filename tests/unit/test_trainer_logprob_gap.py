"""Policy and engines must give a token the same probability (R16)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openrlhf_ada.trainer.logprob_gap import LogprobGap, LogprobGapError, check_gap, logprob_gap, surprisal


def micro_batch(policy: list[list[float]], engine: list[list[float]] | None, mask: list[list[int]]) -> Any:
    """Behind a first token, which is not compared."""
    policy, mask = [[-1.0, *row] for row in policy], [[1, *row] for row in mask]
    engine = None if engine is None else [[-1.0, *row] for row in engine]
    return SimpleNamespace(
        action_log_probs=torch.tensor(policy),
        rollout_log_probs=None if engine is None else torch.tensor(engine),
        action_mask=torch.tensor(mask),
        attention_mask=torch.tensor([[1, *of] for of in mask]),
    )


def test_gap_covers_sampled_tokens_of_all_micro_batches() -> None:
    """Feedback and padding are masked; micro-batches differ in width."""
    gap = logprob_gap(
        [
            micro_batch([[-1.0, -2.0, 9.0]], [[-1.5, -2.0, 0.0]], [[1, 1, 0]]),
            micro_batch([[-3.0], [-7.0]], [[-2.0], [0.0]], [[1], [0]]),
        ]
    )
    assert gap is not None
    assert (gap.mean, gap.maximum) == pytest.approx((0.5, 1.0))


def test_a_turns_first_token_is_not_compared_but_says_how_often_the_answer_would_end_there() -> None:
    """`min_tokens` 1 takes the end out of its choice: μ = π / (1 - π(end)). Here π(end) is 3/4 and 1/4."""
    batch = micro_batch([[-2.0, 0.0, -1.0, -2.0]], [[-2.0, 0.0, -1.0, -2.0]], [[1, 0, 1, 1]])
    batch.action_log_probs[0, [0, 3]] += torch.tensor([1 / 4, 3 / 4]).log()
    gap = logprob_gap([batch])
    assert gap is not None
    assert (gap.mean, gap.maximum, gap.ends_at_once) == pytest.approx((0, 0, 1 / 2))


def test_hidden_rollouts_have_no_gap() -> None:
    """--ada_zeros skip: the policy has not computed them."""
    hidden = micro_batch([[0.0]], [[-5.0]], [[1]])
    hidden.attention_mask[:] = 0
    gap = logprob_gap([micro_batch([[-1.0]], [[-1.5]], [[1]]), hidden])
    assert gap is not None and gap.mean == pytest.approx(0.5)
    assert logprob_gap([hidden]) is None


@pytest.mark.parametrize(("engine", "mask"), [(None, 1), ([[-1.0]], 0)])
def test_without_the_engines_figures_or_a_second_token_there_is_no_gap(engine: Any, mask: int) -> None:
    assert logprob_gap([micro_batch([[-1.0]], engine, [[mask]])]) is None


@pytest.mark.parametrize("mean", [1.01, math.nan, math.inf])
def test_a_gap_beyond_the_limit_ends_the_run(mean: float) -> None:
    check_gap(LogprobGap(1.0, 5.0), limit=1.0)
    with pytest.raises(LogprobGapError, match=r"differ by .* --ada_logprob_stop is 1: the engines' weights are not"):
        check_gap(LogprobGap(mean, 5.0), limit=1.0)


def test_without_tokens_there_is_no_surprisal() -> None:
    assert surprisal([], []) is None


def test_surprisal_estimates_the_entropy() -> None:
    """Over tokens of a softmax that the tokens are drawn from, padding left out; 5 standard errors. Rollouts count by
    their weights."""
    torch.manual_seed(0)
    log_probs = torch.log_softmax(torch.randn(50), 0)
    entropy = float(-(log_probs.exp() * log_probs).sum())
    tokens = torch.multinomial(log_probs.exp(), 40_000, replacement=True).reshape(400, 100)
    padding = torch.full((400, 20), -99.0)
    mask = torch.cat([torch.ones(400, 100), torch.zeros(400, 20)], dim=1).bool()
    batch = SimpleNamespace(
        action_log_probs=torch.cat([log_probs[tokens], padding], dim=1), action_mask=mask, attention_mask=mask
    )
    deviation = float(log_probs[tokens].std()) / math.sqrt(40_000)
    assert surprisal([batch], [torch.ones(400)]) == pytest.approx(entropy, abs=5 * deviation)
    weights = torch.zeros(400).index_fill(0, torch.tensor([3, 8]), 1.0)
    chosen = -log_probs[tokens[[3, 8]]].mean()
    assert surprisal([batch], [weights]) == pytest.approx(float(chosen), rel=1e-5)
