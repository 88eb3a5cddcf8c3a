"""The charts of one run, in the order of the questions that a reader has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from openrlhf_ada.reporting.charts import (
    COLORS,
    Chart,
    Color,
    Kind,
    Progress,
    Section,
    Series,
    over_time,
    with_data,
)
from openrlhf_ada.reporting.histograms import pass_rate_bin
from openrlhf_ada.reporting.payoff import Estimate, Payoff, Uniform
from openrlhf_ada.reporting.quantiles import NORMAL_975
from openrlhf_ada.reporting.run_record import Row, Run
from openrlhf_ada.reporting.seen_rate import Rate, seen_rate
from openrlhf_ada.reporting.visits import Visit

RELIABILITY_BINS = 10

BIN_NAMES = ("none right", "0–20%", "20–40%", "40–60%", "60–80%", "80–100%", "all right")
"""Of PASS_RATE_BINS."""

HOW_UNIFORM = (
    "Uniform sampling with m for every prompt is read from the first m samples of the same pools, which no stop rule "
    "selected. Bands and bars are 95 % intervals (bootstrap over prompts)."
)


def run_sections(run: Run, visits: Sequence[Visit], paid: Payoff | None) -> list[Section]:
    """Sections with charts; a chart without data is left out, and a section without charts too."""
    progress = Progress.of(run)
    rate, rate_text = seen_rate(run)
    return with_data(
        [
            Section("Does it pay?", _pay_charts(paid), HOW_UNIFORM),
            Section("Did it learn?", _learning_charts(run, progress)),
            Section(
                "Where did the rollouts go?",
                [_signal(run, progress), _allocation(run, visits, rate)],
                f"Pass rate seen: {rate_text}." if visits else "",
            ),
            Section("Were the predictions right?", _calibration_charts(run, visits, rate, progress)),
            Section("How was it trained, and what did it cost?", _cost_charts(run, progress)),
        ]
    )


Curve = tuple[str, str, Color]
"""Name, metric and color. Metrics of evaluations are drawn as points."""


def _curves(run: Run, progress: Progress, *curves: Curve, kind: Kind = "line") -> list[Series]:
    """Of those metrics that were recorded."""
    return [
        series
        for name, metric, color in curves
        for series in (
            over_time(name, run.evaluations, metric, progress, color, "points")
            if metric.startswith("eval/")
            else over_time(name, run.steps, metric, progress, color, kind)
        )
    ]


# -- does it pay ------------------------------------------------------------------------------------------------------


def _pay_charts(paid: Payoff | None) -> list[Chart]:
    """Signal and its cost over rollouts per prompt: uniform sampling as a curve, the run as a point."""
    if paid is None or not paid.curve:
        return []
    return [
        Chart(
            "pay_signal",
            "Groups with signal at equal rollouts per prompt",
            "Above the curve: signal from more of the prompts than uniform sampling at the same cost.",
            "share of groups with signal",
            [_uniform_curve(paid, lambda design: design.share), *_point(paid, paid.share)],
            "rollouts per prompt",
            y_share=True,
        ),
        Chart(
            "pay_cost",
            "Rollouts per group with signal",
            "Lower is cheaper. Few samples for each of more prompts are often cheapest, but leave hard and easy "
            "prompts untrained.",
            "rollouts per group with signal",
            [_uniform_curve(paid, _cost_of), *_point(paid, paid.cost)],
            "rollouts per prompt",
        ),
    ]


def _cost_of(design: Uniform) -> Estimate:
    m, share = design.per_prompt, design.share
    return Estimate(m / share.value, m / share.high, m / share.low)


def _uniform_curve(paid: Payoff, figure: Callable[[Uniform], Estimate]) -> Series:
    known = [design for design in paid.curve if design.share.low > 0]
    figures = [figure(design) for design in known]
    return Series(
        "uniform sampling",
        [f.value for f in figures],
        {"x": [design.per_prompt for design in known]},
        "orange",
        low=[f.low for f in figures],
        high=[f.high for f in figures],
        band=True,
    )


def _point(paid: Payoff, figure: Estimate | None) -> list[Series]:
    if figure is None:
        return []
    x = {"x": [paid.per_prompt]}
    return [Series("this run", [figure.value], x, "green", "points", [figure.low], [figure.high])]


# -- did it learn -----------------------------------------------------------------------------------------------------


def _learning_charts(run: Run, progress: Progress) -> list[Chart]:
    """Score and held-out accuracy; reward beside score where they differ."""
    training = _curves(run, progress, ("training prompts, first samples", "ada/first_wave_metric_mean", "blue"))
    training = training or _curves(run, progress, ("training prompts, mean reward", "rollout/reward_mean", "blue"))
    same = all(row.get("ada/reward_mean") == row.get("ada/metric_mean") for row in run.steps)
    both: tuple[Curve, ...] = (("reward", "ada/reward_mean", "orange"), ("score", "ada/metric_mean", "grey"))
    return [
        Chart(
            "score",
            "Right answers",
            "Squares: accuracy on held-out prompts with 95 % interval. Line: score of the first n samples of every "
            "training prompt, which no stop rule selected.",
            "share right",
            [*training, *held_out(run, progress)],
            y_share=True,
        ),
        Chart(
            "reward",
            "Reward and score of everything drawn",
            "Hard prompts draw more, so both lie below the policy's accuracy. Watch for a reward that rises while the "
            "score does not.",
            "mean",
            [] if same else _curves(run, progress, *both),
        ),
    ]


def held_out(run: Run, progress: Progress) -> list[Series]:
    """Accuracy of the evaluations, with intervals, as a list of one or none."""
    if not run.evaluations:
        return []
    values = [row["eval/accuracy"] for row in run.evaluations]
    halves = [row.get("eval/ci95") or 0.0 for row in run.evaluations]
    return [
        Series(
            "held-out prompts",
            values,
            progress.axes([row["step"] for row in run.evaluations]),
            "red",
            low=[v - h for v, h in zip(values, halves, strict=True)],
            high=[v + h for v, h in zip(values, halves, strict=True)],
        )
    ]


# -- where did the rollouts go ----------------------------------------------------------------------------------------


def _signal(run: Run, progress: Progress) -> Chart:
    """Groups with signal over time."""
    first = f"in the first {run.flag('rollout.n_samples_per_prompt')} samples of the same prompts"
    curves: tuple[Curve, ...] = (
        ("this run", "ada/signal_share", "green"),
        (first, "ada/signal_share_uniform", "orange"),
    )
    return Chart(
        "signal",
        "Groups with signal",
        "Share of trained groups with a gradient. The second curve is what the first samples alone would have had, "
        "for fewer rollouts: see above for equal ones.",
        "share of groups",
        _curves(run, progress, *curves),
        y_share=True,
    )


def _allocation(run: Run, visits: Sequence[Visit], rate: Rate) -> Chart:
    """Rollouts per prompt by difficulty."""
    predicted = [(v.predicted, v.drawn) for v in visits if v.predicted is not None]
    return Chart(
        "allocation",
        "Rollouts per prompt, by difficulty",
        "Mean rollouts of a prompt, by what it showed and, where a prediction decided, by what was predicted. "
        f"Uniform sampling would have {run.flag('rollout.n_samples_per_prompt')} everywhere. Point at a bar for the "
        "number of prompts.",
        "rollouts per prompt",
        [
            *_mean_draws("by the pass rate seen", [(rate(v), v.drawn) for v in visits], "blue"),
            *_mean_draws("by the pass rate predicted", predicted, "green"),
        ],
        "pass rate of the prompt",
        categories=BIN_NAMES,
    )


def _mean_draws(name: str, pairs: Sequence[tuple[float, int]], color: Color) -> list[Series]:
    bins: dict[int, list[int]] = defaultdict(list)
    for rate, drawn in pairs:
        bins[pass_rate_bin(rate)].append(drawn)
    if not bins:
        return []
    places = sorted(bins)
    means = [sum(bins[i]) / len(bins[i]) for i in places]
    words = [f"{len(bins[i]):,} prompts, {sum(bins[i]):,} rollouts" for i in places]
    return [Series(name, means, {"x": places}, color, "bar", text=words)]


# -- were the predictions right ---------------------------------------------------------------------------------------


def _calibration_charts(run: Run, visits: Sequence[Visit], rate: Rate, progress: Progress) -> list[Chart]:
    """Reliability of the predicted pass rates, and their Brier scores over time."""
    brier: tuple[Curve, ...] = (
        ("predictions", "ada/estimator_brier", "blue"),
        ("the mean pass rate for all", "ada/prior_brier", "orange"),
        ("critic", "ada/critic_brier", "pink"),
    )
    return [
        Chart(
            "reliability",
            "Reliability of the predictions",
            "Each point is a tenth of the scale: what was predicted, and what the prompts then showed, with 95 % "
            "interval. On the line, predictions are right on average. Point at it for the number of prompts.",
            "pass rate seen",
            _reliability(visits, rate),
            "pass rate predicted",
            x_share=True,
            y_share=True,
            diagonal=True,
        ),
        Chart(
            "brier",
            "Brier score",
            "Mean squared distance of predictions and outcomes. Predictions are worth having where they are below the "
            "score of one number for all prompts.",
            "squared error",
            _curves(run, progress, *brier),
        ),
    ]


def _reliability(visits: Sequence[Visit], rate: Rate) -> list[Series]:
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for visit in visits:
        if visit.predicted is not None:
            place = min(int(visit.predicted * RELIABILITY_BINS), RELIABILITY_BINS - 1)
            bins[place].append((visit.predicted, rate(visit)))
    if not bins:
        return []
    tables = [np.array(bins[place]) for place in sorted(bins)]
    predicted, seen = (np.array([table[:, side].mean() for table in tables]) for side in (0, 1))
    halves = [NORMAL_975 * table[:, 1].std(ddof=1) / len(table) ** 0.5 if len(table) > 1 else 0.0 for table in tables]
    return [
        Series(
            "prompts",
            seen.tolist(),
            {"x": predicted.tolist()},
            "blue",
            "points",
            np.maximum(0.0, seen - halves).tolist(),
            np.minimum(1.0, seen + halves).tolist(),
            text=[f"{len(table):,} prompts" for table in tables],
        )
    ]


# -- what it cost -----------------------------------------------------------------------------------------------------


def _cost_charts(run: Run, progress: Progress) -> list[Chart]:
    """Lengths, seconds by phase, and rollouts that were not trained."""
    first, evaluated = "training prompts, first samples", "held-out prompts"
    lengths = _curves(
        run,
        progress,
        (first, "rollout/response_length_mean", "blue"),
        ("trained samples", "response_length", "green"),
        (evaluated, "eval/tokens", "red"),
    )
    cut: tuple[Curve, ...] = ((first, "rollout/truncated_rate", "blue"), (evaluated, "eval/truncated", "red"))
    parts: tuple[Curve, ...] = (
        ("trained", "ada/kept", "blue"),
        ("unused", "ada/unused", "orange"),
        ("aborted", "ada/aborted", "green"),
    )
    note = "Unused: finished, in the baseline, not trained. Aborted: sent early and not needed, failed, or lost."
    share, waste = _curves(run, progress, *cut), _curves(run, progress, *parts, kind="area")
    return [
        Chart("length", "Length of an answer", "A rising length is paid for in every step.", "tokens", lengths),
        Chart("cut_off", "Answers cut off at the length limit", "", "share of answers", share, y_share=True),
        Chart("phases", "Seconds of a step, by phase", "Without evaluations.", "seconds", _phases(run, progress)),
        Chart("waste", "Rollouts of a step", note, "rollouts", waste),
    ]


def _phases(run: Run, progress: Progress) -> list[Series]:
    """The host's `timing/...`, and what is left of a step's seconds. `timing/step_total` is their sum."""
    names = sorted({n for row in run.steps for n in row if n.startswith("timing/")} - {"timing/step_total"})
    names = names[: len(COLORS) - 1]
    if not names:
        return []
    rows: list[Row] = []
    for row in run.steps:
        known = {name: row.get(name) or 0.0 for name in names}
        other = max(0.0, (row.get("ada/step_s") or 0.0) - sum(known.values()))
        rows.append({"step": row["step"], **known, "other": other})
    return [
        series
        for name, color in zip([*names, "other"], COLORS, strict=False)
        for series in over_time(name.removeprefix("timing/").replace("_", " "), rows, name, progress, color, "area")
    ]
