"""A collapsed policy is told of at once, once, and a hard batch is not taken for one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openrlhf_ada.trainer.collapse import IN_TRAINING, CollapseWatch, chance_of_fall, surprisal


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def watch(notes: list[str]) -> CollapseWatch:
    return CollapseWatch(notes.append)


def test_a_large_step_that_scores_nothing_is_told_of_at_once(watch: CollapseWatch, notes: list[str]) -> None:
    watch.scores(IN_TRAINING, 0.45, 64)
    watch.scores(IN_TRAINING, 0.0, 64)
    (note,) = notes
    assert note.startswith("the answers of this step have 0.0% of the score, and 44% before: the policy may have")


def test_a_collapse_that_takes_a_few_steps_is_told_of(watch: CollapseWatch, notes: list[str]) -> None:
    """As a learning rate of 0.3 brought it about: nearly nothing, then nothing."""
    for mean in (0.45, 0.54, 0.006, 0.0):
        watch.scores(IN_TRAINING, mean, 32)
    assert len(notes) == 1


def test_a_policy_that_is_always_right_may_collapse_too(watch: CollapseWatch, notes: list[str]) -> None:
    for _ in range(1_000):
        watch.scores(IN_TRAINING, 1.0, 512)
    watch.scores(IN_TRAINING, 0.0, 512)
    assert len(notes) == 1


def test_a_policy_that_gets_slowly_worse_has_not_collapsed(watch: CollapseWatch, notes: list[str]) -> None:
    for step in range(200):
        watch.scores(IN_TRAINING, 0.5 * 0.97**step, 512)
    assert notes == []


@pytest.mark.parametrize("prompts", [1, 8, 32])
@pytest.mark.parametrize("right", [0, 1, 3])
def test_the_bound_is_above_the_exact_chance(prompts: int, right: int) -> None:
    """Of prompts that score 0 or 1; equal to it for none."""
    p = 0.4
    if right >= p * prompts:
        assert chance_of_fall(right / prompts, p, prompts) == 1.0
        return
    exact = sum(math.comb(prompts, k) * p**k * (1 - p) ** (prompts - k) for k in range(right + 1))
    bound = chance_of_fall(right / prompts, p, prompts)
    assert bound == pytest.approx(exact) if right == 0 else exact < bound < 1.0


def test_small_steps_add_up_and_are_told_of_once(watch: CollapseWatch, notes: list[str]) -> None:
    watch.scores(IN_TRAINING, 0.5, 8)
    told = []
    for _ in range(8):
        watch.scores(IN_TRAINING, 0.0, 8)
        told.append(len(notes))
    assert told[0] == 0 and told[-1] == 1
    assert watch.standing() == notes
    watch.scores(IN_TRAINING, 0.5, 8)
    assert watch.standing() == []
    for _ in range(8):
        watch.scores(IN_TRAINING, 0.0, 8)
    assert len(notes) == 2


def test_what_never_scored_has_not_collapsed(watch: CollapseWatch, notes: list[str]) -> None:
    for _ in range(50):
        watch.scores(IN_TRAINING, 0.0, 128)
    assert notes == []


def test_each_set_is_compared_with_itself(watch: CollapseWatch, notes: list[str]) -> None:
    """A hard held-out set that never scored is no collapse of an easy one."""
    watch.scores("held-out set easy", 0.9, 100)
    watch.scores("held-out set hard", 0.0, 100)
    assert notes == []
    watch.scores("held-out set easy", 0.0, 100)
    assert len(notes) == 1 and "held-out set easy" in notes[0]


def test_false_alarms_are_as_rare_as_stated() -> None:
    """A hundred thousand steps of a policy that stays as it is, on hard prompts: each step has no score with chance
    (1 - .1)^16 = .19, so a run of zeros is common, and an alarm is not."""
    notes: list[str] = []
    watch = CollapseWatch(notes.append)
    scores = np.random.default_rng(0).random((100_000, 16)) < 0.1
    for mean in scores.mean(axis=1):
        watch.scores(IN_TRAINING, float(mean), 16)
    # The mean of one step is above that of the policy now and then, so this is more than 10^-6 each.
    assert len(notes) < 20


def test_certainty_is_told_of_until_it_ends(watch: CollapseWatch, notes: list[str]) -> None:
    for nats in (0.7, 1e-5, 1e-6, 0.3, 1e-7):
        watch.surprisal(nats)
    assert len(notes) == 2 and notes[0].startswith("the policy is certain of every token (1e-05 nats per token)")


def test_without_tokens_there_is_no_surprisal() -> None:
    assert surprisal([]) is None


def test_surprisal_estimates_the_entropy() -> None:
    """Over tokens of a softmax that the tokens are drawn from, padding left out; 5 standard errors."""
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
    assert surprisal([batch]) == pytest.approx(entropy, abs=5 * deviation)
