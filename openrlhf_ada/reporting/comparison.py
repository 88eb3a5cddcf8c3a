"""Several runs beside each other. Runs that differ in their seed alone are one configuration, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from openrlhf_ada.reporting.charts import COLORS, Chart, Color, Progress, Section, Series, over_time, with_data
from openrlhf_ada.reporting.page import escaped, html_table, write_page
from openrlhf_ada.reporting.payoff import Payoff, payoff
from openrlhf_ada.reporting.quantiles import half_width
from openrlhf_ada.reporting.recorded_flags import NO_DIFFERENCE, flat
from openrlhf_ada.reporting.report import accuracy_text, duration
from openrlhf_ada.reporting.run_charts import held_out
from openrlhf_ada.reporting.run_record import Run, summarise
from openrlhf_ada.reporting.visits import read_visits

LONGEST_LABEL = 60

METRICS: tuple[tuple[str, str, str, str], ...] = (
    ("score", "Score of the training prompts", "ada/first_wave_metric_mean", "share right"),
    ("signal", "Groups with signal", "ada/signal_share", "share of groups"),
    ("per_prompt", "Rollouts per prompt", "ada/rollouts_per_prompt", "rollouts"),
    ("step_rollouts", "Rollouts of a step", "ada/drawn", "rollouts"),
    ("reward", "Mean reward of the first samples", "rollout/reward_mean", "reward"),
    ("length", "Length of an answer", "rollout/response_length_mean", "tokens"),
    ("entropy", "Entropy of the policy", "ent_loss", "nats per token"),
    ("seconds", "Seconds of a step", "ada/step_s", "seconds"),
)
"""Name, title, metric and unit of a chart."""


@dataclass(slots=True)
class Configuration:
    """Runs with the same flags but for their seeds. `flags`: what is compared; `label`: what tells it apart."""

    flags: dict[str, str]
    runs: list[Run] = field(default_factory=list)
    label: str = ""

    @property
    def seeds(self) -> list[str]:
        return [_seed(run) for run in self.runs]


def write_comparison(runs: Sequence[Run], out_html: Path) -> list[Section]:
    """Write a page with the curves, figures and flags of two or more runs; returns its charts.

    Raises:
        ValueError: a run is given twice.
        RunDamageError: `samples.jsonl` of a run is damaged.
    """
    configurations = group_runs(runs)
    paid = {run.run_dir: payoff(run, read_visits(run)) for run in runs}
    sections = _sections(configurations, paid)
    write_page(
        out_html,
        title=f"{len(runs)} runs, {len(configurations)} configuration" + ("s" if len(configurations) > 1 else ""),
        subtitle=" · ".join(configuration.label for configuration in configurations),
        head=_warnings(configurations) + _table(configurations, paid),
        sections=sections,
        tables=_differences(configurations),
        source=f"written from {', '.join(str(run.run_dir) for run in runs)}. docs/report.md explains this page.",
    )
    return sections


def group_runs(runs: Sequence[Run]) -> list[Configuration]:
    """Configurations in the order of the runs, with labels.

    Raises:
        ValueError: a run is given twice.
    """
    places = [run.run_dir.resolve() for run in runs]
    if twice := [str(place) for place in places if places.count(place) > 1]:
        raise ValueError(f"{twice[0]} is given twice: name every run once")
    configurations: list[Configuration] = []
    for run in runs:
        # A flag without a value is as good as none: another version may not have it.
        flags = {name: value for name, value in flat(run.config) if _matters(name) and value != "None"}
        same = [known for known in configurations if known.flags == flags]
        if not same:
            configurations.append(Configuration(flags))
        (same or configurations)[-1].runs.append(run)
    _label(configurations)
    return configurations


def _matters(name: str) -> bool:
    return not name.startswith(NO_DIFFERENCE) and name.rpartition(".")[2] != "seed"


def _seed(run: Run) -> str:
    seed = run.flag("train.seed")
    return "?" if seed is None else str(seed)


def different_flags(configurations: Sequence[Configuration]) -> list[str]:
    """Names of flags that are not the same in all, in the order of the record."""
    names = dict.fromkeys(name for configuration in configurations for name in configuration.flags)
    return [name for name in names if len({c.flags.get(name) for c in configurations}) > 1]


def _label(configurations: Sequence[Configuration]) -> None:
    """By the flags that differ where these are few and short, else by the names of the runs."""
    names = different_flags(configurations)
    by_flags = [", ".join(f"{n.rpartition('.')[2]} {c.flags.get(n, 'none')}" for n in names) for c in configurations]
    readable = bool(names) and all(len(label) <= LONGEST_LABEL for label in by_flags)
    for configuration, label in zip(configurations, by_flags, strict=True):
        first = configuration.runs[0].run_dir.resolve().name
        configuration.label = label if readable else first
        if len(configuration.runs) > 1:
            # A repetition has the seed of its first run.
            unit = "seeds" if len(set(configuration.seeds)) == len(configuration.runs) else "runs"
            configuration.label += f" ({len(configuration.runs)} {unit})"
    for configuration in configurations:
        if [c.label for c in configurations].count(configuration.label) > 1:
            configuration.label = str(configuration.runs[0].run_dir)


# -- curves -----------------------------------------------------------------------------------------------------------


def _sections(configurations: Sequence[Configuration], paid: dict[Path, Payoff | None]) -> list[Section]:
    """Held-out accuracy first, then each metric that a run recorded."""
    accuracy = _curves(configurations, lambda run, progress: held_out(run, progress))
    note = (
        "One run: 95 % interval over held-out prompts. Several seeds: their mean, with a 95 % interval (Student's t) "
        "between seeds, at the steps that all have."
    )
    charts = [Chart("accuracy", "Accuracy on held-out prompts", note, "share right", accuracy, y_share=True)]
    for name, title, metric, unit in METRICS:
        series = _curves(configurations, lambda run, progress, m=metric: over_time("", run.steps, m, progress))
        charts.append(Chart(name, title, "", unit, series, y_share=unit.startswith("share")))
    return with_data([Section("Does it pay?", [_pay_chart(configurations, paid)]), Section("Curves", charts)])


Drawn = Callable[[Run, Progress], list[Series]]


def _curves(configurations: Sequence[Configuration], draw: Drawn) -> list[Series]:
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
    tables = [dict(zip(s.x["steps"], range(len(s.y)), strict=True)) for s in of_runs]
    steps = [step for step in of_runs[0].x["steps"] if all(step in table for table in tables)]
    rows = [[table[step] for table in tables] for step in steps]

    def means(values: Callable[[Series], Sequence[float | None]]) -> list[list[float]]:
        return [[float(values(s)[i] or 0.0) for s, i in zip(of_runs, row, strict=True)] for row in rows]

    y = means(lambda s: s.y)
    halves = [half_width(values) or 0.0 for values in y]
    average = [sum(values) / len(values) for values in y]
    axes = [name for name in of_runs[0].x if all(name in s.x for s in of_runs)]
    return Series(
        label,
        average,
        {name: [sum(v) / len(v) for v in means(lambda s, n=name: s.x[n])] for name in axes},
        color,
        low=[v - h for v, h in zip(average, halves, strict=True)],
        high=[v + h for v, h in zip(average, halves, strict=True)],
        band=True,
    )


def _pay_chart(configurations: Sequence[Configuration], paid: dict[Path, Payoff | None]) -> Chart:
    """Every run as a point."""
    series: list[Series] = []
    for place, configuration in enumerate(configurations):
        known = [p for run in configuration.runs if (p := paid[run.run_dir]) is not None]
        if known:
            series.append(
                Series(
                    configuration.label,
                    [p.share.value for p in known],
                    {"x": [p.per_prompt for p in known]},
                    COLORS[place % len(COLORS)],
                    "points",
                    [p.share.low for p in known],
                    [p.share.high for p in known],
                    text=[_cost_text(p) for p in known],
                )
            )
    note = "Further up: signal from more of the prompts. Further left: fewer rollouts for it. Bars: 95 % intervals."
    title, y_label = "Groups with signal over rollouts", "share of groups with signal"
    return Chart("pay", title, note, y_label, series, "rollouts per prompt", y_share=True)


def _cost_text(paid: Payoff) -> str:
    return "no signal" if paid.cost is None else f"{paid.cost.value:.1f} rollouts per group with signal"


# -- tables -----------------------------------------------------------------------------------------------------------


def _warnings(configurations: Sequence[Configuration]) -> str:
    """What makes a comparison unfair, as far as the flags tell."""
    texts = [
        f"{configuration.label}: several runs have the seed {seed}, so its interval may be too narrow."
        for configuration in configurations
        for seed in sorted({s for s in configuration.seeds if s != "?" and configuration.seeds.count(s) > 1})
    ]
    different = set(different_flags(configurations))
    texts += [
        f"The runs differ in --{name}: their accuracies are not about the same thing."
        for name in ("eval.dataset", "eval.temperature", "reward.remote_url", "actor.model_name_or_path")
        if name in different
    ]
    return "".join(f'<p class="note">{escaped(text)}</p>' for text in texts)


COLUMNS = (
    *("run", "configuration", "seed", "accuracy before", "after", "groups with signal", "rollouts per such group"),
    *("uniform", "ratio", "steps", "rollouts", "tokens", "time"),
)


def _table(configurations: Sequence[Configuration], paid: dict[Path, Payoff | None]) -> str:
    rows = [_cells(run, c.label, paid[run.run_dir]) for c in configurations for run in c.runs]
    return html_table(COLUMNS, rows, left=2, css_class="runs") + (
        '<p class="note"><b>uniform</b>: rollouts per group with signal of uniform sampling with n. '
        "<b>ratio</b>: groups with signal of the run over those of uniform sampling at equal rollouts, with 95 % "
        "interval; above 1 the run had more.</p>"
    )


def _cells(run: Run, label: str, paid: Payoff | None) -> list[str]:
    figures = summarise(run)
    uniform = paid.more_prompts if paid else None
    ratio = uniform.ratio if uniform else None
    return [
        *(escaped(text) for text in (run.run_dir.resolve().name, label, _seed(run))),
        *(accuracy_text(figures[f"accuracy_{when}"], figures[f"ci95_{when}"]) for when in ("before", "after")),
        "" if figures["signal_share"] is None else f"{figures['signal_share']:.0%}",
        f"{paid.cost.value:.1f}" if paid and paid.cost else "",
        f"{uniform.cost:.1f}" if uniform and uniform.cost else "",
        f"{ratio.value:.2f}<br>({ratio.low:.2f} to {ratio.high:.2f})" if ratio else "",
        f"{len(run.steps)}",
        *("" if figures[name] is None else f"{figures[name]:,.0f}" for name in ("rollouts", "tokens")),
        "" if figures["train_seconds"] is None else duration(figures["train_seconds"]),
    ]


def _differences(configurations: Sequence[Configuration]) -> str:
    names = different_flags(configurations)
    if not names:
        return "<h2>Flags</h2><p>The configurations have the same flags but for seeds and output folders.</p>"
    cells = [[name, *(c.flags.get(name, "none") for c in configurations)] for name in names]
    rows = [[escaped(text) for text in row] for row in cells]
    header = ["flag", *(escaped(c.label) for c in configurations)]
    note = '<h2>Flags that differ</h2><p class="note">Seeds, output folders and loggers are left out.</p>'
    return note + html_table(header, rows, left=len(header))
