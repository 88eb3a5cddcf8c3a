"""Ada-Est over many steps, on prompts that answer by coin flips: the budget, the drift, the hopeless, the resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from openrlhf_ada.core.estimators import Calibration, PassRateCounts
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Draw, Estimated, Memory, Policy
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.coin_flips import SimulatedStep, simulate

ROWS, BATCH = 128, 16


def make_policy(
    *,
    budget: float = 8,
    give_up: int = 64,
    half_life: float = 50,
    critic: bool = False,
    allocation: str = "inverse_sqrt",
) -> Estimated:
    memory = Memory(PassRateCounts(half_life, 0.5, 2.0, give_up), 0.5, Calibration(3) if critic else None)
    builder = GroupBuilder(Selection("all", 8, 0.5), "dr_grpo")
    return Estimated(budget, 2, 32, allocation, 0.02, builder, memory)


def epochs(steps: int, seed: int = 0) -> Iterator[Sequence[int]]:
    """Shuffled passes over all rows, in batches."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(ROWS)
        for start in range(0, ROWS, BATCH):
            if steps == 0:
                return
            steps -= 1
            yield order[start : start + BATCH].tolist()


class Drifting:
    """Pass rates of a model that learns: logits rise, by another pace for each prompt."""

    def __init__(self, *, per_100_steps: float, hopeless: float = 0.0, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.start = rng.normal(-1, 2, ROWS)
        self.pace = per_100_steps / 100 * rng.gamma(2, 0.5, ROWS)
        self.hopeless = rng.random(ROWS) < hopeless

    def __call__(self, step: int, rows: np.ndarray) -> np.ndarray:
        rates = 1 / (1 + np.exp(-(self.start + self.pace * step)[rows]))
        return np.where(self.hopeless[rows], 0.0, rates)


def run(policy: Policy, truth: Drifting, steps: int, seed: int = 0) -> list[SimulatedStep]:
    return list(simulate(policy, epochs(steps, seed), truth, seed))


# -- the budget -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ["inverse_sqrt", "inverse", "std", "odds", "uniform"])
@pytest.mark.parametrize("budget", [2, 8, 9.5, 32])
def test_budget_is_exact_in_every_step_and_bounds_hold(allocation: str, budget: float) -> None:
    policy = make_policy(budget=budget, allocation=allocation)
    for step in run(policy, Drifting(per_100_steps=1, hopeless=0.2), 12):
        drawn = [len(pool) for pool in step.pools]
        assert sum(drawn) == step.ledger.drawn == round(budget * BATCH)
        assert 2 <= min(drawn) <= max(drawn) <= 32


def test_first_visits_are_sampled_alike() -> None:
    (step,) = run(make_policy(), Drifting(per_100_steps=1), 1)
    assert {len(pool) for pool in step.pools} == {8}


@pytest.mark.slow
def test_hard_prompts_get_more() -> None:
    truth = Drifting(per_100_steps=0)
    steps = run(make_policy(), truth, 80)[40:]
    drawn = np.array([[len(pool), truth(0, np.array([pool.row]))[0]] for step in steps for pool in step.pools])
    hard, easy = drawn[drawn[:, 1] < 0.1, 0].mean(), drawn[drawn[:, 1] > 0.9, 0].mean()
    assert hard > 2 * easy


# -- the estimate, against the truth ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("per_100_steps", [0.0, 0.6])
def test_counts_beat_last_group_on_drifting_rates(per_100_steps: float) -> None:
    """Root mean square error of what is known before a visit; the figures are in docs/algorithms.md."""
    truth = Drifting(per_100_steps=per_100_steps)
    last: dict[int, float] = {}
    ours, last_group = [], []
    for number, step in enumerate(run(make_policy(), truth, 240)):
        for pool in step.pools:
            rate = float(truth(number, np.array([pool.row]))[0])
            if pool.row in last:
                ours.append((pool.predicted - rate) ** 2)
                last_group.append((last[pool.row] - rate) ** 2)
            last[pool.row] = float(pool.scores.mean())
    assert np.sqrt(np.mean(ours)) < 0.9 * np.sqrt(np.mean(last_group))


# -- hopeless prompts -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_unsolvable_prompts_do_not_use_up_the_budget(share: float) -> None:
    """Given up, they take the least number of rollouts; without that rule several times as much."""
    truth = Drifting(per_100_steps=0, hopeless=share)

    def share_of_rollouts(give_up: int) -> float:
        steps = run(make_policy(give_up=give_up, half_life=1000), truth, 160)[80:]
        pools = [pool for step in steps for pool in step.pools]
        return sum(len(p) for p in pools if truth.hopeless[p.row]) / sum(map(len, pools))

    actual = truth.hopeless.mean()
    assert share_of_rollouts(64) <= 0.5 * actual
    assert share_of_rollouts(0) > 1.5 * actual


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "share"), [(512, 0.2), (1024, 0.05)])
def test_unsolvable_prompts_take_quarter_of_their_share(rows: int, share: float) -> None:
    """16 and 32 steps: given up by the tenth visit, they get 2 rollouts at each, where the mean is 8."""
    rng = np.random.default_rng(1)
    rates = 1 / (1 + np.exp(-rng.normal(-1, 2, rows)))
    rates[rng.random(rows) < share] = 0.0
    episode, drawn = rows // 32, [[0, 0] for _ in range(12)]
    order = (batch.tolist() for _ in drawn for batch in rng.permutation(rows).reshape(episode, 32))
    for number, step in enumerate(simulate(make_policy(), order, lambda _, visited: rates[visited], seed=0)):
        for pool in step.pools:
            drawn[number // episode][int(rates[pool.row] > 0)] += len(pool)
    for unsolvable, others in drawn[9:]:
        assert unsolvable == 2 * (rates == 0).sum()
        assert unsolvable / (unsolvable + others) == pytest.approx(0.25 * (rates == 0).mean())


@pytest.mark.parametrize("steps_between", [1, 16, 64, 128, 256])
def test_visit_to_given_up_prompt_draws_the_minimum(steps_between: int) -> None:
    policy = make_policy()
    policy.memory.counts.observe([0], [64], [0])
    for _ in range(10):
        for _ in range(steps_between - 1):
            policy.memory.counts.observe([99], [8], [4])
        (action, *_) = policy.decide([PromptPool(key, row=key) for key in range(4)])
        assert action == Draw(0, 2)
        policy.memory.counts.observe([0], [2], [0])


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "visits"), [(0.1, 1 / (1 - 0.9**2)), (0.3, 1 / (1 - 0.7**2))])
def test_visits_until_solvable_prompt_is_revived(rate: float, visits: float) -> None:
    """5.3 visits of 2 rollouts at pass rate .1, and 2.0 at .3; then it is sampled like any other."""
    policy, rows = make_policy(), 256
    counts = policy.memory.counts
    counts.observe(range(rows), [64] * 128 + [8] * 128, [0] * 128 + [4] * 128)
    waited, away = np.zeros(128), set(range(128))
    batches = (list(range(rows)) for _ in range(200))
    for step in simulate(policy, batches, lambda _, visited: np.where(visited < 128, rate, 0.5), seed=0):
        waited[sorted(away)] += 1
        assert {len(step.pools[row]) for row in away} <= {2}
        away &= set(np.flatnonzero(counts.given_up(range(128))).tolist())
        if not away:
            break
    error = np.sqrt((visits - 1) * visits / 128)
    assert waited.mean() == pytest.approx(visits, abs=3 * error)


@pytest.mark.parametrize(("num_given_up", "theirs", "others"), [(12, {2}, {26}), (14, {4, 5}, {32}), (16, {8}, set())])
def test_given_up_prompts_fill_up_last(num_given_up: int, theirs: set[int], others: set[int]) -> None:
    """128 rollouts for 16 prompts, 2 to 32 each: what the solvable ones can take, the others do not get."""
    policy = make_policy()
    draws, positives = [64] * 16, [0] * num_given_up + [32] * (16 - num_given_up)
    policy.memory.counts.observe(range(16), draws, positives)
    actions = policy.decide([PromptPool(key, row=key) for key in range(16)])
    counts = [action.count for action in actions if isinstance(action, Draw)]
    assert sum(counts) == 128
    assert set(counts[:num_given_up]) == theirs
    assert set(counts[num_given_up:]) == others


def test_budget_is_spent_even_if_everything_was_given_up() -> None:
    truth = Drifting(per_100_steps=0, hopeless=1.0)
    for step in run(make_policy(), truth, 60):
        assert step.ledger.drawn == 8 * BATCH


@pytest.mark.slow
def test_prompt_that_becomes_solvable_is_found_again() -> None:
    """R11: at pass rate 0 for 100 steps, then 0.5: three of four visits find it, and then it gets its due."""

    def truth(step: int, rows: np.ndarray) -> np.ndarray:
        return np.where(rows < 8, 0.0 if step < 100 else 0.5, 0.5)

    drawn: dict[int, list[int]] = {}
    for number, step in enumerate(simulate(make_policy(half_life=20), epochs(240), truth, 0)):
        for pool in step.pools:
            if pool.row < 8:
                drawn.setdefault(number // 40, []).append(len(pool))
    assert np.mean(drawn[2]) < 8
    assert 6 < np.mean(drawn[5]) < 12


# -- a critic ---------------------------------------------------------------------------------------------------------


def test_true_critic_is_used_once_proven() -> None:
    steps = run(make_policy(critic=True), Drifting(per_100_steps=0), 20)
    used = [step.figures["ada/critic_in_use"] for step in steps]
    assert used[0] == 0.0
    assert used[-1] == 1.0
    assert steps[-1].figures["ada/critic_brier"] < steps[-1].figures["ada/prior_brier"]
    assert steps[-1].figures["ada/estimator_brier"] == steps[-1].figures["ada/critic_brier"]


def test_useless_critic_is_never_used() -> None:
    """Its figures are logged, and allocation goes by counts."""
    policy = make_policy(critic=True)
    for rows in epochs(30):
        pools = [PromptPool(key, row=row) for key, row in enumerate(rows)]
        for pool in pools:
            pool.critic_value = 1.0 - 0.01 * pool.row % 1
        figures = answer(policy, pools)
        assert figures["ada/critic_in_use"] == 0.0


def answer(policy: Estimated, pools: list[PromptPool]) -> dict[str, float]:
    """Everything comes out wrong."""
    for pool, action in zip(pools, policy.decide(pools), strict=True):
        assert isinstance(action, Draw)
        pool.add(Sample(pool.key, i, 0.0, 0.0, 1) for i in range(action.count))
    return policy.observe(pools)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_critic_without_a_finite_value_is_an_error(value: float | None) -> None:
    pool = PromptPool(0, row=7)
    pool.critic_value = value
    with pytest.raises(ValueError, match=r"critic's value of row 7 is .*--ada_estimator ema"):
        make_policy(critic=True).decide([pool])


# -- stopping and going on --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("critic", [False, True])
def test_resumed_equals_never_stopped(critic: bool) -> None:
    """Same predictions, same numbers of rollouts, same state, to the bit."""
    truth = Drifting(per_100_steps=1, hopeless=0.1)
    batches = list(epochs(60))
    whole = make_policy(critic=critic)
    list(simulate(whole, iter(batches[:30]), truth, seed=5))
    resumed = make_policy(critic=critic)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    goes_on = list(simulate(whole, iter(batches[30:]), truth, seed=6))
    again = list(simulate(resumed, iter(batches[30:]), truth, seed=6))
    for a, b in zip(goes_on, again, strict=True):
        assert [pool.predicted for pool in a.pools] == [pool.predicted for pool in b.pools]
        assert [len(pool) for pool in a.pools] == [len(pool) for pool in b.pools]
        assert a.groups == b.groups
        assert a.figures == b.figures
    assert whole.state_dict() == resumed.state_dict()


def test_state_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"estimated.* --ada_"):
        make_policy().load_state_dict({})
