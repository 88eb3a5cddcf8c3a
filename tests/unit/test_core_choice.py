"""Which prompts are taken: exact chances, nothing lost, nothing starved, the same after a resume."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from openrlhf_ada.core import choice as choice_module
from openrlhf_ada.core.choice import MOST_EPOCHS, Choice, PromptChooser, chances, systematic
from openrlhf_ada.core.criteria import CHOICES, LEAST_VALUE, of_rates
from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.core.visits import VisitHistory

VALUES = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 20.0])


class Known:
    """Rates that are known without doubt."""

    def __init__(self, rates: ArrayLike) -> None:
        self.rates = np.asarray(rates, dtype=np.float64)

    def draw(self, rows: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
        return self.rates[np.asarray(rows)]


def chooser_of(num_rows: int, candidates: int, seed: int, *rates: Any, **options: Any) -> PromptChooser:
    visits = VisitHistory(0.5) if candidates > 1 else None
    return PromptChooser(num_rows, candidates, np.random.default_rng(seed), *(rates or (None,)), visits, **options)


def pool_of(row: int, outcomes: Sequence[float], tokens: int = 1) -> PromptPool:
    return PromptPool(0, [Sample(0, i, score, score, tokens) for i, score in enumerate(outcomes)], row=row)


def rows_of(choices: Sequence[Choice]) -> list[int]:
    return [choice.row for choice in choices]


def counts(half_life: float = 50.0) -> PassRateCounts:
    return PassRateCounts(half_life, prior_mean=0.5, prior_strength=2.0, give_up=0)


# -- chances and the draw ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 5, 6])
def test_chances_are_proportional_up_to_one(count: int) -> None:
    found = chances(VALUES, count)
    assert found.sum() == pytest.approx(count)
    free = found < 1.0
    if not free.any():
        assert count == len(VALUES)
        return
    scale = (found[free] / VALUES[free])[0]
    assert found[free] == pytest.approx(scale * VALUES[free], rel=1e-12)
    assert (scale * VALUES[~free] >= 1.0).all(), "one that is certain would get more than 1 in proportion"


def test_each_is_taken_with_its_chance_and_none_twice() -> None:
    """Every order and start of the systematic draw, enumerated: 6! orders, and starts between all edges."""
    chance = chances(np.array([0.1, 0.3, 0.3, 0.7, 1.0, 5.0]), 3)
    taken = np.zeros(6)
    for order in itertools.permutations(range(6)):
        edges = np.cumsum(chance[list(order)])
        cuts = np.unique(np.concatenate([[0.0, 1.0], edges % 1.0]))
        for low, high in itertools.pairwise(cuts):
            found = systematic(chance, Scripted(order, (low + high) / 2))
            assert len(set(found.tolist())) == 3
            taken[found] += (high - low) / 720
    assert taken == pytest.approx(chance, abs=1e-9)


class Scripted:
    """A generator that gives this order and this number."""

    def __init__(self, order: Sequence[int], number: float) -> None:
        self.order, self.number = order, number

    def permutation(self, size: int) -> NDArray[np.int64]:
        assert size == len(self.order)
        return np.array(self.order)

    def random(self) -> float:
        return self.number


# -- the queue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidates", [1, 2, 4])
def test_every_prompt_is_considered_once_in_a_pass(candidates: int) -> None:
    """Rows of chance 1 (as many as are taken) and of the least chance: the pass holds each row once."""
    chooser = chooser_of(64, candidates, 0, Known(np.full(64, 0.5)))
    considered: list[int] = []
    for _ in range(64 // (4 * candidates) * 3):
        before = set(chooser.state_dict()["waiting"]) or set(range(64))
        chooser.take(4)
        considered += before - set(chooser.state_dict()["waiting"])
    assert set(Counter(considered).values()) == {3}


@pytest.mark.parametrize(("rows", "candidates", "count"), [(10, 2, 4), (10, 2, 5), (11, 3, 3), (7, 1, 3)])
def test_no_batch_has_a_prompt_twice_over_passes(rows: int, candidates: int, count: int) -> None:
    chooser = chooser_of(rows, candidates, 0, Known(np.full(rows, 0.5)))
    taken: Counter[int] = Counter()
    for _ in range(400):
        batch = rows_of(chooser.take(count))
        assert len(set(batch)) == count
        taken.update(batch)
    mean = 400 * count / rows
    assert all(0.7 * mean < taken[row] < 1.3 * mean for row in range(rows)), "those left at a pass's end are not lost"


def test_avoided_rows_keep_their_place() -> None:
    chooser, same = (chooser_of(8, 1, 0) for _ in range(2))
    order = rows_of(same.take(8))
    assert rows_of(chooser.take(3, avoid=order[:2])) == order[2:5]
    assert rows_of(chooser.take(5)) == order[:2] + order[5:]


def test_fewer_candidates_where_few_are_left() -> None:
    """3 rows are not avoided, and 2 of them are taken: a mean chance of 2/3, not 1/4."""
    chooser = chooser_of(8, 4, 0, Known(np.full(8, 0.5)))
    chosen = chooser.take(2, avoid=range(5))
    assert set(rows_of(chosen)) < {5, 6, 7}
    assert [c.chance for c in chosen] == pytest.approx([2 / 3] * 2)
    with pytest.raises(ValueError, match=r"\b4 prompts\b.*\b3 of 8\b"):
        chooser.take(4, avoid=range(5))


def test_candidates_need_rates() -> None:
    with pytest.raises(ValueError, match="pass rates"):
        chooser_of(8, 2, 0).take(2)


def test_mixed_prompts_are_taken_as_often_as_their_value_says() -> None:
    """Half of 40 prompts have value 1, half the least value: with C = 4, 10 : 1 in chance."""
    chooser = chooser_of(40, 4, 0, Known(np.repeat([0.5, 1.0], 20)))
    taken = Counter(row < 20 for _ in range(2000) for row in rows_of(chooser.take(5)))
    assert taken[False] / taken.total() == pytest.approx(LEAST_VALUE / (1.0 + LEAST_VALUE), abs=0.01)


def test_figures_of_a_step() -> None:
    chooser = chooser_of(4, 1, 0)
    first = rows_of(chooser.take(2))
    rest = {"ada/choice_chance": 1.0}
    assert chooser.end_step([]) == {"ada/coverage": 0.5, "ada/prompt_age": 0.5, "ada/prompt_age_max": 1.0} | rest
    assert not set(first) & set(rows_of(chooser.take(2)))
    assert chooser.end_step([]) == {"ada/coverage": 1.0, "ada/prompt_age": 0.5, "ada/prompt_age_max": 1.0} | rest
    assert chooser.end_step([]) == {"ada/coverage": 1.0, "ada/prompt_age": 1.5, "ada/prompt_age_max": 2.0} | rest


# -- a resume ---------------------------------------------------------------------------------------------------------


def steps(chooser: PromptChooser, memory: PassRateCounts, first: int, last: int) -> list[list[Choice]]:
    batches: list[list[Choice]] = []
    for step in range(first, last):
        batch = chooser.take(3)
        extra = chooser.take(1, avoid=rows_of(batch))
        batches.append(batch + extra)
        rows = rows_of(batches[-1])
        right = [row * step % 5 for row in rows]
        memory.observe(rows, [4] * 4, right)
        chooser.end_step(
            [pool_of(row, [1] * k + [0] * (4 - k), 5 + 2 * row) for row, k in zip(rows, right, strict=True)]
        )
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES)
def test_resumed_chooser_takes_the_same_prompts(name: str) -> None:
    memory = counts()
    chooser = chooser_of(17, 3, 5, memory, value=name)
    whole = steps(chooser, memory, 0, 16)
    for cut in range(16):
        memory = counts()
        chooser = chooser_of(17, 3, 5, memory, value=name)
        steps(chooser, memory, 0, cut)
        # As text, which a checkpoint may be.
        states = json.loads(json.dumps([chooser.state_dict(), memory.state_dict()]))
        memory = counts()
        chooser = chooser_of(17, 3, 99, memory, value=name)
        chooser.load_state_dict(states[0])
        memory.load_state_dict(states[1])
        assert steps(chooser, memory, cut, 16) == whole[cut:], f"stopped after step {cut}"


def test_state_of_an_earlier_version_is_refused() -> None:
    chooser = chooser_of(9, 2, 0)
    state = chooser.state_dict()
    with pytest.raises(ValueError, match=r"saved visits of prompts lack run: start without the checkpoint"):
        chooser.load_state_dict(state | {"visits": {k: v for k, v in state["visits"].items() if k != "run"}})
    del state["visits"]
    with pytest.raises(ValueError, match=r"queue of prompts lacks visits: start without the checkpoint"):
        chooser.load_state_dict(state)


def test_state_of_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"queue is of 8 prompts, and the data set has 9; resume with the same data"):
        chooser_of(9, 2, 0).load_state_dict(chooser_of(8, 2, 0).state_dict())


# -- nothing starves --------------------------------------------------------------------------------------------------

EASY, HARD = 96, 32
"""Prompts that can be learned at once, and prompts that can be learned only once the others are."""


class Greedy:
    """Takes the prompts of the largest value at their mean pass rate, as samplers without exploration do."""

    def __init__(self, memory: PassRateCounts) -> None:
        self.memory = memory

    def take(self, count: int) -> list[Choice]:
        values = CHOICES["std"].function(of_rates(self.memory.predict(range(EASY + HARD))))
        return [Choice(int(row)) for row in np.argsort(-values, kind="stable")[:count]]

    def end_step(self, pools: Sequence[PromptPool]) -> object: ...


def train(chooser: PromptChooser | Greedy, memory: PassRateCounts, num_steps: int) -> tuple[NDArray[np.float64], int]:
    """(final pass rates of the easy and the hard prompts, visits of hard prompts in the first 100 steps).

    8 rollouts teach in proportion to the spread of their outcomes. Hard prompts are never right until easy ones are
    in 6 of 10 rollouts, and in 1 of 20 from then on. Easy ones stay mixed: they are never right in more than 7 of 10.
    """
    rng = np.random.default_rng(1)
    skill = np.array([0.1, 0.0])
    kind = np.repeat([0, 1], [EASY, HARD])
    hard_visits = 0
    for step in range(num_steps):
        if skill[0] > 0.6:
            skill[1] = max(skill[1], 0.05)
        rows = np.array(rows_of(chooser.take(8)))
        right = rng.binomial(8, skill[kind[rows]])
        spread = np.bincount(kind[rows], weights=np.sqrt(right * (8 - right)) / 4, minlength=2)
        skill = np.minimum(skill + 0.02 * spread * skill * (1.0 - skill), [0.7, 0.9])
        memory.observe(rows, np.full(8, 8), right)
        chooser.end_step([pool_of(row, [1] * k + [0] * (8 - k)) for row, k in zip(rows, right, strict=True)])
        hard_visits += int((kind[rows] == 1).sum()) if step < 100 else 0
    return skill, hard_visits


def longest_wait(candidates: int, hopeless: float) -> float:
    """Epochs, over 60 of them, of 512 prompts of which a share looks worthless whatever happens."""
    rows, batch, epochs = 512, 32, 60
    rates = np.where(np.arange(rows) < hopeless * rows, 0.0, 0.5)
    chooser = chooser_of(rows, candidates, 0, Known(rates))
    waits = [0.0]
    for _ in range(epochs * rows // batch):
        chooser.take(batch)
        waits.append(chooser.end_step([])["ada/prompt_age_max"] * batch / rows)
    return max(waits)


@pytest.mark.slow
@pytest.mark.parametrize(("candidates", "hopeless"), [(2, 0.1), (4, 0.1), (4, 0.5), (4, 0.95)])
def test_no_prompt_waits_much_longer_than_20_epochs(candidates: int, hopeless: float) -> None:
    assert longest_wait(candidates, hopeless) <= MOST_EPOCHS + 2


@pytest.mark.slow
def test_chance_alone_would_let_some_wait_much_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_module, "MOST_EPOCHS", 1e9)
    assert longest_wait(4, 0.1) > 30


@pytest.mark.slow
def test_prompts_that_become_learnable_late_are_learned() -> None:
    """The trap of public report marin-community/marin#8765: an adaptive sampler left a bin of prompts at a pass rate
    of 0.000 that uniform sampling raised to 0.891.
    """
    memory = counts()
    ours, visits = train(chooser_of(EASY + HARD, 4, 0, memory), memory, 400)
    memory = counts(half_life=1e9)
    greedy, _ = train(Greedy(memory), memory, 400)
    uniform, uniform_visits = train(chooser_of(EASY + HARD, 1, 0), counts(), 400)
    assert greedy[0] > 0.6 and greedy[1] < 0.06, "the trap: learnable by now, and not looked at"
    assert uniform[1] > 0.85 and ours[1] > 0.85
    # The stated rate, while they look hopeless: a tenth of the visits of uniform sampling.
    assert visits >= LEAST_VALUE * uniform_visits


@pytest.mark.slow
def test_posterior_draws_alone_would_forget_a_hopeless_prompt() -> None:
    """What the test above protects from: without a least value and fading, chances of such prompts go to 0."""
    memory = counts(half_life=1e9)
    for _ in range(200):
        memory.observe(range(40), [8] * 40, [4] * 20 + [0] * 20)
    rng = np.random.default_rng(0)
    value = CHOICES["std"].function(of_rates(memory.draw(range(40), rng)))
    assert value[20:].mean() < LEAST_VALUE / 2
    chooser = chooser_of(40, 4, 0, memory)
    taken = Counter(row < 20 for _ in range(500) for row in rows_of(chooser.take(5)))
    assert taken[False] / taken.total() > 0.08
