"""The `eval/...` names of `metrics`."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """What one metric says; the words go to `docs/metrics.md`."""

    unit: str
    meaning: str
    bad: str


EVALUATION_METRICS: dict[str, Metric] = {
    "eval/accuracy": Metric(
        "share, 0 to 1",
        "Mean over held-out prompts of the prompt's mean metric, after this many training steps (0: before training).",
        "Falls while `ada/first_wave_metric_mean` rises: over-fitting to the training prompts.",
    ),
    "eval/ci95": Metric(
        "share",
        "Half-width of the 95 % interval of `eval/accuracy`: Student's t over prompt means, so clustered by prompt. "
        "null with one prompt.",
        "As large as the gain: evaluate more prompts before believing it.",
    ),
    "eval/num_prompts": Metric("prompts", "Held-out prompts evaluated.", "Differs between rows of one run."),
    "eval/num_samples": Metric("answers", "Answers sampled for them in all.", "-"),
    "eval/accuracy/<datasource>": Metric(
        "share, 0 to 1", "`eval/accuracy` of the prompts of one datasource.", "One falls while the others rise."
    ),
    "eval/pass@<n>": Metric(
        "share, 0 to 1",
        "Prompts of which at least one of the n answers (`eval.n_samples_per_prompt`) is right.",
        "Falls while accuracy rises: answers become alike, and hard prompts are given up.",
    ),
    "eval/all_equal@<n>": Metric(
        "share, 0 to 1", "Prompts whose n answers are all right or all wrong.", "Near 1: groups of n have no signal."
    ),
    "eval/tokens": Metric(
        "tokens", "Mean length of an answer.", "Grows while accuracy does not: length is not what was missing."
    ),
    "eval/truncated": Metric(
        "share, 0 to 1", "Answers that were cut off at the longest length.", "Above a few per cent: raise the length."
    ),
    "eval/no_verdict": Metric(
        "answers",
        "Answers without a verdict. They are in no figure.",
        "Above 0: look for the cause in the engines' logs.",
    ),
}
