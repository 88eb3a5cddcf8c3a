"""Our flags of a run, resolved: which scores are positive depends on the reward in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from openrlhf_ada.config.flags import FULL_MARKS
from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.config.preset_flags import is_given
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, resolve
from openrlhf_ada.host.engine_options import recorded
from openrlhf_ada.reward.names import split_names
from openrlhf_ada.reward.reward_function import MIXED, RIGHT_OR_WRONG, default_threshold, name_of


def settings_of(args: SimpleNamespace, argv: Sequence[str]) -> Settings:
    """Of parsed flags and their command line; raises ConfigError. This is the one place where flags are resolved."""
    given = AdaConfig(**vars(args.ada))
    # A method's threshold is for scores in [0, 1], unless the method says itself that they are raw.
    raw_by_method = _is_raw(given) and not any(
        is_given(f"ada.{name}", argv) for name in ("scores", "positive_quantile")
    )
    keeps = raw_by_method or is_given("ada.positive_threshold", argv)
    # Mode off decides nothing by scores.
    if given.mode != "off" and given.scores is None and scored_by_model(args):
        given = replace(given, scores="raw")
    threshold = given.positive_threshold
    if _is_raw(given):
        threshold = threshold if keeps else None
    elif threshold is None:
        threshold = default_threshold(_score(args))
    given = replace(given, positive_threshold=threshold, engine_args=recorded(given.engine_args))
    n, advantage = args.rollout.n_samples_per_prompt, args.algo.advantage.estimator
    return resolve(given, n=n, advantage=advantage, batch=args.rollout.batch_size)


def _is_raw(given: AdaConfig) -> bool:
    return given.scores == "raw" or (given.scores is None and given.positive_quantile is not None)


def threshold_notes(args: SimpleNamespace) -> list[str]:
    """Where answers may be positive that are not right, a line that says so."""
    reward, settings = _score(args), args.ada
    if settings.mode == "off" or settings.scores == "raw" or not reward:
        return []
    threshold = settings.positive_above
    if default_threshold(reward) is None:
        if settings.positive_threshold is not None:
            return []
        return [
            f"--ada_positive_threshold: a sample is positive if its score from {reward} is above {threshold:g}. Where "
            f"partial credit must not count, give {FULL_MARKS:g}; `eval` counts full marks only"
        ]
    has_partial = reward == MIXED or reward not in RIGHT_OR_WRONG or settings.code_partial
    if has_partial and threshold < FULL_MARKS:
        return [
            f"--ada_positive_threshold is {threshold:g}: {reward} gives partial credit, so answers that are not right "
            f"count as positive. Give {FULL_MARKS:g} to count right answers only"
        ]
    return []


def _score(args: SimpleNamespace) -> str:
    """The first reward, by its name where it is one of ours; empty where an agent or a reward model scores."""
    return "" if args.train.agent_func_path else name_of((split_names(args.reward.remote_url) or [""])[0])
