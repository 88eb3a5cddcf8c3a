"""What --ada_candidates chooses by, and which numbers of candidates there can be."""

from __future__ import annotations

import numpy as np

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.choice import PromptChooser
from openrlhf_ada.core.policies import Estimated, Policy, Sequential, TwoStage
from openrlhf_ada.core.visits import VisitHistory

_STREAM = 3
"""Keeps its random numbers apart from others of the run's seed."""


def make_chooser(settings: Settings, policy: Policy, num_rows: int, seed: int) -> PromptChooser:
    """What chooses prompts of a data set of so many rows, by what `policy` remembers. Raises TypeError where prompts
    are to be chosen and the policy is not one of ours, which remembers."""
    memory = policy.memory if isinstance(policy, Sequential | Estimated | TwoStage) else None
    if settings.chooses and memory is None:
        raise TypeError(f"--ada_candidates needs pass rates, and {type(policy).__name__} has no memory of them")
    visits = VisitHistory(settings.positive_above)
    return PromptChooser(
        num_rows,
        settings.candidates,
        np.random.default_rng([seed, _STREAM]),
        None if memory is None else memory.counts,
        visits if settings.chooses else None,
        value=settings.choice,
    )


def check_candidates(s: Settings, prompts: int, rows: int) -> None:
    """Raises ConfigError where C times the prompts of a step are more than the data set has rows."""
    if s.chooses and s.candidates * prompts > rows:
        most = rows // prompts
        rule = f"times --rollout.batch_size {prompts} these are more different prompts than the {rows} of the data"
        remedy = f"Use --ada_candidates {most}" if most > 1 else "Leave it out, or give more prompts"
        raise ConfigError("--ada_candidates", s.candidates, rule, remedy)
