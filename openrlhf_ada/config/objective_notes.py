"""The weight that a run's settings give to prompts, logged at its start. Stopping and selection change it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openrlhf_ada.config.settings import Settings, published_policy
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.exact import Weight, drawn_weight, estimated_weights, sequential_weight, two_stage_weights
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.policies import Estimated, Sequential, TwoStage
from openrlhf_ada.core.selection import SELECTIONS, Selection

RATES = (0.01, 0.1, 0.5, 0.9)
"""Pass rates that the notes have figures for."""

_EVEN = np.arange(1, 100) / 100

LARGEST_CAP = 2048
"""Above this many rollouts of a prompt, enumeration would hold up the start."""


def objective_notes(s: Settings) -> list[str]:
    """One line on the weight of prompts, for modes seq and est; a second one if group_norm changes it."""
    if s.mode == "off":
        return []
    reason = _not_enumerable(s)
    if reason is not None:
        return [f"objective: not computed, since {reason}", *_group_norm_warning(s, None)]
    weights = weights_of(s)
    note = (
        f"objective (rewards of 0 and 1): how much a prompt counts in training, by its pass rate: {_weights(weights)}"
    )
    if s.chooses:
        note += f", once it is chosen, which --ada_choice {s.choice} does more often for some"
    return [f"{note}{_conditions(s)}{_aim(s, weights)}", *_group_norm_warning(s, weights)]


def _not_enumerable(s: Settings) -> str | None:
    if s.policy is not None:
        return "--ada_policy decides how much is drawn"
    if not s.is_enumerable:
        return f"--ada_select {s.select} declares no Trait (core/pieces.py) to enumerate it by"
    if s.max_samples > LARGEST_CAP:
        return f"--ada_max_samples {s.max_samples} is above {LARGEST_CAP}"
    return None


def _conditions(s: Settings) -> str:
    """Under which the figures hold."""
    # With f' = 1 and outcomes at their unbiased rate, any baseline gives the same weight.
    exact = Need.UNBIASED_RATE in CORRECTIONS[s.correction].needs and s.objective == "linear"
    exact = exact or (s.mode == "seq" and not s.waits and not s.aims)
    reads_prediction = s.pilot is None or s.aims or Need.PREDICTION in BASELINES[s.baseline].needs
    gives_up = s.mode == "est" and s.pilot is None and s.give_up > 0
    conditions = [
        (s.mode == "est", "in a batch of evenly spread pass rates"),
        (s.predicts and reads_prediction and not exact, "if predictions are right"),
        (gives_up, f"until they are given up (--ada_give_up {s.give_up})"),
        (s.drops_prompts, "with 0 for visits that end after --ada_pilot"),
        (s.wrong_epochs > 0, f"before right answers alone are trained (after --ada_wrong_epochs {s.wrong_epochs})"),
    ]
    return "".join(f", {text}" for holds, text in conditions if holds)


def _group_norm_warning(s: Settings, weights: Sequence[Weight] | None) -> list[str]:
    """None where the weights are those of uniform sampling: a fixed number of rollouts, all of them trained."""
    if s.advantage != "group_norm":
        return []
    whole = Selection("all", s.group_size, s.positive_above)
    uniform = _weights([drawn_weight(GroupBuilder(whole, s.advantage), s.group_size, p) for p in RATES])
    if weights is not None and _weights(weights) == uniform:
        return []
    of = "trained group" if Need.WHOLE_POOL in BASELINES[s.baseline].lacks else "whole pool"
    return [
        f"warning: --algo.advantage.estimator group_norm divides by the standard deviation of the {of}, so rare "
        f"outcomes weigh most. Uniform sampling of {s.group_size} has {uniform}: comparing the two "
        f"compares these weights as well. Reinforce-Ada as published has --algo.advantage.estimator dr_grpo"
    ]


def weights_of(s: Settings, at_rates: Sequence[float] = RATES) -> list[Weight]:
    """At these pass rates, whole percents, with right predictions where there are any.

    In mode est, in a batch with one prompt of each per cent.
    """
    policy = published_policy(s)
    if isinstance(policy, Sequential):
        return [sequential_weight(policy, p) for p in at_rates]
    at = [round(100 * p) - 1 for p in at_rates]
    if isinstance(policy, TwoStage):
        return two_stage_weights(policy, _EVEN, at)
    assert isinstance(policy, Estimated)
    return estimated_weights(policy, _EVEN, at)


def _aim(s: Settings, weights: Sequence[Weight]) -> str:
    """What the flags ask for, and what to do where that is not meant."""
    aim = f"; --ada_objective {s.objective} asks for {_by_rate([s.target.weight(p) for p in RATES])}" if s.aims else ""
    sizes, exact = [weight.effective for weight in weights], CORRECTIONS["stratum"]
    if max(sizes) < 1.05 * min(sizes):
        return f"{aim}. Nothing to do"
    lacking = (ESTIMATORS[s.advantage], SELECTIONS[s.select], BASELINES[s.baseline])
    if s.correction != "none" or s.drops_prompts or any(exact.needs & piece.lacks.keys() for piece in lacking):
        return f"{aim}. See docs/algorithms.md to change it"
    alike = "--ada_correction stratum --ada_objective linear"
    return f"{aim}. If all shall count the same, add {alike}; else there is nothing to do"


def _weights(weights: Sequence[Weight]) -> str:
    return _by_rate([weight.effective for weight in weights])


def _by_rate(values: Sequence[float]) -> str:
    if len(same := {f"{value:.3g}" for value in values}) == 1:
        return f"{same.pop()} at every rate"
    return ", ".join(f"{value:.3g} at {rate:.0%}" for rate, value in zip(RATES, values, strict=True))
