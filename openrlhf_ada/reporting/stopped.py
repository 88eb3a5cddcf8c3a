"""By the flags of a recorded run: why sampling of a prompt stopped, and its pass rate without stopping bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, published_policy, resolve
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.stopping import is_enough
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
        given = AdaConfig(**{**known, "objective": "log", "objective_power": None})
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

    if settings is None or settings.policy is not None or settings.spread is not None:
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


Reason = Callable[[Visit], str]


def stop_reason(run: Run) -> Reason:
    """Why sampling of a visit stopped, in a few words."""
    reasons = run.by_step(_stop_reason)
    return lambda visit: reasons(visit.step)(visit)


def _stop_reason(run: Run) -> Reason:
    settings = recorded_settings(run)
    if settings is None:
        return lambda visit: "the flags of this run do not tell"
    if settings.policy is not None:
        return lambda visit: f"the policy {settings.policy} closed the prompt"
    decided = _budget_reason if settings.mode == "est" else _exit_reason

    def reason(visit: Visit) -> str:
        text = decided(visit, settings)
        return text if visit.is_trained else f"{text}; the prompt was replaced or dropped, nothing of it is trained"

    return reason


def _budget_reason(visit: Visit, settings: Settings) -> str:
    if settings.max_samples <= visit.drawn:
        return f"its share of the budget was the most that a prompt may have, {settings.max_samples}"
    if visit.drawn <= settings.min_samples:
        return f"its share of the budget was the least that a prompt gets, {settings.min_samples}"
    return f"its share of the budget was {visit.drawn}"


def _exit_reason(visit: Visit, settings: Settings) -> str:
    right, wrong = visit.positives, visit.drawn - visit.positives
    gate = settings.gate
    if gate is not None and visit.drawn < settings.max_samples:
        return f"{right} positives among the first {visit.drawn}: outside the bounds of the gate"
    if gate is not None or not settings.waits:
        return f"every prompt that goes on gets {settings.max_samples}"
    if settings.spread is not None and visit.drawn < settings.max_samples:
        return f"its scores are {settings.spread:g} apart, which was asked for"
    if is_enough(settings.k_pos, settings.k_neg, visit.drawn, right):
        wanted = [f"{settings.k_pos} positives"] * bool(settings.k_pos)
        wanted += [f"{settings.k_neg} negatives"] * bool(settings.k_neg)
        return f"enough: {right} positives and {wrong} negatives (wanted: {' and '.join(wanted)})"
    if visit.drawn >= settings.max_samples:
        only = ", all positive" if not wrong else ", all negative" if not right else ""
        return f"the limit of {settings.max_samples} samples was reached{only}"
    return "sampling was broken off"
