"""What a run's settings weigh prompts by, said at its start: stopping and selection always re-weight them somehow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openrlhf_ada.config.settings import Settings, published_policy
from openrlhf_ada.core.exact import Weight, drawn_weight, estimated_weights, sequential_weight
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Estimated, Sequential
from openrlhf_ada.core.selection import Selection

RATES = (0.01, 0.1, 0.5, 0.9)
"""Pass rates that the notes have figures for."""

LARGEST_CAP = 2048
"""Above this many rollouts of a prompt, enumeration would hold up the start."""


def objective_notes(s: Settings) -> list[str]:
    """One line on the weight of prompts, for modes seq and est; a second one where it is not what it seems."""
    if s.config.mode == "off" or s.config.policy is not None or s.config.spread is not None:
        return []
    if s.max_samples > LARGEST_CAP:
        return [f"objective: not computed, since --ada_max_samples {s.max_samples} is above {LARGEST_CAP}"]
    weights = weights_of(s)
    batch = "" if s.config.mode == "seq" else ", in a batch of evenly spread pass rates"
    batch += " (for rewards of 0 and 1)" if s.scores == "raw" else ""
    notes = [f"objective: prompts of pass rate {_list(RATES)} have the weight {_weights(weights)}{batch}{_aim(s)}"]
    if s.advantage == "group_norm":
        of = "trained group" if s.baseline == "kept" else "whole pool"
        notes.append(
            f"warning: --algo.advantage.estimator group_norm divides by the standard deviation of the {of}, so rare "
            f"outcomes weigh most. Uniform sampling of {s.group_size} has {_weights(_uniform(s))}: comparing the two "
            f"compares these weights as well. Reinforce-Ada as published has --algo.advantage.estimator dr_grpo"
        )
    return notes


def weights_of(s: Settings) -> list[Weight]:
    """At RATES; with predictions, where there are any, taken to be right."""
    policy = published_policy(s)
    if isinstance(policy, Sequential):
        return [sequential_weight(policy, p) for p in RATES]
    assert isinstance(policy, Estimated)
    rates = np.arange(1, 100) / 100
    return estimated_weights(policy, rates, [round(100 * p) - 1 for p in RATES])


def _aim(s: Settings) -> str:
    if s.correction == "none":
        return ""
    asked = _list([s.objective.weight(p) for p in RATES])
    condition = ", if predictions are right" if s.remembers and s.config.objective != "linear" else ""
    return f"; --ada_objective {s.config.objective} asks for {asked}{condition}"


def _uniform(s: Settings) -> list[Weight]:
    """Of OpenRLHF's own n rollouts a prompt with the same estimator."""
    whole = Selection("all", s.group_size, s.positive_above)
    return [drawn_weight(GroupBuilder(whole, s.advantage), s.group_size, p) for p in RATES]


def _weights(weights: Sequence[Weight]) -> str:
    return _list([weight.effective for weight in weights])


def _list(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)
