"""Several runs beside each other. Runs that differ in their seed alone are one configuration, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from openrlhf_ada.reporting.charts import COLORS, Chart, Color, Progress, Section, Series, over_time, with_data
from openrlhf_ada.reporting.page import escaped, html_table, made_page, write_page
from openrlhf_ada.reporting.quantiles import half_width
from openrlhf_ada.reporting.recorded_flags import decisive
from openrlhf_ada.reporting.report import accuracy_text, duration
from openrlhf_ada.reporting.run_charts import held_out
from openrlhf_ada.reporting.run_record import Run, summarise

LONGEST_LABEL = 60

SHARED = ("eval.dataset", "eval.temperature", "reward.remote_url", "actor.model_name_or_path")
"""Flags without which accuracies are not about the same thing."""

METRICS = (
    ("score", "Score of the training prompts", "ada/first_wave_metric_mean", "share right"),
    ("signal", "Groups with signal", "ada/signal_share", "share of groups"),
    ("step_rollouts", "Rollouts of a step", "ada/drawn", "rollouts"),
    ("reward", "Mean reward of the first samples", "rollout/reward_mean", "reward"),
    ("length", "Length of an answer", "rollout/response_length_mean", "tokens"),
    ("seconds", "Seconds of a step", "ada/step_s", "seconds"),
)
"""Name, title, metric and unit of a chart."""

HEADER = (
    *("run", "configuration", "seed", "accuracy before", "after", "groups with signal", "rollouts per such group"),
    *("steps", "rollouts", "tokens", "time"),
)


@dataclass(slots=True)
class Configuration:
    """Runs with the same flags but for their seeds. `flags`: what is compared; `label`: what tells it apart."""

    flags: dict[str, str]
    runs: list[Run] = field(default_factory=list)
    label: str = ""


def write_comparison(runs: Sequence[Run], out_html: Path) -> None:
    """Write a page with the curves, figures and flags of two or more runs. Raises ValueError for a run given twice."""
    configurations = group_runs(runs)
    page = made_page(
        title=f"{len(runs)} runs, {len(configurations)} configuration" + ("s" if len(configurations) > 1 else ""),
        subtitle=" · ".join(configuration.label for configuration in configurations),
        head=_warnings(configurations) + _table(configurations),
        sections=_sections(configurations),
        tables=_differences(configurations),
        source=f"written from {', '.join(str(run.run_dir) for run in runs)}. docs/report.md explains this page.",
    )
    write_page(out_html, page)


def group_runs(runs: Sequence[Run]) -> list[Configuration]:
    """Configurations in the order of the runs, with labels. Raises ValueError for a run that is given twice."""
    places = [run.run_dir.resolve() for run in runs]
    if twice := [str(place) for place in places if places.count(place) > 1]:
        raise ValueError(f"{twice[0]} is given twice: name every run once")
    configurations: list[Configuration] = []
    for run in runs:
        # A flag without a value is as good as none: another version may not have it.
        given = {name: value for name, value in decisive(run.config).items() if value != "None"}
        flags = {name: value for name, value in given.items() if name.rpartition(".")[2] != "seed"}
        same = [known for known in configurations if known.flags == flags]
        if not same:
            configurations.append(Configuration(flags))
        (same or configurations)[-1].runs.append(run)
    _label(configurations)
    return configurations


def different_flags(configurations: Sequence[Configuration]) -> list[str]:
    """Names of flags that are not the same in all, in the order of the record."""
    names = dict.fromkeys(name for configuration in configurations for name in configuration.flags)
    return [name for name in names if len({c.flags.get(name) for c in configurations}) > 1]


def _label(configurations: Sequence[Configuration]) -> None:
    """By the flags that differ where these are few and short, else by the first run's name."""
    names = different_flags(configurations)
    by_flags = [", ".join(f"{n.rpartition('.')[2]} {c.flags.get(n, 'none')}" for n in names) for c in configurations]
    readable = bool(names) and all(len(label) <= LONGEST_LABEL for label in by_flags)
    for configuration, label in zip(configurations, by_flags, strict=True):
        configuration.label = label if readable else configuration.runs[0].run_dir.resolve().name
        if len(configuration.runs) > 1:
            configuration.label += f" ({len(configuration.runs)} runs)"


# -- curves -----------------------------------------------------------------------------------------------------------


def _sections(configurations: Sequence[Configuration]) -> list[Section]:
    """Held-out accuracy first, then each metric that a run recorded."""
    note = (
        "One run: 95 % interval over held-out prompts. Several: their mean, with a 95 % interval (Student's t) "
        "between runs, at the steps that all have."
    )
    accuracy = _curves(configurations, held_out)
    charts = [Chart("accuracy", "Accuracy on held-out prompts", note, "share right", accuracy, y_share=True)]
    for name, title, metric, unit in METRICS:
        series = _curves(configurations, lambda run, progress, m=metric: over_time("", run.steps, m, progress))
        charts.append(Chart(name, title, "", unit, series, y_share=unit.startswith("share")))
    return with_data([Section("Curves", charts)])


def _curves(configurations: Sequence[Configuration], draw: Callable[[Run, Progress], list[Series]]) -> list[Series]:
    series: list[Series] = []
    for place, configuration in enumerate(configurations):
        of_runs = [s for run in configuration.runs for s in draw(run, Progress.of(run))]
        if of_runs:
            series.append(_mean_series(configuration.label, of_runs, COLORS[place % len(COLORS)]))
    return series


def _mean_series(label: str, of_runs: Sequence[Series], color: Color) -> Series:
    """One run as it is; several as their mean at the steps that all have, with an interval."""
    if len(of_runs) == 1:
        return replace(of_runs[0], name=label, color=color)
    tables = [{step: i for i, step in enumerate(s.x["steps"])} for s in of_runs]
    steps = [step for step in of_runs[0].x["steps"] if all(step in table for table in tables)]

    def by_step(values: Callable[[Series], Sequence[float | None]]) -> list[list[float]]:
        pairs = list(zip(of_runs, tables, strict=True))
        return [[float(values(s)[table[step]] or 0.0) for s, table in pairs] for step in steps]

    measured = by_step(lambda s: s.y)
    average, halves = [fmean(values) for values in measured], [half_width(values) or 0.0 for values in measured]
    axes = [name for name in of_runs[0].x if all(name in s.x for s in of_runs)]
    return Series(
        label,
        average,
        {name: [fmean(values) for values in by_step(lambda s, n=name: s.x[n])] for name in axes},
        color,
        low=[v - h for v, h in zip(average, halves, strict=True)],
        high=[v + h for v, h in zip(average, halves, strict=True)],
        band=True,
    )


# -- tables -----------------------------------------------------------------------------------------------------------


def _warnings(configurations: Sequence[Configuration]) -> str:
    """What makes a comparison unfair, as far as the flags tell."""
    texts = [
        f"The runs differ in --{name}: their accuracies are not about the same thing."
        for name in different_flags(configurations)
        if name in SHARED
    ]
    for configuration in configurations:
        seeds = [str(run.flag("train.seed")) for run in configuration.runs]
        if len(set(seeds)) < len(seeds):
            texts.append(f"{configuration.label}: runs have the same seed, so the interval may be too narrow.")
    return "".join(f'<p class="note">{escaped(text)}</p>' for text in texts)


def _table(configurations: Sequence[Configuration]) -> str:
    return html_table(
        HEADER, [_cells(run, c.label) for c in configurations for run in c.runs], left=2, css_class="runs"
    )


def _cells(run: Run, label: str) -> list[str]:
    figures = summarise(run)
    signal, cost, seconds = (figures[name] for name in ("signal_share", "signal_cost", "train_seconds"))
    return [
        *(escaped(text) for text in (run.run_dir.resolve().name, label, str(run.flag("train.seed")))),
        *(accuracy_text(figures[f"accuracy_{when}"], figures[f"ci95_{when}"]) for when in ("before", "after")),
        "" if signal is None else f"{signal:.0%}",
        "" if cost is None else f"{cost:.1f}",
        *("" if figures[name] is None else f"{figures[name]:,.0f}" for name in ("steps", "rollouts", "tokens")),
        "" if seconds is None else duration(seconds),
    ]


def _differences(configurations: Sequence[Configuration]) -> str:
    names = different_flags(configurations)
    if not names:
        return "<h2>Flags</h2><p>The configurations have the same flags but for seeds and output folders.</p>"
    cells = [[name, *(c.flags.get(name, "none") for c in configurations)] for name in names]
    header = ["flag", *(escaped(c.label) for c in configurations)]
    note = '<h2>Flags that differ</h2><p class="note">Seeds, output folders and loggers are left out.</p>'
    return note + html_table(header, [[escaped(text) for text in row] for row in cells], left=len(header))
