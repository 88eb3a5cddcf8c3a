"""Which samples are positive where the user has not said so: what the reward in use calls right."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from openrlhf_ada.config.defaults import FULL_MARKS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import UNIT_THRESHOLD, scores
from openrlhf_ada.reward.names import split_names
from openrlhf_ada.reward.reward_function import MIXED, RIGHT_OR_WRONG, name_of
from openrlhf_ada.reward.right import default_threshold


def with_threshold(config: AdaConfig, args: SimpleNamespace) -> AdaConfig:
    """The same, with the threshold of the reward that decides, where none was given and it has one. `args`: the host's
    parsed flags."""
    if config.positive_threshold is not None or scores(config) == "raw":
        return config
    return replace(config, positive_threshold=default_threshold(_score(args)))


def threshold_notes(config: AdaConfig, args: SimpleNamespace) -> list[str]:
    """Where answers may be positive that are not right, a line that says so."""
    reward = _score(args)
    if config.mode == "off" or scores(config) == "raw" or not reward:
        return []
    threshold = UNIT_THRESHOLD if config.positive_threshold is None else config.positive_threshold
    if default_threshold(reward) is None:
        if config.positive_threshold is not None:
            return []
        return [
            f"--ada_positive_threshold: a sample is positive if its score from {reward} is above {threshold:g}. Where "
            f"partial credit must not count, give {FULL_MARKS:g}; `eval` counts full marks only"
        ]
    has_partial = reward == MIXED or reward not in RIGHT_OR_WRONG or config.code_partial
    if has_partial and threshold < FULL_MARKS:
        return [
            f"--ada_positive_threshold is {threshold:g}: {reward} gives partial credit, so answers that are not right "
            f"count as positive. Give {FULL_MARKS:g} to count right answers only"
        ]
    return []


def _score(args: SimpleNamespace) -> str:
    """The first reward, by its name where it is one of ours; empty where an agent or a reward model scores."""
    return "" if args.train.agent_func_path else name_of((split_names(args.reward.remote_url) or [""])[0])
