"""Why a prompt got the number of rollouts that it got, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, resolve
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.visits import Visit


def reasons(run: Run, visits: Sequence[Visit]) -> list[str]:
    """A sentence for each visit; empty for the record of another version, whose flags or values are others, and for a
    policy of one's own."""
    ours, n, batch = run.flag("ada"), run.flag("rollout.n_samples_per_prompt"), run.flag("rollout.batch_size")
    if not isinstance(ours, dict) or ours.get("policy") or set(ours) - {field.name for field in fields(AdaConfig)}:
        return []
    try:
        settings = resolve(AdaConfig(**ours), n=n, advantage=run.flag("algo.advantage.estimator"), batch=batch)
    except (ConfigError, TypeError):
        return []
    if settings.mode == "est":
        return [_split(settings, visit) for visit in visits]
    return [_stopped(settings, visit) for visit in visits]


def _split(settings: Settings, visit: Visit) -> str:
    known = "" if visit.predicted is None else f" for the predicted pass rate of {visit.predicted:.2f}"
    limits = f"between {settings.min_samples} and {settings.max_samples}"
    return f"{visit.drawn} of the step's rollouts were its part{known} ({settings.allocation}, {limits})."


def _stopped(settings: Settings, visit: Visit) -> str:
    rule = ExitRule(settings.k_pos, settings.k_neg, settings.positive_above, settings.gate)
    positives, most = int(visit.positive.sum()), settings.max_samples
    if rule.is_fixed:
        return f"Every prompt gets {most}."
    if settings.gate is not None:
        first, right = settings.gate.pilot, int(visit.positive[: settings.gate.pilot].sum())
        goes_on = "goes on" if settings.gate.is_open(right) else "ends"
        return f"{right} of the first {first} are right: with so many a prompt {goes_on} (exit gate)."
    wanted = " and ".join(f"{k} {what}" for k, what in ((rule.k_pos, "right"), (rule.k_neg, "wrong")) if k)
    if rule.is_met(visit.drawn, positives):
        return f"Closed after {visit.drawn}, with at least {wanted} (exit {settings.exit}, waves of {settings.wave})."
    if visit.drawn >= most:
        return f"Closed at the most of {most}, without {wanted} (exit {settings.exit})."
    return f"Ended after {visit.drawn} of at most {most}, without {wanted}."
