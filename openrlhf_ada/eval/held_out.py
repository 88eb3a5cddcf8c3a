"""Evaluation during training: the figures of `measures`, from the answers to held-out prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from openrlhf_ada.eval.measures import Answered, per_problem
from openrlhf_ada.reporting.quantiles import half_width


@dataclass
class HeldOut:
    """One evaluation. `per_prompt`: answers that were sampled for each prompt. `no_score`: answers without a score,
    which enter no figure. A prompt none of whose answers has a score is not here."""

    per_prompt: int
    by_source: dict[str, list[Answered]] = field(default_factory=dict)
    no_score: int = 0

    @property
    def is_measurable(self) -> bool:
        """Is there an answer with a score, and are all scores in [0, 1]? OpenRLHF takes any number."""
        scores = [score for groups in self.scores().values() for group in groups for score in group]
        return bool(scores) and all(0.0 <= score <= 1.0 for score in scores)

    @property
    def missing_share(self) -> float:
        """Share of all answers that have no score."""
        known = sum(len(prompt.scores) for prompts in self.by_source.values() for prompt in prompts)
        return self.no_score / max(known + self.no_score, 1)

    def above(self, threshold: float) -> HeldOut:
        """The same answers, with score 1 where it exceeds `threshold` and 0 elsewhere."""
        by_source = {
            name: [replace(prompt, scores=[float(score > threshold) for score in prompt.scores]) for prompt in prompts]
            for name, prompts in self.by_source.items()
        }
        return replace(self, by_source=by_source)

    def scores(self) -> dict[str, list[Sequence[float]]]:
        return {name: [prompt.scores for prompt in prompts] for name, prompts in self.by_source.items()}


def evaluation_metrics(held_out: HeldOut, positive_above: float) -> dict[str, float | int | None]:
    """The `eval/...` part of an evaluation row (docs/metrics.md), of one that is measurable.

    An answer is right if it scores more than `positive_above`. Answers to one prompt share its difficulty, so
    `eval/ci95`, half of the 95 % interval, is of prompt means; None for one prompt. `eval/score` is the mean score.
    pass@n and all_equal@n are over the prompts all of whose n answers have a score.
    """
    n = held_out.per_prompt
    by_source = {
        source: [replace(prompt, right=[score > positive_above for score in prompt.scores]) for prompt in group]
        for source, group in held_out.by_source.items()
    }
    answered = [prompt for group in by_source.values() for prompt in group]
    complete = any(a.n == n for a in answered)
    values = per_problem(answered, n, [n] if complete and n > 1 else [])
    right = values.pop(f"avg@{n}")
    logged = ("score", "tokens", "truncated", f"pass@{n}", f"all_equal@{n}")
    return {
        "eval/accuracy": math.fsum(right) / len(right),
        "eval/ci95": half_width(right.tolist()),
        "eval/num_prompts": len(answered),
        "eval/num_samples": sum(a.n for a in answered),
        "eval/no_score": held_out.no_score,
        **{f"eval/{name}": float(np.nanmean(values[name])) for name in logged if name in values},
        **{
            f"eval/accuracy/{source}": math.fsum(sum(a.right) / a.n for a in group) / len(group)
            for source, group in by_source.items()
        },
    }


def best_metric_names(n: int) -> tuple[str, ...]:
    """What --ckpt.best_metric_key may name, besides OpenRLHF's own names."""
    return ("accuracy", f"pass@{n}") if n > 1 else ("accuracy",)


def as_logs(metrics: Mapping[str, float | int | None]) -> dict[str, float]:
    """For OpenRLHF's loggers, which put `eval/` before every name and take numbers only."""
    return {name.removeprefix("eval/"): float(value) for name, value in metrics.items() if value is not None}
