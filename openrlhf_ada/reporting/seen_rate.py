"""The pass rate of a recorded prompt without stopping bias, by the flags of its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, published_policy, resolve
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.visits import Visit


def recorded_settings(run: Run) -> Settings | None:
    """The settings that decided how much was sampled; None if the record lacks flags or has others (another version).

    The objective is left out: it decides about weights only, and may name another run that is not here.
    """
    ours = run.config.get("ada")
    if not isinstance(ours, dict):
        return None
    known = {f.name: ours[f.name] for f in fields(AdaConfig) if f.name in ours}
    n, batch = run.flag("rollout.n_samples_per_prompt"), run.flag("rollout.batch_size")
    advantage = run.flag("algo.advantage.estimator")
    try:
        given = AdaConfig(**{**known, "objective": "log"})
        return resolve(given, n=n, advantage=advantage, batch=batch)
    except (ConfigError, KeyError, TypeError):
        return None


Rate = Callable[[Visit], float]


def seen_rate(run: Run) -> tuple[Rate, str]:
    """How the pass rate of a visit is estimated from its samples without stopping bias, and the same in words.

    The share of positives K / N is biased wherever outcomes decide N.
    """
    rates = run.by_step(_seen_rate)
    words = _seen_rate(run)[1] + ("; visits before other flags were given, by the earlier ones" if run.earlier else "")
    return lambda visit: rates(visit.step)[0](visit), words


def _seen_rate(run: Run) -> tuple[Rate, str]:
    """With one set of flags."""
    settings = recorded_settings(run)
    n = run.flag("rollout.n_samples_per_prompt")
    first = settings.first_scores if settings is not None else n if isinstance(n, int) else 1
    by_first = f"the share of positives in a prompt's first {first} samples, which are drawn whatever they show"

    def of_first(visit: Visit) -> float:
        return float(visit.positive[:first].mean())

    if settings is None or settings.policy is not None:
        return of_first, by_first
    if settings.mode == "est":
        if settings.pilot is not None:
            return of_first, by_first
        return lambda v: v.positives / v.drawn, "the share of positives; the number of samples was set before them"
    policy = published_policy(settings)
    if not isinstance(policy, Sequential):
        return of_first, by_first
    plan = policy.plan

    def of_plan(visit: Visit) -> float:
        drawn, positives = visit.drawn, visit.positives
        # A pool whose sampling was broken off is in none of the plan's final states.
        return plan.unbiased_rate(drawn, positives) if plan.ends_with(drawn, positives) else of_first(visit)

    return of_plan, (
        "of all orders of its samples that end sampling where it ended, the share that starts with a positive "
        "(Girshick, Mosteller and Savage): unlike the share of positives, this has no stopping bias"
    )
