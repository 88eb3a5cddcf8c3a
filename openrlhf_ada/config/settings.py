"""Defaults that depend on other flags, and the policy that the flags describe."""

from __future__ import annotations

import math
import runpy
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from openrlhf_ada.config.defaults import MAX_SAMPLES, QUANTILE_STEPS
from openrlhf_ada.config.exits import exit_counts, gate_of, pilot_of
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.other_runs import flags_of, unreadable
from openrlhf_ada.config.schema import MATCHED, AdaConfig, from_namespace
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.allocation import PRIORITIES, priority
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.estimators import Calibration, PassRateCounts, RateEstimator
from openrlhf_ada.core.exact import drawn_weight, sequential_weight
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective, TabulatedObjective
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.policies import Estimated, Memory, Policy, Sequential, TwoStage
from openrlhf_ada.core.ratings import PromptRatings
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.core.selection import SELECTIONS, Selection
from openrlhf_ada.core.stopping import ExitRule, Gate

UNIT_THRESHOLD = 0.5
"""Default threshold of scores in [0, 1], and the threshold of scores made of raw scores, which are 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Resolved settings of one run. `group_size` is n, `advantage` the host's estimator; the others are our flags'.

    `scores`: "unit" or "raw". `positive_above`: a sample is positive iff its score exceeds it. `pilot`: rollouts of
    every prompt that decide how many follow; None where there are none. `gate`: of exit `gate` (mode seq).
    `candidates`: prompts that are considered for each that is sampled.
    """

    config: AdaConfig
    group_size: int
    advantage: str
    k_pos: int
    k_neg: int
    budget: float
    min_samples: int
    max_samples: int
    correction: str
    baseline: str
    select: str
    estimator: str
    refill_limit: int
    objective: Objective | TabulatedObjective
    scores: str
    positive_above: float
    pilot: int | None = None
    gate: Gate | None = None
    candidates: int = 1
    choice: str = "std"
    choice_weight: str = "none"

    @property
    def first_wave(self) -> int:
        """So many first samples of a prompt, of n, are a fair sample of the policy."""
        return self.group_size if self.pilot is None else min(self.group_size, self.pilot)

    @property
    def first_scores(self) -> int:
        """So many samples are drawn of every prompt whatever their outcomes: a fair sample of the policy."""
        return min(self.first_wave, self.min_samples) if self.config.mode == "est" else self.first_wave

    @property
    def decides_together(self) -> bool:
        """Are decisions about all prompts of a step, also when their first rollouts are in?"""
        return self.config.mode == "est" and self.pilot is not None

    @property
    def scheduler(self) -> str:
        """The one in use: what is decided together waits for the last of a round."""
        return "rounds" if self.decides_together else self.config.scheduler

    @property
    def drops_prompts(self) -> bool:
        """Can prompts that do not go on fill no group?"""
        return self.gate is not None and self.group_size > self.gate.pilot

    @property
    def gives_up(self) -> bool:
        """Does a prompt without a positive get the least number of rollouts in the end?"""
        return self.config.mode == "est" and self.pilot is None and self.config.give_up > 0

    @property
    def in_ppo(self) -> bool:
        """Is the baseline that of the host's critic, token by token?"""
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
        if self.config.mode != "seq":
            return self.config.mode == "est"
        if self.in_ppo:
            # f' is taken at a pass rate known before sampling; the baseline is the critic's either way.
            return Need.WEIGHT in CORRECTIONS[self.correction].needs
        return Need.PREDICTION in BASELINES[self.baseline].needs

    @property
    def needs_no_others(self) -> bool:
        """Is a rollout compared with a prediction, or with nothing? Then one of a prompt is enough."""
        alone = self.baseline == "none" or Need.PREDICTION in BASELINES[self.baseline].needs
        return alone and self.config.mode == "seq" and not self.in_ppo

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
        return self.trains_all and self.config.mode == "seq" and self.waits and self.gate is None

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
        return self.config.mode != "off" and self.config.unresolved == "refill"


def settings_of(args: SimpleNamespace) -> Settings:
    """Of a run's parsed flags, ours in `args.ada`; raises ConfigError."""
    return resolve(from_namespace(args.ada), args)


def resolve(config: AdaConfig, host: SimpleNamespace) -> Settings:
    """Fill in the defaults that depend on other flags. `host`: OpenRLHF's parsed namespace, nested by dots."""
    n = host.rollout.n_samples_per_prompt
    advantage = host.algo.advantage.estimator
    budget = float(n) if config.budget is None else config.budget
    est = config.mode == "est"
    select = config.select or ("all" if est and budget == n else "balanced")
    k_pos, k_neg = exit_counts(config, n)
    gate = gate_of(config)
    correction = config.correction or _correction(config, select, advantage)
    estimator = config.estimator or ("critic" if config.baseline == "critic" and advantage != "gae" else "ema")
    return Settings(
        config=config,
        group_size=n,
        advantage=advantage,
        k_pos=k_pos,
        k_neg=k_neg,
        budget=budget,
        min_samples=config.min_samples or (2 if select == "all" else n),
        max_samples=config.max_samples or (math.ceil(4 * budget) if est else MAX_SAMPLES),
        correction=correction,
        baseline=config.baseline or _baseline(config, advantage, correction, estimator),
        select=select,
        estimator=estimator,
        refill_limit=config.refill_limit or host.rollout.batch_size,
        objective=_objective(config),
        scores=scores(config),
        positive_above=positive_above(config),
        pilot=pilot_of(config) if gate is None else gate.pilot,
        gate=gate,
        candidates=config.candidates or 1,
        choice=config.choice or "std",
        choice_weight=config.choice_weight or "none",
    )


def scores(config: AdaConfig) -> str:
    """What scores are: "unit" or "raw"."""
    return config.scores or ("unit" if config.positive_quantile is None else "raw")


def positive_above(config: AdaConfig) -> float:
    """A sample is positive iff its score exceeds this; those made of raw scores are 0 and 1."""
    given = config.positive_threshold
    return UNIT_THRESHOLD if given is None or scores(config) == "raw" else given


def score_threshold(settings: Settings) -> ScoreThreshold | None:
    """What makes scores of raw scores; None where they are in [0, 1] already. Raises ValueError without a start."""
    config = settings.config
    if settings.scores == "unit":
        return None
    if config.positive_threshold is None:
        raise ValueError("raw scores need --ada_positive_threshold")
    return ScoreThreshold(config.positive_threshold, config.positive_quantile, config.quantile_steps or QUANTILE_STEPS)


def _correction(config: AdaConfig, select: str, advantage: str) -> str:
    """The paper's weight where every rollout is trained, as in the paper; the exact one where groups are selected."""
    if config.mode != "est" or advantage == "group_norm":
        return "none"
    return "paper" if select == "all" else "stratum"


def _baseline(config: AdaConfig, advantage: str, correction: str, estimator: str) -> str:
    """A prediction wherever there is one or `stratum` needs one: with it alone the objective is the one asked for."""
    if advantage == "gae":
        return "critic"
    needs = CORRECTIONS[correction].needs
    predicts = config.mode == "est" or Need.UNBIASED_RATE in needs
    # group_norm divides by the pool's spread, and --ada_spread leaves no pass rate to predict.
    has_baseline = Need.NO_BASELINE not in needs
    if predicts and advantage != "group_norm" and has_baseline and config.spread is None:
        return "critic" if estimator == "critic" else "estimator"
    return "loo" if advantage == "rloo" else "pool"


def _objective(config: AdaConfig) -> Objective | TabulatedObjective:
    """Raises ConfigError where another run's weight is to be matched and has no table."""
    if config.objective.startswith(MATCHED):
        return matched(config.objective)
    # A missing exponent, or one too many, is refused by method_rules with what to do.
    fits = (config.objective == "power") == (config.objective_power is not None)
    return Objective(config.objective, config.objective_power) if fits else Objective()


def make_policy(settings: Settings) -> Policy:
    """The policy that the flags describe, or name by --ada_policy, without anything learned yet.

    Raises what the file of --ada_policy raises, and TypeError if it makes something else.
    """
    path = settings.config.policy
    if path is None:
        return published_policy(settings)
    policy = runpy.run_path(path)["make_policy"](settings)
    if not isinstance(policy, Policy):
        raise TypeError(f"make_policy returned {type(policy).__name__}, which lacks methods of core.policies.Policy")
    return policy


def published_policy(settings: Settings) -> Policy:
    """The policy that --ada_mode and its flags describe, whatever --ada_policy says: a file may build on it."""
    if settings.config.mode == "est":
        return _estimated(settings) if settings.pilot is None else _two_stage(settings, settings.pilot)
    return _sequential(settings)


def _sequential(settings: Settings) -> Sequential:
    config = settings.config
    rule = ExitRule(settings.k_pos, settings.k_neg, settings.positive_above, config.spread, settings.gate)
    memory = _memory(settings) if settings.remembers else None
    return Sequential(rule, config.wave, settings.max_samples, _builder(settings), memory)


def _estimated(settings: Settings) -> Estimated:
    config = settings.config

    def allocated(p: float) -> float:
        return float(priority(config.allocation, [p], config.floor)[0]) if config.allocation in PRIORITIES else 1.0

    return Estimated(
        budget=settings.budget,
        min_samples=settings.min_samples,
        max_samples=settings.max_samples,
        allocation=config.allocation,
        floor=config.floor,
        builder=_builder(settings, allocated=allocated),
        memory=_memory(settings),
    )


def _two_stage(settings: Settings, pilot: int) -> TwoStage:
    return TwoStage(
        pilot=pilot,
        budget=settings.budget,
        min_samples=settings.min_samples,
        max_samples=settings.max_samples,
        allocation=settings.config.allocation,
        builder=_builder(settings),
        memory=_memory(settings),
    )


def _builder(settings: Settings, **options: Any) -> GroupBuilder:
    config = settings.config
    return GroupBuilder(
        selection=Selection(settings.select, settings.group_size, settings.positive_above),
        estimator=settings.advantage,
        baseline=settings.baseline,
        correction=settings.correction,
        objective=settings.objective,
        floor=config.floor,
        rounding=config.baseline_rounding,
        graded=settings.scores == "raw",
        **options,
    )


def _memory(settings: Settings) -> Memory:
    config = settings.config
    # Only Ada-Est has a least number of rollouts to give up to.
    give_up = config.give_up if config.mode == "est" else 0
    counts: RateEstimator = PassRateCounts(config.half_life, config.prior_mean, config.prior_strength, give_up)
    if settings.estimator == "rating":
        counts = PromptRatings(config.prior_mean, give_up)
    calibration = Calibration(config.trust_steps) if settings.reads_critic else None
    return Memory(counts, settings.positive_above, calibration, config.half_life)


# -- matched:NAME: the weight that another run's settings really give -------------------------------------------------

_TABLE_RATES = tuple((1.0 / (1.0 + np.exp(-np.linspace(-9.2, 9.2, 401)))).tolist())
"""From 1e-4 to 1 - 1e-4, evenly in logit p: between two of them f' is off by at most 0.4 %, at the kink of a floor."""


@lru_cache(maxsize=32)
def matched(objective: str) -> TabulatedObjective:
    """Raises ConfigError where the other run's weight is no function of p alone, or its record cannot be read."""
    try:
        other = resolve(*flags_of(objective.removeprefix(MATCHED)))
        rule = _why_no_table(other)
        if rule is not None:
            raise ConfigError("--ada_objective", objective, *rule)
        return TabulatedObjective(objective, _TABLE_RATES, tuple(_weight_at(other, p) for p in _TABLE_RATES))
    except ConfigError as error:
        if error.flag == "--ada_objective":
            raise
        raise unreadable(objective, f"its flags are wrong: {error}") from error
    except ValueError as error:
        raise unreadable(objective, str(error)) from error


def _why_no_table(other: Settings) -> tuple[str, str] | None:
    """(rule, remedy) for runs whose weight is no function of the pass rate that can be enumerated."""
    config = other.config
    if config.mode == "est":
        rule = "the weight of a split depends on the other prompts of the batch"
        return rule, "Use the objective that it aims at, such as --ada_objective log, or name another run"
    if other.chooses and other.choice_weight == "none":
        return "which prompts it samples depends on the other prompts of the batch", "Name another run"
    if config.policy is not None or config.spread is not None or other.scores == "raw":
        return "only the rules of --ada_exit on scores of 0 and 1 can be enumerated", "Name another run"
    if not other.is_enumerable:
        return f"--ada_select {other.select} declares no Trait (core/pieces.py) to enumerate it by", "Name another run"
    if other.advantage not in ESTIMATORS:
        return f"{other.advantage} has one baseline for the whole batch", "Name another run"
    if config.loss == "prompt-mean":
        return "its loss divides by the tokens of a group, which is a weight as well", "Name another run"
    if config.objective.startswith(MATCHED) and other.aims:
        return f"it matches a weight itself: {config.objective}", f"Use --ada_objective {config.objective}"
    return None


def _weight_at(other: Settings, p: float) -> float:
    if other.config.mode != "off":
        return sequential_weight(_sequential(other), p).effective
    whole = Selection("all", other.group_size, other.positive_above)
    return drawn_weight(GroupBuilder(whole, other.advantage, other.baseline), other.group_size, p).effective
