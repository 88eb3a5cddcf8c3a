"""Defaults that depend on other flags, and the policy that the flags describe."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.presets import METHODS, method_named, nested
from openrlhf_ada.config.schema import GATE, MATCHED, MAX_SAMPLES, PILOT, AdaConfig
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.allocation import PILOTED, PRIORITIES, priority
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.estimators import Calibration, PassRateCounts, RateEstimator
from openrlhf_ada.core.exact import drawn_weight, sequential_weight
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.least_noise import LeastNoiseFactor
from openrlhf_ada.core.objectives import Objective, TabulatedObjective
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.policies import Estimated, Memory, Policy, Sequential, TwoStage
from openrlhf_ada.core.ratings import PromptRatings
from openrlhf_ada.core.selection import SELECTIONS, Selection
from openrlhf_ada.core.stopping import EXITS, ExitRule, Gate

UNIT_THRESHOLD = 0.5
"""Default threshold of scores in [0, 1], and the threshold of scores made of raw scores, which are 0 and 1."""

PRIOR_MEAN, PRIOR_STRENGTH = 0.5, 2.0
"""Pass rate of a prompt while none is known, and the rollouts that a prior counts for."""


@dataclass(frozen=True, kw_only=True)
class Settings(AdaConfig):
    """All our flags of one run, resolved once: from there on they are `args.ada`, in every process.

    A flag whose default depends on others has its value here, and a narrower type; `given` has the flags as they were
    given. `group_size` is n, `advantage` OpenRLHF's estimator, `target` the objective. `pilot`: rollouts of every
    prompt that decide how many follow; None where there are none. `gate`: of exit `gate` (mode seq).
    """

    given: AdaConfig
    group_size: int
    advantage: str
    target: Objective | TabulatedObjective
    gate: Gate | None
    pilot: int | None = field()
    k_pos: int = field()
    k_neg: int = field()
    budget: float = field()
    min_samples: int = field()
    max_samples: int = field()
    correction: str = field()
    baseline: str = field()
    select: str = field()
    estimator: str = field()
    refill_limit: int = field()
    scores: str = field()
    candidates: int = field()
    choice: str = field()
    scheduler: str = field()

    def __post_init__(self) -> None:
        """`given` was checked."""

    @property
    def positive_above(self) -> float:
        """A sample is positive iff its score exceeds this; those made of raw scores are 0 and 1."""
        return UNIT_THRESHOLD if self.positive_threshold is None or self.scores == "raw" else self.positive_threshold

    @property
    def skips_zeros(self) -> bool:
        """Are rollouts of coefficient 0 left out of the policy's computation? Mode off trains as OpenRLHF does."""
        return self.mode != "off" and self.zeros == "skip"

    def trains_wrong(self, epoch: int) -> bool:
        """Are rollouts with a negative coefficient trained in this epoch over a step, counted from 0?"""
        return self.mode == "off" or self.wrong_epochs == 0 or epoch < self.wrong_epochs

    def with_method(self, recorded: str | None) -> Settings:
        """The same, with another text for --ada_method: a run that is resumed may find the file of it changed."""
        return replace(self, method=recorded, given=replace(self.given, method=recorded))

    @property
    def first_wave(self) -> int:
        """So many first samples of a prompt, of n, are a fair sample of the policy."""
        return self.group_size if self.pilot is None else min(self.group_size, self.pilot)

    @property
    def first_scores(self) -> int:
        """So many samples are drawn of every prompt whatever their outcomes: a fair sample of the policy."""
        return min(self.first_wave, self.min_samples) if self.mode == "est" else self.first_wave

    @property
    def drops_prompts(self) -> bool:
        """Can prompts that do not go on fill no group?"""
        return self.gate is not None and self.group_size > self.gate.pilot

    @property
    def has_pilot(self) -> bool:
        """Do first rollouts decide how many follow?"""
        return self.pilot is not None

    @property
    def has_waves(self) -> bool:
        """Are prompts looked at between waves?"""
        return self.waits and self.gate is None

    @property
    def reads_floor(self) -> bool:
        """Is a weight, or a number of rollouts, computed from a pass rate?"""
        return self.mode == "est" or Need.WEIGHT in CORRECTIONS[self.correction].needs

    @property
    def predicts_baseline(self) -> bool:
        """Is the baseline a pass rate known before sampling, for a whole rollout?"""
        return not self.in_ppo and Need.PREDICTION in BASELINES[self.baseline].needs

    @property
    def measures_factor(self) -> bool:
        """Is the baseline multiplied by what earlier steps showed?"""
        return self.mode != "off" and self.predicts_baseline and self.baseline_factor == "least_noise"

    @property
    def in_ppo(self) -> bool:
        """Is the baseline that of OpenRLHF's critic, token by token?"""
        return self.advantage == "gae"

    @property
    def remembers(self) -> bool:
        """Are pass rates carried from step to step?"""
        return self.predicts or self.chooses

    @property
    def chooses(self) -> bool:
        """Are prompts chosen out of more?"""
        return self.candidates > 1

    @property
    def predicts(self) -> bool:
        """Does the split, the baseline or the weight read a predicted pass rate?"""
        if self.mode != "seq":
            return self.mode == "est"
        if self.in_ppo:
            # f' is taken at a pass rate known before sampling; the baseline is the critic's either way.
            return Need.WEIGHT in CORRECTIONS[self.correction].needs
        return self.predicts_baseline

    @property
    def needs_no_others(self) -> bool:
        """Is a rollout compared with a prediction, or with nothing? Then one of a prompt is enough."""
        return self.mode == "seq" and not self.in_ppo and (self.baseline == "none" or self.predicts_baseline)

    @property
    def reads_critic(self) -> bool:
        """Does a critic predict pass rates?"""
        return self.predicts and self.estimator == "critic"

    @property
    def own_critic(self) -> bool:
        """Is that critic ours, beside critic-free training of the policy?"""
        return self.reads_critic and not self.in_ppo

    @property
    def waits(self) -> bool:
        """Do outcomes end sampling? Otherwise every prompt gets N_max rollouts (mode seq)."""
        return (self.k_pos or self.k_neg) > 0 or self.gate is not None

    @property
    def trains_all(self) -> bool:
        """Is every rollout of a pool trained?"""
        return Need.ONE_GROUP_SIZE in SELECTIONS[self.select].lacks

    @property
    def trains_varying(self) -> bool:
        """Is the number of rollouts that a step trains decided by outcomes?"""
        return self.trains_all and self.mode == "seq" and self.waits and self.gate is None

    @property
    def aims(self) -> bool:
        """Does the correction read --ada_objective?"""
        return bool(CORRECTIONS[self.correction].needs & {Need.WEIGHT, Need.LOG_OBJECTIVE})

    @property
    def is_enumerable(self) -> bool:
        """Does the selection say how many of each outcome it keeps?"""
        return bool(SELECTIONS[self.select].traits)

    @property
    def refills(self) -> bool:
        """Do fresh prompts take the place of unresolved ones?"""
        return self.mode != "off" and self.unresolved == "refill"


def resolve(given: AdaConfig, *, n: int, advantage: str, batch: int) -> Settings:
    """Fill in the defaults that depend on other flags: on OpenRLHF's number of rollouts of a prompt, its estimator and
    its prompts in a step.

    Raises ConfigError where another run's weight is to be matched and has no table.
    """
    budget = float(n) if given.budget is None else given.budget
    est = given.mode == "est"
    select = given.select or ("all" if est and budget == n else "balanced")
    k_pos, k_neg = EXITS[given.exit].function(n)
    gate = _gate(given)
    pilot = gate.pilot if gate else (given.pilot or PILOT) if est and given.allocation in PILOTED else None
    correction = given.correction or _correction(given, select, advantage)
    estimator = given.estimator or ("critic" if given.baseline == "critic" and advantage != "gae" else "ema")
    same = (f.name for f in fields(given) if f.name not in Settings.__annotations__)
    as_given: dict[str, Any] = {name: getattr(given, name) for name in same}
    return Settings(
        given=given,
        group_size=n,
        advantage=advantage,
        target=matched(given.objective) if given.objective.startswith(MATCHED) else Objective(given.objective),
        gate=gate,
        k_pos=(given.k_pos or k_pos) if k_pos else 0,
        k_neg=(given.k_neg or k_neg) if k_neg else 0,
        budget=budget,
        min_samples=given.min_samples or (2 if select == "all" else n),
        max_samples=given.max_samples or (math.ceil(4 * budget) if est else MAX_SAMPLES),
        correction=correction,
        baseline=given.baseline or _baseline(given, advantage, correction, estimator),
        select=select,
        estimator=estimator,
        refill_limit=given.refill_limit or batch,
        scores=given.scores or ("unit" if given.positive_quantile is None else "raw"),
        pilot=pilot,
        candidates=given.candidates or 1,
        choice=given.choice or "std",
        # What is decided together waits for the last of a round.
        scheduler="rounds" if pilot and est else given.scheduler,
        **as_given,
    )


def _gate(given: AdaConfig) -> Gate | None:
    if given.mode != "seq" or given.exit != "gate":
        return None
    bounds = {"pilot": given.pilot, "low": given.gate_low, "high": given.gate_high}
    return replace(GATE, **{name: value for name, value in bounds.items() if value is not None})


def _correction(given: AdaConfig, select: str, advantage: str) -> str:
    """The paper's weight where every rollout is trained, as in the paper; the exact one where groups are selected."""
    if given.mode != "est" or advantage == "group_norm":
        return "none"
    return "paper" if select == "all" else "stratum"


def _baseline(given: AdaConfig, advantage: str, correction: str, estimator: str) -> str:
    """A prediction wherever there is one or `stratum` needs one: with it alone the objective is the one asked for."""
    if advantage == "gae":
        return "critic"
    needs = CORRECTIONS[correction].needs
    predicts = given.mode == "est" or Need.UNBIASED_RATE in needs
    # group_norm divides by the pool's spread.
    if predicts and advantage != "group_norm" and Need.NO_BASELINE not in needs:
        return "critic" if estimator == "critic" else "estimator"
    return "loo" if advantage == "rloo" else "pool"


def make_policy(settings: Settings) -> Policy:
    """The policy that the flags describe, or name by --ada_policy, without anything learned yet.

    Raises what the file of --ada_policy raises, and TypeError if it makes something else.
    """
    path = settings.policy
    if path is None:
        return published_policy(settings)
    policy = runpy.run_path(path)["make_policy"](settings)
    if not isinstance(policy, Policy):
        raise TypeError(f"make_policy returned {type(policy).__name__}, which lacks methods of core.policies.Policy")
    return policy


def published_policy(settings: Settings) -> Policy:
    """The policy that --ada_mode and its flags describe, whatever --ada_policy says: a file may build on it."""
    if settings.mode != "est":
        return _sequential(settings)
    same = ("budget", "min_samples", "max_samples", "allocation")
    split: dict[str, Any] = {name: getattr(settings, name) for name in same} | {"memory": _memory(settings)}
    if settings.pilot is not None:
        return TwoStage(pilot=settings.pilot, builder=_builder(settings), **split)
    return Estimated(floor=settings.floor, builder=_builder(settings, allocated=_allocated(settings)), **split)


def _sequential(settings: Settings) -> Sequential:
    rule = ExitRule(settings.k_pos, settings.k_neg, settings.positive_above, settings.gate)
    memory = _memory(settings) if settings.remembers else None
    return Sequential(rule, settings.wave, settings.max_samples, _builder(settings), memory)


def _allocated(settings: Settings) -> Callable[[float], float]:
    """How many rollouts a prompt of a pass rate gets, beside others; 1 where the split has no such share."""
    if settings.allocation not in PRIORITIES:
        return lambda p: 1.0
    return lambda p: float(priority(settings.allocation, [p], settings.floor)[0])


def _builder(settings: Settings, **options: Any) -> GroupBuilder:
    return GroupBuilder(
        selection=Selection(settings.select, settings.group_size, settings.positive_above),
        estimator=settings.advantage,
        baseline=settings.baseline,
        correction=settings.correction,
        objective=settings.target,
        floor=settings.floor,
        rounding=settings.baseline_rounding,
        graded=settings.scores == "raw",
        **options,
    )


def _memory(settings: Settings) -> Memory:
    # Only Ada-Est has a least number of rollouts to give up to.
    give_up = settings.give_up if settings.mode == "est" else 0
    counts: RateEstimator = PassRateCounts(settings.half_life, PRIOR_MEAN, PRIOR_STRENGTH, give_up)
    if settings.estimator == "rating":
        counts = PromptRatings(PRIOR_MEAN, give_up)
    calibration = Calibration(settings.trust_steps) if settings.reads_critic else None
    factor = LeastNoiseFactor() if settings.measures_factor else None
    return Memory(counts, settings.positive_above, calibration, settings.half_life, factor)


# -- matched:NAME: the weight that another method really gives --------------------------------------------------------

_TABLE_RATES = tuple((1.0 / (1.0 + np.exp(-np.linspace(-9.2, 9.2, 401)))).tolist())
"""From 1e-4 to 1 - 1e-4, evenly in logit p: between two of them f' is off by at most 0.4 %, at the kink of a floor."""


@lru_cache(maxsize=32)
def matched(objective: str) -> TabulatedObjective:
    """Raises ConfigError where the other method's weight is no function of p alone, or there is no such method."""
    try:
        return tabulated(objective, _settings_of(objective.removeprefix(MATCHED)))
    except (ValueError, TypeError) as error:
        rule = f"{MATCHED} takes the weight of a method, which must be a function of the pass rate alone ({error})"
        raise ConfigError("--ada_objective", objective, rule, f"Name another one of {', '.join(METHODS)}") from error


def tabulated(name: str, other: Settings) -> TabulatedObjective:
    """The weight that these settings give, by pass rate. Raises ValueError where it is no function of p alone."""
    return TabulatedObjective(name, _TABLE_RATES, tuple(_weight_at(other, p) for p in _TABLE_RATES))


def _settings_of(name: str) -> Settings:
    """Of a method by name or file. Raises ValueError where its weight is no function of p that can be enumerated."""
    flags = nested(method_named(name).flags)
    actor = flags.get("actor", {})
    if actor.get("policy_loss_type") == "gspo" or actor.get("loss_agg_mode", "token-mean") != "token-mean":
        raise ValueError("its loss divides by the length of a rollout, which is a weight as well")
    try:
        rollout, advantage = flags["rollout"], flags["algo"]["advantage"]["estimator"]
        n, batch = rollout["n_samples_per_prompt"], rollout["batch_size"]
    except KeyError as error:
        raise ValueError(f"it does not set {error}") from error
    other = resolve(AdaConfig(**flags.get("ada", {})), n=n, advantage=advantage, batch=batch)
    reasons = (
        (other.mode == "est", "the weight of a split depends on the other prompts of the batch"),
        (other.chooses, "which prompts it samples depends on the other prompts of the batch"),
        (other.policy is not None or other.scores == "raw", "only the rules of --ada_exit on scores of 0 and 1 count"),
        (not other.is_enumerable, f"--ada_select {other.select} has no Trait (core/pieces.py) to enumerate it by"),
        (other.advantage not in ESTIMATORS, f"{other.advantage} has one baseline for the whole batch"),
        (other.objective.startswith(MATCHED) and other.aims, f"it matches a weight itself: {other.objective}"),
    )
    for holds, reason in reasons:
        if holds:
            raise ValueError(reason)
    return other


def _weight_at(other: Settings, p: float) -> float:
    if other.mode != "off":
        return sequential_weight(_sequential(other), p).effective
    whole = Selection("all", other.group_size, other.positive_above)
    return drawn_weight(GroupBuilder(whole, other.advantage, other.baseline), other.group_size, p).effective
