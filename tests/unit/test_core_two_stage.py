"""Two rounds with an exact budget (HORA): what is drawn, what that optimises, and a state that survives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.exact import extra_chances, pilot_chances, two_stage_weights
from openrlhf_ada.core.objectives import effective_weight
from openrlhf_ada.core.policies import Close, Draw, TwoStage
from openrlhf_ada.core.scheduling import Request, Scheduler
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.coin_flips import simulate

ROWS, BATCH = 64, 16
RATES = np.arange(1, 20) / 20


def hora(n: int = 8, **flags: Any) -> TwoStage:
    config = AdaConfig(**{"mode": "est", "allocation": "hit", "correction": "none", "baseline": "pool"} | flags)
    policy = make_policy(resolve(config, n=n, advantage="dr_grpo", batch=BATCH))
    assert isinstance(policy, TwoStage)
    return policy


def batches(steps: int) -> Iterator[Sequence[int]]:
    rng = np.random.default_rng(0)
    return (rng.permutation(ROWS)[:BATCH].tolist() for _ in range(steps))


def truth(step: int, rows: np.ndarray) -> np.ndarray:
    return np.linspace(0, 1, ROWS)[rows]


@pytest.mark.parametrize(("budget", "pilot"), [(4, 2), (8, 4), (8.5, 4), (16, 4), (4, 4)])
def test_budget_is_exact_and_bounds_hold(budget: float, pilot: int) -> None:
    policy = hora(budget=float(budget), pilot=pilot, select="balanced" if budget != 8 else "all", min_samples=8) \
        if budget >= 8 else hora(n=4, budget=float(budget), pilot=pilot)  # fmt: skip
    for step in simulate(policy, batches(12), truth, 0):
        drawn = [len(pool) for pool in step.pools]
        assert sum(drawn) == step.ledger.drawn == round(budget * BATCH)
        assert max(policy.min_samples, pilot) <= min(drawn)
        assert max(drawn) <= policy.max_samples


def test_second_round_goes_where_the_first_was_wrong() -> None:
    (step,) = simulate(hora(), batches(1), truth, 0)
    by_pilot: dict[int, list[int]] = {}
    for pool in step.pools:
        by_pilot.setdefault(int(pool.scores[:4].sum()), []).append(len(pool))
    means = [np.mean(by_pilot[k]) for k in sorted(by_pilot)]
    assert means == sorted(means, reverse=True)
    assert means[0] > means[-1]


def test_prompt_without_a_second_round_closes() -> None:
    policy = hora(budget=4.0, n=4, pilot=4)
    pools = [PromptPool(key, row=key) for key in range(3)]
    assert policy.decide(pools) == [Draw(key, 4) for key in range(3)]
    for pool in pools:
        pool.add(Sample(pool.key, i, 0.0, 0.0, 1) for i in range(4))
    assert policy.decide(pools) == [Close(key) for key in range(3)]


def test_rounds_give_every_prompt_its_share_whatever_ends_first() -> None:
    """The engine answers in a random order; the second round waits for all first ones."""
    sizes = []
    for seed in range(3):
        rng, policy = np.random.default_rng(seed), hora()
        pools = [PromptPool(key, row=key) for key in range(8)]
        scheduler = Scheduler[None](policy, pools, "rounds", least_chance=0.2)
        sent: list[Request] = []
        while not scheduler.is_done:
            while (request := scheduler.take_required()) is not None:
                sent.append(request)
            request = sent.pop(rng.integers(len(sent)))
            score = float((request.key * 7 + request.index * 3) % 8 < request.key)
            scheduler.finish(request, Sample(request.key, request.index, score, score, 1), None)
        sizes.append([len(entry.pool) for entry in scheduler.finished])
    assert sizes[0] == sizes[1] == sizes[2]
    assert sum(sizes[0]) == 8 * 8


# -- what it optimises ------------------------------------------------------------------------------------------------


def test_shares_of_the_second_round_spend_the_budget() -> None:
    policy = hora()
    pilots = np.array([0.3, 0.1, 0.2, 0.25, 0.15])
    extra = extra_chances(policy, pilots)
    assert extra.sum(axis=1) == pytest.approx(np.ones(5))
    assert pilots @ extra @ np.arange(extra.shape[1]) == pytest.approx(8 - 4)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"baseline": "loo"}, {"correction": "stratum", "baseline": "none"}])
def test_enumerated_weight_is_that_of_a_large_batch(flags: dict[str, Any]) -> None:
    policy = hora(**flags | ({"objective": "linear"} if "correction" in flags else {}))
    copies = 400
    rates = np.repeat(RATES, copies)
    (step,) = simulate(policy, iter([list(range(len(rates)))]), lambda _, rows: rates[rows], 1)
    weights = np.array(
        [
            effective_weight(group.coefficients, pool.scores[list(group.indices)] > 0.5, rates[i], 8)
            for i, (pool, group) in enumerate(zip(step.pools, step.groups, strict=True))
        ]
    ).reshape(len(RATES), copies)
    expected = [weight.effective for weight in two_stage_weights(policy, RATES)]
    error = weights.std(axis=1) / math.sqrt(copies)
    assert (np.abs(weights.mean(axis=1) - expected) < 5 * error + 0.01).all()


def test_stratum_is_exact_by_the_first_rounds_mean() -> None:
    """The pool's own mean depends on how many were drawn; the first round's does not."""
    exact = hora(correction="stratum", objective="linear", baseline="estimator")
    assert [weight.effective for weight in two_stage_weights(exact, RATES)] == pytest.approx(np.ones(19))
    own = hora(correction="stratum", objective="linear", baseline="pool")
    weights = [weight.effective for weight in two_stage_weights(own, RATES)]
    assert max(weights) - min(weights) > 0.05, "the pool's mean is biased"


def test_uncorrected_weight_follows_the_mean_number() -> None:
    """Trained are all rollouts drawn; without a baseline the weight of a prompt is E[K] / (n p)."""
    policy = hora(baseline="none")
    weights = two_stage_weights(policy, RATES)
    pilots = np.array([pilot_chances(policy.pilot, p) for p in RATES])
    extra = extra_chances(policy, pilots.mean(axis=0))
    draws = policy.pilot + pilots @ extra @ np.arange(extra.shape[1])
    assert [weight.effective for weight in weights] == pytest.approx(draws / 8), "Wald"
    assert draws.mean() == pytest.approx(8)


# -- stopping and going on --------------------------------------------------------------------------------------------


def test_resumed_equals_never_stopped() -> None:
    order = list(batches(12))
    whole, resumed = hora(baseline="estimator"), hora(baseline="estimator")
    list(simulate(whole, iter(order[:6]), truth, seed=5))
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    goes_on, again = (list(simulate(policy, iter(order[6:]), truth, seed=6)) for policy in (whole, resumed))
    assert [step.groups for step in goes_on] == [step.groups for step in again]
    assert [step.figures for step in goes_on] == [step.figures for step in again]
    assert whole.state_dict() == resumed.state_dict()


def test_state_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"estimated.*two_stage.* --ada_"):
        hora().load_state_dict({"estimated": {}})


def test_counts_learn_from_the_first_round_alone() -> None:
    policy = hora()
    pool = PromptPool(0, [Sample(0, i, float(i >= 4), float(i >= 4), 1) for i in range(12)])
    pool.predicted = 0.5
    policy.observe([pool])
    expected = replace(policy, memory=hora().memory)
    expected.memory.counts.observe([0], [4], [0])
    assert policy.memory.counts.predict([0]) == pytest.approx(expected.memory.counts.predict([0]))
