"""Policies of the arena's own, against exact enumeration, brute force and figures worked out by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
import pytest
import torch

from benchmarks.arena import grid
from benchmarks.arena.campaign import settings_of
from benchmarks.arena.learner import ChainModel, Learner, WarmUp, warm_up
from benchmarks.arena.methods import METHODS, Method, Peer, check_on_real_stack
from benchmarks.arena.peers import PEERS
from benchmarks.arena.peers.dppo import Dppo, DppoPolicy
from benchmarks.arena.peers.ngu import Ngu, NguPolicy
from benchmarks.arena.peers.splits import Cero, CeroPolicy, Duet, DuetPolicy
from benchmarks.arena.peers.spo import Spo, SpoPolicy
from benchmarks.arena.tasks import TASKS, World, make_world
from benchmarks.arena.trial import Trial
from openrlhf_ada.core.policies import Draw
from openrlhf_ada.core.types import PromptPool, Sample

RATES = (0.01, 0.05, 0.3, 0.5, 0.9)


def pool_of(rewards: Sequence[float], versions: Sequence[int] | None = None, row: int = 0) -> PromptPool:
    versions = versions or [0] * len(rewards)
    samples = [
        Sample(0, i, reward, reward, 1, version)
        for i, (reward, version) in enumerate(zip(rewards, versions, strict=True))
    ]
    return PromptPool(0, samples, row=row)


def settings(name: str, **rules: object) -> Peer:
    method = METHODS[f"{name}/1"]
    assert isinstance(method, Peer)
    return replace(method, rules=replace(method.rules, **rules))  # pyright: ignore[reportArgumentType, reportCallIssue]


@dataclass
class Uniform:
    """Random numbers that are given."""

    values: Sequence[float]

    def random(self, size: int | None = None) -> float | np.ndarray:
        return self.values[0] if size is None else np.array(self.values)


@cache
def start() -> tuple[World, dict[str, torch.Tensor]]:
    """A model that is right now and then."""
    world = make_world(TASKS["luck4"], 0)
    torch.manual_seed(0)
    model = ChainModel(world.task.num_functions, max(world.task.lengths))
    warm_up(model, world, 0, WarmUp(60, 128, 3e-3))
    return world, model.state_dict()


def started(rate: float = 1e-3) -> Learner:
    return Learner(*start(), rate, 0)


# -- in the grid ------------------------------------------------------------------------------------------------------


def test_other_methods_are_as_they_were() -> None:
    """Folders hold all fields of the methods that their trials were made with."""
    names = {"name", "summary", "n", "ada", "estimator", "refill", "epochs", "updates", "weight_of"}
    assert {f.name for f in fields(Method)} == names | {"least_noise", "wrong_epochs", "by_outcome", "clip"}
    assert {name.split("/")[0] for name, method in METHODS.items() if type(method) is not Method} == {
        name for name, *_ in PEERS
    }


def test_constants_are_kept_with_the_results(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    grid.check_folder(tmp_path, ["luck4"], ["n8/1"])  # pyright: ignore[reportArgumentType]
    grid.check_folder(tmp_path, ["luck4"], ["n8/1", "spo/1"])  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(METHODS, "spo/1", settings("spo", half=0.1))
    with pytest.raises(ValueError, match=r"made otherwise: method spo/1, rules: .*0.06.* there, .*0.1.* here"):
        grid.check_folder(tmp_path, ["luck4"], ["spo/1"])  # pyright: ignore[reportArgumentType]
    assert settings_of(METHODS["spo/1"])["max_samples"] == 1


def test_no_flags_make_them() -> None:
    with pytest.raises(ValueError, match="--methods duet/1: no flag says this"):
        check_on_real_stack(["n8/1", "duet/1"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{name}/{epochs}" for name, *_ in PEERS for epochs in (1, 2)])
def test_every_rollout_is_trained_unused_or_waiting(name: str) -> None:
    method = METHODS[name]
    trial = Trial(started(), method, 32, seed=0)
    groups = [pair for _ in range(8) for pair in trial.step()]
    sizes = [len(pool) for pool, _ in groups]
    trained = sum(c != 0.0 for _, group in groups for c in group.coefficients)
    assert len({pool.key for pool, _ in groups}) == len(groups)
    assert sum(sizes) + trial.waiting == trial.spent.rollouts
    assert all(len(group.indices) == len(pool) for pool, group in groups)
    assert trial.spent.trained == trained * method.epochs > 0
    assert trial.spent.batches[0][0][0] == 8 * 32, "prompts of first waves"
    assert (trial.waiting > 0) == (name.split("/")[0] in ("ngu", "ngu-late"))


# -- SPO --------------------------------------------------------------------------------------------------------------


def spo(rows: int) -> SpoPolicy:
    policy = METHODS["spo/1"].start(2, rows, 0)
    assert isinstance(policy, SpoPolicy)
    return policy


def test_spo_forgets_as_the_policy_changes() -> None:
    changes = np.array([0.0, 0.001, 0.006, 0.06, 1.0])
    by_hand = [0.96, 0.96, 2.0**-0.1, 0.875, 0.875]
    assert Spo().rho(changes) == pytest.approx(by_hand)


def test_spo_is_whitened_over_the_batch() -> None:
    policy = spo(3)
    policy.a[:], policy.b[:] = [1.0, 3.0, 0.5], [1.0, 1.0, 0.5]
    pools = [PromptPool(i, row=i) for i in range(3)]
    assert [action.count for action in policy.decide(pools) if isinstance(action, Draw)] == [1, 1, 1]
    found: list[float] = []
    for pool, reward in zip(pools, (1.0, 0.0, 0.0), strict=True):
        pool.add([Sample(pool.key, 0, reward, reward, 1)])
        found += policy.build(pool, policy.rng).coefficients
    assert found == pytest.approx([0.5, -0.75, -0.5])
    # Mean -1/4, deviations 3/4, -1/2 and -1/4, so their standard deviation is sqrt(7/16).
    assert policy.shaped(np.array(found)) == pytest.approx(np.array([0.75, -0.5, -0.25]) / math.sqrt(7 / 16))


def test_spo_draws_by_spread() -> None:
    policy = spo(3)
    policy.a[:], policy.b[:] = [1.0, 9.0, 1.0], [1.0, 1.0, 99.0]
    weight = np.array([0.55, 0.35, math.sqrt(0.0099) + 0.05])
    share = weight / weight.sum()
    assert policy.draw_shares == pytest.approx(share)
    draws = 20_000
    pairs = [tuple(choice.row for choice in policy.take(2)) for _ in range(draws)]
    for pair in itertools.permutations(range(3), 2):
        chance = share[pair[0]] * share[pair[1]] / (1.0 - share[pair[0]])
        # In which order two come does not matter, but both orders have their own chances.
        assert pairs.count(pair) / draws == pytest.approx(chance, abs=4 * math.sqrt(chance / draws))


def test_spo_learns_in_a_trial() -> None:
    """a and b after two visits, by hand from the log-probabilities of the first answer."""
    learner = started(1e-4)
    world = learner.world
    trial = Trial(learner, METHODS["spo/1"], len(world.train), seed=0)
    policy = trial._policy
    assert isinstance(policy, SpoPolicy)
    first = {pool.row: pool.rewards[0] for pool, _ in trial.step()}
    tokens = np.stack([policy._last[row][0] for row in range(len(world.train))])
    then = learner.log_probs_of(range(len(world.train)), tokens)
    second = {pool.row: pool.rewards[0] for pool, _ in trial.step()}
    change = np.abs(learner.log_probs_of(range(len(world.train)), tokens) - then)
    lengths = (then != 0.0).sum(axis=1)
    rho = np.clip(2.0 ** (-change.sum(axis=1) / lengths / 0.06), 0.875, 0.96)
    assert len(np.unique(rho)) > 100
    for row in range(len(world.train)):
        right = 0.96 * 0.5 + first[row]
        assert policy.a[row] == pytest.approx(rho[row] * right + second[row])
        assert policy.a[row] + policy.b[row] == pytest.approx(rho[row] * (0.96 + 1.0) + 1.0)


# -- NGU --------------------------------------------------------------------------------------------------------------


def ngu(**rules: object) -> NguPolicy:
    policy = settings("ngu", **rules).start(8, 8, 0)
    assert isinstance(policy, NguPolicy)
    return policy


def ends(policy: NguPolicy, p: float, over_steps: bool) -> Iterator[tuple[PromptPool, float]]:
    """All chains, with their probabilities; attempts of one count of right answers are alike."""
    k, rho = policy.rules.k, policy.rules.rho
    chains: list[tuple[list[float], float]] = [([], 1.0)]
    while chains:
        rewards, chance = chains.pop()
        for right in range(k + 1):
            longer = rewards + [1.0] * right + [0.0] * (k - right)
            reached = chance * math.comb(k, right) * p**right * (1.0 - p) ** (k - right)
            pool = pool_of(longer, [i // k if over_steps else 0 for i in range(len(longer))])
            goes_on = []
            for uniform in (rho - 1e-9, rho + 1e-9):
                policy.rng = Uniform([uniform])  # pyright: ignore[reportAttributeAccessIssue]
                goes_on.append(policy.goes_on(pool) if over_steps else isinstance(policy.decide([pool])[0], Draw))
            assert goes_on in ([True, False], [False, False])
            if goes_on[0] and reached > 1e-12:
                chains.append((longer, rho * reached))
            yield pool, reached * (1.0 - rho if goes_on[0] else 1.0)


def closed_form(p: float, k: int, rho: float) -> float:
    total, factor = 0.0, rho * (1.0 - p) ** k
    for j in range(1, 2000):
        mean = sum(
            math.comb(k, right) * p**right * (1.0 - p) ** (k - right) * right * (1.0 - right / (j * k))
            for right in range(k + 1)
        )
        total += factor ** (j - 1) * mean
    return total / (k * p * (1.0 - p))


@pytest.mark.parametrize("over_steps", [False, True])
@pytest.mark.parametrize(("k", "rho"), [(4, 0.9), (2, 0.5)])
@pytest.mark.parametrize("p", RATES)
def test_ngu_has_the_weight_of_the_closed_form(p: float, k: int, rho: float, over_steps: bool) -> None:
    """With the limit of age too: it takes negatives away, and the others are rescaled."""
    policy = ngu(k=k, rho=rho, over_steps=over_steps)
    drawn = weight = total = 0.0
    for pool, chance in ends(policy, p, over_steps):
        coefficients = np.array(policy.build(pool, policy.rng).coefficients)
        positive = pool.rewards > 0.5
        drawn += chance * len(pool)
        total += chance
        weight += chance * (coefficients[positive].sum() / p - coefficients[~positive].sum() / (1.0 - p)) / k
    assert total == pytest.approx(1.0, abs=1e-9)
    assert drawn == pytest.approx(k / (1.0 - rho * (1.0 - p) ** k), rel=1e-6)
    # All negatives are too old where all of a late attempt are right.
    assert weight == pytest.approx(closed_form(p, k, rho), rel=1e-6 + (over_steps and rho**5 * p ** (k - 1)))


def test_ngu_weight_of_the_reference() -> None:
    assert closed_form(0.01, 4, 0.9) == pytest.approx(6.86, abs=0.005)


def test_ngu_trains_recent_rollouts_and_rescales() -> None:
    rules = Ngu(k=2, max_age=1)
    rewards, ages = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]), np.array([2.0, 2.0, 1.0, 1.0, 0.0, 0.0])
    assert rules.coefficients(rewards, ages) == pytest.approx([0.0, 0.0, -5 / 18, -5 / 18, 5 / 6, -5 / 18])
    # One step late, the second attempt is too old as well.
    assert rules.coefficients(rewards, ages + 1.0) == pytest.approx([0.0] * 4 + [5 / 6, -5 / 6])
    assert not rules.coefficients(np.zeros(4), np.zeros(4)).any()


def test_ngu_wants_better_scores() -> None:
    """Partial credit: spread is a signal at first, and then only the best so far."""
    rules = Ngu(k=2)
    cases = {(0.2, 0.2): False, (0.2, 0.4): True, (0.4, 0.4, 0.2, 0.4): False, (0.2, 0.2, 0.2, 0.4): True}
    assert {rewards: rules.has_signal(np.array(rewards)) for rewards in cases} == cases


# -- DUET -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_duet_splits_tokens_as_brute_force(seed: int) -> None:
    """Least sum of s^2 / n, with as many tokens as the split takes; and the next number of one would be too many."""
    rng, rules = np.random.default_rng(seed), Duet(least=1, most=9)
    spread, length = rng.uniform(0.2, 2.0, 4), rng.integers(5, 40, 4).astype(float)
    budget = 4.0 * length.sum()
    n = rules.split(spread, length, budget)
    assert budget - length.max() < n @ length <= budget
    every = np.array(list(itertools.product(range(1, 10), repeat=4)))
    fitting = every[every @ length <= n @ length]
    best = (spread**2 / fitting).sum(axis=1).min()
    assert (spread**2 / n).sum() <= 1.02 * best


def test_duet_starts_even_and_reads_what_it_saw() -> None:
    policy = METHODS["duet/1"].start(4, 4, 0)
    assert isinstance(policy, DuetPolicy)
    assert policy.counts([PromptPool(i, row=i) for i in range(4)]) == [8] * 4
    learner = started()
    trial = Trial(learner, METHODS["duet/1"], 64, seed=0)
    batch = trial._sampled_batch()
    policy = trial._policy
    assert isinstance(policy, DuetPolicy)
    policy.before_training(batch)
    log_probs = batch.learner.token_log_probs(batch.drawn.answers()).sum(dim=1).numpy()
    rows = [pool.row for pool in batch.trained]
    spread, length = policy.known(rows)
    for i, group in enumerate(batch.groups):
        places = batch.drawn.places[group.key]
        assert spread[i] == pytest.approx(np.std(np.array(group.coefficients) * log_probs[places]), abs=1e-5)
        assert length[i] == batch.drawn.answers().num_tokens.numpy()[places].mean()
    unseen = next(row for row in range(len(learner.world.train)) if row not in rows)
    assert policy.known([unseen])[0] == pytest.approx(spread.mean())


# -- CERO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_cero_spends_the_budget_at_the_price_that_it_needs(seed: int) -> None:
    """Fixed posteriors: the price comes to the one at which the mean number is that of the budget."""
    rng, rules, rows = np.random.default_rng(seed), Cero(), 256
    value = rng.beta(1.0, 1.5, rows)
    value *= 1.0 - value
    had, visits, price, means = np.zeros(rows), np.zeros(rows), rules.first_price(1 / 6), []
    for _ in range(40):
        for chosen in np.split(rng.permutation(rows), 4):
            n = rules.numbers(value[chosen], had[chosen], visits[chosen], price)
            price = rules.moved(price, n, visits[chosen])
            had[chosen] += n
            visits[chosen] += 1.0
            means.append(float(n.mean()))
    assert np.mean(means[-80:]) == pytest.approx(rules.mean, rel=0.02)
    assert np.mean(means) == pytest.approx(rules.mean, rel=0.03)
    low, high = 1e-8, 1.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        wanted = np.clip(np.sqrt(value * rules.scale / middle) - rules.scale, rules.least, rules.most).mean()
        low, high = (middle, high) if wanted > rules.mean else (low, middle)
    assert price == pytest.approx(low, rel=0.05)
    best = np.clip(np.sqrt(value * rules.scale / low) - rules.scale, rules.least, rules.most)
    assert had / visits == pytest.approx(best, abs=0.5)


def test_cero_values_are_the_posteriors() -> None:
    policy = METHODS["cero/1"].start(2, 2, 0)
    assert isinstance(policy, CeroPolicy)
    # Beta(1, 1): E[p (1 - p)] = 1/6.
    assert policy.value([0, 1]) == pytest.approx([1 / 6, 1 / 6])
    assert policy.counts([PromptPool(i, row=i) for i in range(2)]) == [8, 8]
    policy.observe([pool_of([1.0, 1.0, 1.0, 0.0]), pool_of([0.0] * 12, row=1)])
    # Of Beta(a, b): a b / ((a + b) (a + b + 1)), with the mean of all as a prior of 2.
    mean = (0.75 + 0.0 + 1.0) / 4.0
    a, n = 3.0 + 2.0 * mean, 6.0
    assert policy.value([0])[0] == pytest.approx(a * (n - a) / (n * (n + 1.0)))


# -- DPPO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", range(5))
def test_dppo_is_unbiased_over_completions(right: int) -> None:
    policy = settings("dppo", n=4).start(2, 2, 0)
    assert isinstance(policy, DppoPolicy)
    pool = pool_of([1.0] * right + [0.0] * (4 - right))
    plain = np.array(policy.inner.build(pool, policy.rng).coefficients)
    chances = policy.rules.keep_chances(np.abs(plain), policy.rules.completions)
    assert (chances < 1.0).sum() == (max(right, 4 - right) if right in (1, 3) else 0)
    mean = np.zeros(4)
    for kept in itertools.product((True, False), repeat=4):
        chance = np.where(kept, chances, 1.0 - chances).prod()
        coins = Uniform(np.where(kept, 0.0, 1.0 - 1e-12).tolist())
        mean += chance * np.array(policy.build(pool, coins).coefficients)  # pyright: ignore[reportArgumentType]
    assert mean == pytest.approx(plain)


def test_dppo_is_unbiased_over_prompts() -> None:
    """Each candidate has the same expected weight, and is taken as often as its chance says."""
    policy = METHODS["dppo/1"].start(2, 6, 0)
    assert isinstance(policy, DppoPolicy)
    policy.sizes[:] = [0.0, 0.0, 0.9, 0.1, np.nan, 0.8]
    taken, considered, draws = np.zeros(6), np.zeros(6), 4000
    expected = np.zeros(6)
    for _ in range(draws):
        policy._weights[:] = np.nan
        chosen = policy.take(3)
        candidates = np.flatnonzero(~np.isnan(policy._weights))
        assert len(chosen) == len({choice.row for choice in chosen}) == 3
        considered[candidates] += 1
        for choice in chosen:
            taken[choice.row] += 1
            expected[choice.row] += policy._weights[choice.row]
            # Chance x weight is the same for all: 3 of so many.
            assert choice.chance * policy._weights[choice.row] == pytest.approx(3 / len(candidates))
    assert (taken / considered)[[0, 1, 3]].max() < (taken / considered)[[2, 4, 5]].min()
    even = expected / expected.sum()
    assert even == pytest.approx(considered / considered.sum(), abs=0.01)


def test_dppo_keeps_what_is_not_known() -> None:
    assert Dppo().keep_chances(np.full(3, np.nan), 0.5).tolist() == [1.0] * 3
    assert Dppo().keep_chances(np.array([0.2, np.nan, 0.4]), 0.5).tolist() == [0.5, 1.0, 1.0]
    assert Dppo().keep_chances(np.full(3, 0.1), 0.5).tolist() == [1.0] * 3
