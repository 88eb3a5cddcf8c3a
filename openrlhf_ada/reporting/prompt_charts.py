"""Charts over prompts rather than steps: allocation, effective weight, and whether predictions were right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from openrlhf_ada.reporting.charts import Chart, Progress, Series, over_time
from openrlhf_ada.reporting.histograms import PASS_RATE_BINS
from openrlhf_ada.reporting.quantiles import NORMAL_975
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.stopped import Rate
from openrlhf_ada.reporting.visits import Visit

RELIABILITY_BINS = 10


def allocation_charts(run: Run, visits: Sequence[Visit], rate: Rate) -> list[Chart]:
    """Rollouts per prompt by difficulty, how many prompts drew how many, and effective weights."""
    size = run.flag("rollout.n_samples_per_prompt")
    seen = _mean_draws("by the pass rate seen", [(rate(v), v.drawn) for v in visits], "blue")
    predicted = _mean_draws(
        "by the pass rate predicted",
        [(v.predicted, v.drawn) for v in visits if v.predicted is not None],
        "green",
    )
    return [
        Chart(
            "allocation",
            "Rollouts per prompt, by difficulty",
            "Mean rollouts of a prompt, by what it showed and, where a prediction decided, by what was predicted. "
            f"Uniform sampling would have {size} everywhere. Point at a bar for the number of prompts.",
            "rollouts per prompt",
            [*seen, *predicted],
            "pass rate of the prompt",
            categories=[_bin_name(label) for label in PASS_RATE_BINS],
        ),
        _draws(visits),
        _weights(run),
    ]


def pass_rate_bin(rate: float) -> int:
    """Position in PASS_RATE_BINS: 0 and 1 have bins of their own, the others are half-open."""
    if rate <= 0.0:
        return 0
    return 6 if rate >= 1.0 else 1 + min(int(5 * rate), 4)


def _bin_name(label: str) -> str:
    """0.2-0.4 becomes 20-40% with a real dash; the bins of one outcome are in words."""
    if label == "0":
        return "none right"
    if label == "1":
        return "all right"
    low, high = (round(100 * float(edge)) for edge in label.split("-"))
    return f"{low}–{high}%"


def _mean_draws(name: str, pairs: Sequence[tuple[float, int]], color: str) -> list[Series]:
    bins: dict[int, list[int]] = defaultdict(list)
    for rate, drawn in pairs:
        bins[pass_rate_bin(rate)].append(drawn)
    if not bins:
        return []
    places = sorted(bins)
    means = [sum(bins[i]) / len(bins[i]) for i in places]
    words = [f"{len(bins[i]):,} prompts, {sum(bins[i]):,} rollouts" for i in places]
    return [Series(name, means, {"x": places}, color, "bar", text=words)]  # pyright: ignore[reportArgumentType]


def _draws(visits: Sequence[Visit]) -> Chart:
    counts = sorted(Counter(visit.drawn for visit in visits).items())
    shares = [prompts / max(len(visits), 1) for _, prompts in counts]
    words = [f"{prompts:,} prompts, {drawn * prompts:,} rollouts" for drawn, prompts in counts]
    bars = Series("prompts", shares, {"x": list(range(len(counts)))}, "blue", "bar", text=words)
    return Chart(
        "draws",
        "How many rollouts a prompt drew",
        "Many prompts at the limit: their answers never differed, or the prompts are far too hard or easy.",
        "share of prompts",
        [bars] if counts else [],
        "rollouts",
        y_share=True,
        categories=[str(drawn) for drawn, _ in counts],
    )


def _weights(run: Run) -> Chart:
    """Mean of `ada/effective_weight` over the run, each step by its prompts in the bin."""
    sums = {label: [0.0, 0.0] for label in PASS_RATE_BINS}
    for row in run.steps:
        prompts = row.get("ada/allocation_by_pass_rate") or {}
        for label, weight in (row.get("ada/effective_weight") or {}).items():
            if label in sums and label in prompts:
                sums[label][0] += weight * prompts[label]["prompts"]
                sums[label][1] += prompts[label]["prompts"]
    places = [i for i, label in enumerate(PASS_RATE_BINS) if sums[label][1]]
    means = [sums[PASS_RATE_BINS[i]][0] / sums[PASS_RATE_BINS[i]][1] for i in places]
    words = [f"{sums[PASS_RATE_BINS[i]][1]:,.0f} prompts" for i in places]
    return Chart(
        "weight",
        "Effective weight of a prompt",
        "How much the gradient of a prompt's pass rate counts in the trained groups, by the share of positives in its "
        "pool. Read it for size, not for shape: pools sorted by their own outcome differ from prompts sorted by pass "
        "rate.",
        "weight",
        [Series("trained groups", means, {"x": places}, "pink", "bar", text=words)] if places else [],
        "share of positives in the pool",
        categories=[_bin_name(label) for label in PASS_RATE_BINS],
    )


def calibration_charts(run: Run, visits: Sequence[Visit], rate: Rate, progress: Progress) -> list[Chart]:
    """Reliability of the predicted pass rates, and their Brier scores over time."""
    brier = over_time("predictions", run.steps, "ada/estimator_brier", progress, "blue")
    brier += over_time("the mean pass rate for all", run.steps, "ada/prior_brier", progress, "orange")
    brier += over_time("critic", run.steps, "ada/critic_brier", progress, "pink")
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
            brier,
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
    means = [table.mean(axis=0) for table in tables]
    halves = [NORMAL_975 * table[:, 1].std(ddof=1) / len(table) ** 0.5 if len(table) > 1 else 0.0 for table in tables]
    seen = [float(mean[1]) for mean in means]
    return [
        Series(
            "prompts",
            seen,
            {"x": [float(mean[0]) for mean in means]},
            "blue",
            "points",
            [max(0.0, s - h) for s, h in zip(seen, halves, strict=True)],
            [min(1.0, s + h) for s, h in zip(seen, halves, strict=True)],
            text=[f"{len(table):,} prompts" for table in tables],
        )
    ]
