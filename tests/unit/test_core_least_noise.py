"""The factor of least noise, by enumeration of small worlds: it changes no expectation, and none has less noise.

A prompt of a world has four answers, of chances in proportion to exp(features @ parameters). The score vector of an
answer is its features less the mean of all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from run_flags import settings_with

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.advantages import BASELINES
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.exact import sequential_weight
from openrlhf_ada.core.least_noise import LARGEST, LeastNoiseFactor, score_norm
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.policies import Draw, Memory, Sequential
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.types import Floats, PromptPool, Sample

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Prompt:
    """`policy`: chances of its answers. The last two are right. `norms`: that are measured, if not the true ones."""

    policy: Floats
    features: Floats = field(default_factory=lambda: np.eye(4))
    norms: Floats | None = None

    @property
    def right(self) -> Floats:
        return np.array([0.0, 0.0, 1.0, 1.0])

    @property
    def rate(self) -> float:
        return float(self.policy @ self.right)

    @property
    def gradient(self) -> Floats:
        """Of its pass rate."""
        return (self.policy * (self.right - self.rate)) @ self.features

    @property
    def vectors(self) -> Floats:
        """Of score, by answer."""
        return self.features - self.policy @ self.features

    def pool(self, answers: Sequence[int], predicted: float, row: int = 0) -> PromptPool:
        norms = (self.vectors**2).sum(axis=1) if self.norms is None else self.norms
        pool = PromptPool(row, row=row)
        pool.add(Sample(row, i, self.right[y], self.right[y], 1, score_norm=norms[y]) for i, y in enumerate(answers))
        pool.predicted, pool.strength = predicted, 3.0
        return pool


HARD = Prompt(np.array([0.6, 0.2, 0.15, 0.05]))
EASY = Prompt(np.array([0.1, 0.05, 0.8, 0.05]))

METHODS: dict[str, dict[str, Any]] = {
    "one rollout": {"n": 1, "exit": "fixed", "max_samples": 1, "select": "all", "baseline": "estimator"},
    "three, blended": {"n": 3, "exit": "fixed", "max_samples": 3, "select": "all", "baseline": "blend"},
    "two of three, blended": {
        "n": 2, "exit": "fixed", "max_samples": 3, "baseline": "blend", "correction": "stratum", "objective": "linear",
    },
    "until one is right": {
        "n": 2, "exit": "pos", "wave": 2, "max_samples": 4, "baseline": "estimator", "correction": "stratum",
        "objective": "linear",
    },
    "first success, all trained": {
        "n": 1, "exit": "pos", "wave": 1, "max_samples": 4, "select": "all", "baseline": "estimator",
    },
    "weight of log p": {
        "n": 2, "exit": "pos", "wave": 2, "max_samples": 4, "baseline": "estimator", "correction": "stratum",
    },
}  # fmt: skip


def settings(name: str, **changes: Any) -> Settings:
    flags = {"mode": "seq", "advantage": "flash_reinforce", "baseline_factor": "least_noise"} | METHODS[name] | changes
    return settings_with(**flags)


def new_policy(name: str, **changes: Any) -> Sequential:
    found = settings(name, **changes)
    check_settings(found)
    policy = make_policy(found)
    assert isinstance(policy, Sequential)
    return policy


def memory_of(policy: Sequential) -> Memory:
    assert policy.memory is not None
    return policy.memory


def factor_of(policy: Sequential) -> LeastNoiseFactor:
    factor = memory_of(policy).factor
    assert factor is not None
    return factor


def set_factor(policy: Sequential, value: float) -> None:
    factor_of(policy).load_state_dict({"product": value, "square": 1.0})


def ends(
    policy: Sequential, prompt: Prompt, predicted: float, answers: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every way in which the prompt's sampling can end, with its chance."""
    (action,) = policy.decide([prompt.pool(answers, predicted)])
    if not isinstance(action, Draw):
        yield answers, float(np.prod(prompt.policy[list(answers)]))
        return
    for more in itertools.product(range(4), repeat=action.count):
        yield from ends(policy, prompt, predicted, answers + more)


def update_of(policy: Sequential, prompt: Prompt, pool: PromptPool, answers: Sequence[int]) -> Floats:
    """Sum of coefficient x score vector, shape (D,), mean over which samples of an outcome are kept."""
    group = policy.build(pool, RNG)
    vectors, right = prompt.vectors[list(answers)], prompt.right[list(answers)]
    of_outcome = {outcome: vectors[right == outcome].mean(axis=0) for outcome in set(right.tolist())}
    kept = zip(group.indices, group.coefficients, strict=True)
    return np.sum([c * of_outcome[float(right[i])] for i, c in kept], axis=0)


def expected_update(policy: Sequential, prompt: Prompt, predicted: float) -> Floats:
    return np.sum(
        [
            chance * update_of(policy, prompt, prompt.pool(answers, predicted), answers)
            for answers, chance in ends(policy, prompt, predicted)
        ],
        axis=0,
    )


# -- what is optimised stays the same ---------------------------------------------------------------------------------


def weight_by_hand(policy: Sequential, name: str, p: float, predicted: float) -> float:
    """Of a group."""
    if name == "first success, all trained":
        return policy.plan.expected_draws(p)
    return policy.group_size * (1.0 / predicted if name == "weight of log p" else 1.0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("prompt", [HARD, EASY], ids=["hard", "easy"])
def test_the_expected_update_is_the_gradient_whatever_earlier_steps_showed(name: str, prompt: Prompt) -> None:
    """Over all outcomes of a first step, of the other prompt; predictions are wrong."""
    other = EASY if prompt is HARD else HARD
    found: set[float] = set()
    for answers, _ in ends(new_policy(name), other, 0.3):
        policy = new_policy(name)
        earlier = other.pool(answers, 0.3, row=1)
        policy.build(earlier, RNG)
        assert policy.observe([earlier])["ada/baseline_factor"] == 1.0, "of the steps before"
        value = factor_of(policy).value
        if round(value, 9) in found:
            continue
        found.add(round(value, 9))
        expected = weight_by_hand(policy, name, prompt.rate, 0.35) * prompt.gradient
        assert expected_update(policy, prompt, 0.35) == pytest.approx(expected, abs=1e-12), value
    assert len(found) > 1 and min(found) == 0.0 and max(found) == LARGEST


def test_a_factor_of_the_same_step_would_be_biased() -> None:
    """The control: it would see how the rollout has come out that it is for."""
    update = np.zeros(4)
    for answer in range(4):
        policy, pool = new_policy("one rollout"), HARD.pool([answer], 0.3)
        policy.build(pool, RNG)
        policy.observe([pool])
        update += HARD.policy[answer] * update_of(policy, HARD, HARD.pool([answer], 0.3), [answer])
    assert np.abs(update - HARD.gradient).max() > 0.1 * np.abs(HARD.gradient).max()


def combinations() -> Iterator[dict[str, Any]]:
    sizes: list[dict[str, Any]] = [
        {"exit": exit_rule, "wave": wave, "max_samples": cap}
        for exit_rule, wave, cap in itertools.product(("pos", "balance", "fixed"), (1, 2), (2, 4))
    ]
    sizes += [{"exit": "gate", "pilot": 3, "max_samples": 4}]
    predicting = [name for name, piece in BASELINES.items() if Need.PREDICTION in piece.needs]
    for size, baseline, correction, select in itertools.product(sizes, predicting, CORRECTIONS, SELECTIONS):
        yield size | {"baseline": baseline, "correction": correction, "select": select}


@pytest.mark.slow
def test_it_is_refused_exactly_where_it_would_change_what_is_optimised() -> None:
    """Every exit x size x baseline x correction x selection that is allowed with a factor of one, by enumeration."""
    verdicts = {True: 0, False: 0}
    for flags in combinations():
        options = {"n": 2, "advantage": "dr_grpo", "batch": 4}
        plain = resolve(AdaConfig(mode="seq", objective="linear", **flags), **options)
        try:
            check_settings(plain)
        except ConfigError:
            continue
        policy = make_policy(plain)
        assert isinstance(policy, Sequential)
        weights = [weight_at(policy, factor) for factor in (0.0, 0.6, 1.5)]
        same = all(weight == pytest.approx(weights[0], rel=1e-9) for weight in weights)
        try:
            check_settings(replace(plain, baseline_factor="least_noise"))
        except ConfigError as error:
            assert str(error).startswith("--ada_baseline_factor is 'least_noise'")
            assert not same, f"refused, though nothing changes: {flags}"
        else:
            assert same, f"accepted: {flags} has {weights}"
        verdicts[same] += 1
    assert min(verdicts.values()) > 10, verdicts


def weight_at(policy: Sequential, factor: float) -> list[float]:
    """Effective, at right and at wrong predictions."""
    scaled = replace(policy, builder=replace(policy.builder, factor=factor))
    return [sequential_weight(scaled, p, q).effective for p, q in itertools.product((0.1, 0.5), (0.1, 0.4))]


# -- and the noise is least -------------------------------------------------------------------------------------------


def noise(policy: Sequential, prompts: Sequence[Prompt]) -> float:
    """Trace of the covariance of the sum of the prompts' updates, all rollouts of a prompt being kept."""
    total = 0.0
    for prompt in prompts:
        updates = [
            (chance, update_of_all(policy, prompt, answers)) for answers, chance in ends(policy, prompt, prompt.rate)
        ]
        mean = np.sum([chance * update for chance, update in updates], axis=0)
        total += sum(chance * float(((update - mean) ** 2).sum()) for chance, update in updates)
    return total


def update_of_all(policy: Sequential, prompt: Prompt, answers: Sequence[int]) -> Floats:
    group = policy.build(prompt.pool(answers, prompt.rate), RNG)
    assert group.indices == tuple(range(len(answers)))
    return np.array(group.coefficients) @ prompt.vectors[list(answers)]


def measured(name: str, prompts: Sequence[Prompt], **changes: Any) -> float:
    """What many steps show: every outcome counts by its chance."""
    policy, factor = new_policy(name, **changes), LeastNoiseFactor()
    seen: list[Floats] = []
    for prompt in prompts:
        for answers, chance in ends(policy, prompt, prompt.rate):
            pool = prompt.pool(answers, prompt.rate)
            policy.build(pool, RNG)
            assert pool.evidence is not None
            seen.append(pool.evidence * [[chance], [1.0], [1.0]])
    factor.observe(*np.hstack(seen))
    return factor.value


def worlds() -> Iterator[list[Prompt]]:
    """Of two prompts, which share no parameters."""
    rng = np.random.default_rng(1)
    for _ in range(8):
        yield [Prompt(rng.dirichlet(np.ones(4)), rng.normal(size=(4, 3))) for _ in range(2)]
        yield [Prompt(rng.dirichlet(np.ones(4))) for _ in range(2)]


OF_LOG = {"n": 2, "exit": "fixed", "max_samples": 2, "correction": "stratum", "objective": "log"}


@pytest.mark.parametrize(
    ("name", "changes", "worse"),
    [
        ("one rollout", {}, 0.0),
        ("one rollout", OF_LOG, 0.0),
        # A baseline of the others makes rollouts of a prompt depend on each other, which norms do not show.
        ("three, blended", {"n": 2, "max_samples": 2}, 0.03),
    ],
)
def test_no_other_factor_has_less_noise(name: str, changes: dict[str, Any], worse: float) -> None:
    factors, inside = np.linspace(0.0, LARGEST, 11), 0
    for prompts in worlds():
        found, policy = measured(name, prompts, **changes), new_policy(name, **changes)
        noises: list[float] = []
        for factor in (found, *factors):
            set_factor(policy, factor)
            noises.append(noise(policy, prompts))
        assert noises[0] <= min(noises) * (1.0 + worse + 1e-9), (found, noises)
        inside += 0.0 < found < LARGEST
    assert inside > 8


@pytest.mark.parametrize("prompts", [[HARD], [HARD, EASY]], ids=["one prompt", "two prompts"])
def test_limits(prompts: list[Prompt]) -> None:
    """All answers alike: the prediction itself. Right answers certain: right answers alone."""
    alike, certain = ([replace(p, norms=np.array(norms)) for p in prompts] for norms in ([1.0] * 4, [1, 1, 0, 0]))
    assert measured("one rollout", alike) == pytest.approx(1.0)
    assert measured("one rollout", certain) == 0.0


def test_norms_of_certain_tokens_are_0() -> None:
    assert score_norm(np.log([1.0, 1.0])) == 0.0
    assert score_norm(np.log([0.5, 1.0, 0.2])) == pytest.approx(0.25 + 0.64)
    assert score_norm(np.empty(0)) == 0.0


# -- from step to step ------------------------------------------------------------------------------------------------


def a_step(policy: Sequential, seed: int, norms: bool = True) -> float:
    """Factor of this step; 12 prompts of one rollout."""
    rng = np.random.default_rng(seed)
    prompts = [HARD, EASY] * 6
    pools = [prompt.pool((), 0.5, row=row) for row, prompt in enumerate(prompts)]
    policy.decide(pools)
    for row, (pool, prompt) in enumerate(zip(pools, prompts, strict=True)):
        drawn = prompt.pool([rng.choice(4, p=prompt.policy)], 0.5, row=row).samples
        pool.add(sample if norms else replace(sample, score_norm=None) for sample in drawn)
        policy.build(pool, rng)
    return policy.observe(pools)["ada/baseline_factor"]


def test_a_resumed_run_has_the_same_factor() -> None:
    whole, resumed = new_policy("one rollout"), new_policy("one rollout")
    first = [a_step(whole, seed) for seed in range(4)]
    assert first[0] == 1.0 and len(set(first)) == 4
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [a_step(whole, seed) for seed in range(9, 12)] == [a_step(resumed, seed) for seed in range(9, 12)]


def test_the_flag_may_change_with_a_resume() -> None:
    """As for a critic's calibration: what is new begins anew, what is not asked for is left out."""
    with_factor, without = new_policy("one rollout"), new_policy("one rollout", baseline_factor="one")
    a_step(with_factor, 0)
    assert memory_of(without).factor is None
    without.load_state_dict(with_factor.state_dict())
    again = new_policy("one rollout")
    again.load_state_dict(without.state_dict())
    assert factor_of(again).value == 1.0


def test_rollouts_without_log_probabilities_say_nothing() -> None:
    """Those of a simulation."""
    policy = new_policy("one rollout")
    assert [a_step(policy, seed, norms=False) for seed in range(3)] == [1.0] * 3


def test_the_latest_steps_count_most() -> None:
    factor, ones = LeastNoiseFactor(), np.ones(1)
    for rewards in (0.0, 0.0, 1.0):
        factor.observe(ones, ones * rewards, ones)
    assert factor.value == pytest.approx(1.0 / (1.0 + 0.8 + 0.8**2))
