"""The charts of one run: those of `page_files/charts.yaml`, in the order of the questions that a reader has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import yaml

from openrlhf_ada.reporting.charts import COLORS, Chart, Color, Progress, Section, Series, over_time, with_data
from openrlhf_ada.reporting.histograms import by_pass_rate
from openrlhf_ada.reporting.payoff import Payoff
from openrlhf_ada.reporting.run_record import Row, Run
from openrlhf_ada.reporting.visits import Visit


def run_sections(run: Run, visits: Sequence[Visit], paid: Payoff | None) -> list[Section]:
    """Sections with charts; a chart without data is left out, and a section without charts too."""
    progress = Progress.of(run)
    n = run.flag("rollout.n_samples_per_prompt")
    first = n if isinstance(n, int) else 1
    more: Mapping[str, Callable[[], list[Series]]] = {
        "pay_signal": lambda: _pay(paid),
        "score": lambda: held_out(run, progress),
        "allocation": lambda: _allocation(visits, first),
        "phases": lambda: _phases(run, progress),
    }
    described = yaml.safe_load((files("openrlhf_ada.reporting") / "page_files" / "charts.yaml").read_text("utf-8"))
    sections: list[Section] = []
    for section in described:
        charts: list[Chart] = []
        for chart in section["charts"]:
            series = _curves(run, progress, chart, first) + more.get(chart["name"], list)()
            charts.append(_chart(chart, series, first))
        sections.append(Section(section["title"], charts, section.get("text", "")))
    return with_data(sections)


def _chart(texts: Mapping[str, Any], series: Sequence[Series], n: int) -> Chart:
    return Chart(
        texts["name"],
        texts["title"],
        texts.get("note", "").format(n=n),
        texts["unit"],
        series,
        texts.get("x_label", ""),
        y_share=texts["unit"].startswith("share"),
        categories=texts.get("categories", ()),
    )


def _curves(run: Run, progress: Progress, chart: Mapping[str, Any], n: int) -> list[Series]:
    """Of those metrics that were recorded. Those of evaluations are drawn as points."""
    found: list[Series] = []
    for label, metric, color in chart.get("curves", ()):
        rows, kind = (
            (run.evaluations, "points") if metric.startswith("eval/") else (run.steps, chart.get("kind", "line"))
        )
        found += over_time(label.format(n=n), rows, metric, progress, color, kind)
    return found


def _pay(paid: Payoff | None) -> list[Series]:
    """Uniform sampling as a curve, the run as a point."""
    if paid is None or not paid.curve:
        return []
    x, shares = [design.per_prompt for design in paid.curve], [design.share for design in paid.curve]
    y, low, high = ([getattr(share, name) for share in shares] for name in ("value", "low", "high"))
    of_run, at = paid.share, {"x": [paid.per_prompt]}
    return [
        Series("uniform sampling", y, {"x": x}, "orange", low=low, high=high, band=True),
        Series("this run", [of_run.value], at, "green", "points", [of_run.low], [of_run.high]),
    ]


def held_out(run: Run, progress: Progress) -> list[Series]:
    """Accuracy of the evaluations, with intervals, as a list of one or none."""
    if not run.evaluations:
        return []
    figures = [(row["eval/accuracy"], row.get("eval/ci95") or 0.0) for row in run.evaluations]
    return [
        Series(
            "held-out prompts",
            [value for value, _ in figures],
            progress.axes([row["step"] for row in run.evaluations]),
            "red",
            low=[value - half for value, half in figures],
            high=[value + half for value, half in figures],
        )
    ]


def _allocation(visits: Sequence[Visit], first: int) -> list[Series]:
    """Mean rollouts by difficulty. The first samples have no stopping bias; the share of all positives K / N has."""
    seen = [(float(visit.positive[:first].mean()), visit.drawn) for visit in visits]
    predicted = [(visit.predicted, visit.drawn) for visit in visits if visit.predicted is not None]
    return [
        *_mean_draws("by the pass rate seen", seen, "blue"),
        *_mean_draws("by the pass rate predicted", predicted, "green"),
    ]


def _mean_draws(name: str, pairs: Sequence[tuple[float, int]], color: Color) -> list[Series]:
    bins = by_pass_rate(pairs)
    if not bins:
        return []
    means = [sum(drawn) / len(drawn) for drawn in bins.values()]
    words = [f"{len(drawn):,} prompts, {sum(drawn):,} rollouts" for drawn in bins.values()]
    return [Series(name, means, {"x": list(bins)}, color, "bar", text=words)]


def _phases(run: Run, progress: Progress) -> list[Series]:
    """OpenRLHF's `timing/...`, and what is left of a step's seconds. `timing/step_total` is their sum."""
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
