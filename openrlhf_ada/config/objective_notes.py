"""The weight that a run's settings give to prompts, logged at its start. Stopping and selection change it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.config.settings import Settings, published_policy
from openrlhf_ada.core.advantages import BASELINES
from openrlhf_ada.core.choice_shares import Visits, shares
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.exact import Weight, drawn_weight, estimated_weights, sequential_weight, two_stage_weights
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.pieces import Need, Trait
from openrlhf_ada.core.policies import Estimated, Sequential, TwoStage
from openrlhf_ada.core.selection import Selection

RATES = (0.01, 0.1, 0.5, 0.9)
"""Pass rates that the notes have figures for."""

_EVEN = np.arange(1, 100) / 100

_COPIES = 20
"""Copies of a prompt that is chosen as often as the mean, for batches of prompts that are not."""

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
    notes = [f"objective (for rewards of 0 and 1): prompts of pass rate {_list(RATES)} have the weight "]
    often = choice_shares(s)
    seen = [weight.effective * share for weight, share in zip(weights, often, strict=True)]
    notes[0] += f"{_list(seen)}{_conditions(s)}{_choice(s, often)}{_aim(s)}"
    return [*notes, *_group_norm_warning(s, weights)]


def _not_enumerable(s: Settings) -> str | None:
    if s.policy is not None:
        return "--ada_policy decides how much is drawn"
    if not s.is_enumerable:
        return f"--ada_select {s.select} declares no Trait (core/pieces.py) to enumerate it by"
    if s.max_samples > LARGEST_CAP:
        return f"--ada_max_samples {s.max_samples} is above {LARGEST_CAP}"
    if s.chooses and s.mode == "est" and Trait.READS_VISITS in CHOICES[s.choice].traits:
        return f"--ada_choice {s.choice} goes by what visits showed, and how many rollouts these have by the batch"
    return None


def _conditions(s: Settings) -> str:
    """Under which the figures hold."""
    # With f' = 1 and outcomes at their unbiased rate, any baseline gives the same weight.
    exact = Need.UNBIASED_RATE in CORRECTIONS[s.correction].needs and s.objective == "linear"
    exact = exact or (s.mode == "seq" and not s.waits and not s.aims)
    reads_prediction = s.pilot is None or s.aims or Need.PREDICTION in BASELINES[s.baseline].needs
    chooses_by_rate = s.chooses and (s.mode == "est" or s.choice_weight == "none")
    conditions = [
        (s.mode == "est" or chooses_by_rate, f"{_population(s)} of evenly spread pass rates"),
        ((s.predicts and reads_prediction and not exact) or chooses_by_rate, "if predictions are right"),
        (chooses_by_rate and Trait.READS_LENGTHS in CHOICES[s.choice].traits, "if answers are equally long"),
        (s.gives_up, f"until they are given up (--ada_give_up {s.give_up})"),
        (s.drops_prompts, "with 0 for visits that end after --ada_pilot"),
    ]
    return "".join(f", {text}" for holds, text in conditions if holds)


def _population(s: Settings) -> str:
    return "with candidates" if s.chooses else "in a batch"


def _choice(s: Settings, often: Sequence[float]) -> str:
    """What choosing prompts does to the weights."""
    if not s.chooses:
        return ""
    if s.choice_weight == "inverse":
        return ", whatever their chance to be chosen"
    return f"; how often they are chosen is a factor of {_list(often)} in it"


def _group_norm_warning(s: Settings, weights: Sequence[Weight] | None) -> list[str]:
    """None where the weights are those of uniform sampling: a fixed number of rollouts, all of them trained."""
    if s.advantage != "group_norm":
        return []
    uniform = _uniform(s)
    if weights is not None and all(
        math.isclose(ours.effective, theirs.effective, rel_tol=0.01)
        for ours, theirs in zip(weights, uniform, strict=True)
    ):
        return []
    of = "trained group" if Need.WHOLE_POOL in BASELINES[s.baseline].lacks else "whole pool"
    return [
        f"warning: --algo.advantage.estimator group_norm divides by the standard deviation of the {of}, so rare "
        f"outcomes weigh most. Uniform sampling of {s.group_size} has {_weights(uniform)}: comparing the two "
        f"compares these weights as well. Reinforce-Ada as published has --algo.advantage.estimator dr_grpo"
    ]


def weights_of(s: Settings, at_rates: Sequence[float] = RATES) -> list[Weight]:
    """At these pass rates, whole percents, with right predictions where there are any.

    In mode est, in a batch with one prompt of each per cent, or chosen from candidates of which there is one each. A
    spread reads scores of 0 and 1 as counts.
    """
    policy = published_policy(s)
    if isinstance(policy, Sequential):
        return [sequential_weight(policy, p) for p in at_rates]
    # Prompts that are chosen more often are more of a batch.
    copies = np.rint(_COPIES * _shares(s)).astype(int) if s.chooses else np.ones(len(_EVEN), dtype=int)
    rates = np.repeat(_EVEN, copies)
    at = [int(np.searchsorted(rates, round(100 * p) / 100)) for p in at_rates]
    if isinstance(policy, TwoStage):
        return two_stage_weights(policy, rates, at)
    assert isinstance(policy, Estimated)
    return estimated_weights(policy, rates, at)


def choice_shares(s: Settings, at_rates: Sequence[float] = RATES) -> list[float]:
    """How often prompts of these pass rates, whole percents, are chosen, against the mean of the candidates.

    Of candidates with one prompt of each per cent, predicted right. 1 where none are chosen, or where weights undo it.
    """
    if not s.chooses or s.choice_weight == "inverse":
        return [1.0] * len(at_rates)
    share = _shares(s)
    return [float(share[round(100 * p) - 1]) for p in at_rates]


def _shares(s: Settings) -> NDArray[np.float64]:
    def visits() -> Visits:
        policy = published_policy(s)
        assert isinstance(policy, Sequential)
        return [policy.plan.outcomes(float(p)) for p in _EVEN]

    return shares(s.choice, s.candidates, _EVEN, visits)


def _aim(s: Settings) -> str:
    if not s.aims:
        return ""
    return f"; --ada_objective {s.objective} asks for {_list([s.target.weight(p) for p in RATES])}"


def _uniform(s: Settings) -> list[Weight]:
    """Of OpenRLHF's own n rollouts a prompt with the same estimator."""
    whole = Selection("all", s.group_size, s.positive_above)
    return [drawn_weight(GroupBuilder(whole, s.advantage), s.group_size, p) for p in RATES]


def _weights(weights: Sequence[Weight]) -> str:
    return _list([weight.effective for weight in weights])


def _list(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)
