"""Write the table of docs/arena.md, GRID.md, RESULTS.md and grid.csv from the results that are kept."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.arena import agreement, costs, grid_page, real, real_table
from benchmarks.arena.campaign import PROMPTS, RATES
from benchmarks.arena.folders import Results, difference, read_settings
from benchmarks.arena.grid_kept import KEPT
from benchmarks.arena.grid_kept import kept as kept_grid
from benchmarks.arena.markdown import markdown
from benchmarks.arena.methods import METHODS
from benchmarks.arena.packed import PACKED, changes, unpack
from benchmarks.arena.statistics import Interval, kendall_tau
from benchmarks.arena.tables import REFERENCE, TARGET_SHARE, Finals, over_tasks
from benchmarks.arena.tasks import WHOLE
from benchmarks.arena.weights import tables
from openrlhf_ada.config import presets
from openrlhf_ada.simulation.step_seconds import STEP_MODELS

RESULTS, GRID = (Path(__file__).parent / name for name in ("RESULTS.md", "GRID.md"))
PAGE = Path(__file__).parents[2] / "docs" / "arena.md"
FIRST, LAST = "<!-- costs: written by `make arena-docs` -->", "<!-- end of costs -->"

ON_PAGE = (
    *("raft-n1-e2", "first-success-8", "spo-n2", "maxrl", "uniform-4-e2-skip", "grpo-4"),
    *("est", "pos", "balance", "dapo"),
)

CONTROLS = {method.weight_of: name for name, method in METHODS.items() if method.weight_of is not None}
"""By the method whose weight they have."""

ON_REAL_STACK = ("real", "real-totals-10", "real-totals-4")
"""Folders of PACKED, as far as they are there."""

OURS = ("raft-n1-e2", "first-success-8", "spo-n2")

LEAST_ORDERED = 3
"""Methods, for an order to be compared."""

INTERVAL = " ({0.low:.2f} to {0.high:.2f})"

ByTask = Sequence[Mapping[str, Finals]]
"""Results by cost of each task."""


def main(prog: str, argv: Sequence[str]) -> None:
    argparse.ArgumentParser(prog=prog, description=__doc__).parse_args(argv)
    _, trials = kept_grid()
    table = grid_page.summary(trials)
    PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    GRID.write_text(grid_page.render(trials), encoding="utf-8")
    KEPT.with_name("grid.csv").write_text(grid_page.details(trials), encoding="utf-8")
    RESULTS.write_text(render(kept()), encoding="utf-8")


def kept() -> ByTask:
    return [unpack(PACKED / f"{task}.jsonl.gz") for task in WHOLE]


def inserted(text: str, table: str) -> str:
    """The page with this table between its marks. Raises ValueError where it has no marks."""
    before, first, rest = text.partition(FIRST)
    _, last, after = rest.partition(LAST)
    if not first or not last:
        raise ValueError(f"the page has no lines {FIRST} and {LAST}, between which the table goes")
    return f"{before}{first}\n\n{table}\n\n{last}{after}"


def render(by_task: ByTask) -> str:
    """RESULTS.md."""
    header = read_settings(PACKED / "agreement", ("conditions",))["conditions"]
    conditions = agreement.Conditions(**header)
    trials = Results(PACKED / "agreement", agreement.Cell, agreement.MEASURED).by_cell
    sections = [
        "# Results of the arena",
        "`make arena-docs` writes this page from the files in `results/`. [The arena](../../docs/arena.md) says what "
        "these figures show, and what they do not.",
        f"*Cost*: to the target ({TARGET_SHARE:.0%} of what `{REFERENCE}` gains over the budget), as a ratio to that "
        f"of `{REFERENCE}`, with its 95 % interval over 10 seeds. Bold: p < 0.05, corrected for all methods. "
        "*missed*: so many seeds did not reach the target, and count with the whole budget. *all*: geometric mean. "
        "Methods that were run on some tasks only, and costs in rollouts, are in `results/`. Each method has the best "
        f"of learning rates from {min(RATES):g} to {max(RATES):g} and {min(PROMPTS)} to {max(PROMPTS)} prompts "
        "of a step. *e2*: two epochs over each step. *skip*: rollouts of advantage 0 are not computed. *in-eight*: in "
        "eight updates of a step instead of four. `methods.py` has all names and flags.",
        *at_equal(by_task, "seconds"),
        *_other_seconds(_at(by_task, "seconds")),
        *_weight_or_sampling(_at(by_task, "seconds")),
        *_machines(),
        "## A language model on the real stack",
        *(part for name in ON_REAL_STACK if (PACKED / name).exists() for part in language_model(*_of_real(name))),
        *_models(),
        *agreement_of(conditions, trials),
        *_changes(),
    ]
    return "\n\n".join(sections) + "\n"


def _at(by_task: ByTask, cost: str) -> list[Finals]:
    return [by_cost[cost] for by_cost in by_task if cost in by_cost]


def _tasks(several: Sequence[Finals]) -> list[str]:
    return [f"`{finals.task}`" for finals in several]


# -- the small model --------------------------------------------------------------------------------------------------


def at_equal(by_task: ByTask, cost: str) -> list[str]:
    """Costs of methods that were run on all tasks; in seconds also what ours are beside, and accuracies."""
    several = _at(by_task, cost)
    everywhere = over_tasks(several)
    sections = [
        f"## At equal {cost}",
        markdown(
            ["method", *_tasks(several), "all"], [[*_costs(several, n), _all(*everywhere[n])] for n in everywhere]
        ),
    ]
    if cost != "seconds":
        return sections
    return [
        *sections,
        "Beside the cheapest uniform sampling, on the same worlds:",
        _beside(several),
    ]


def _costs(several: Sequence[Finals], name: str) -> list[str]:
    return [f"`{name}`", *(_cost(finals, name) for finals in several)]


def _all(mean: float, p: float | None) -> str:
    return _significant(f"{mean:.2f}", p)


def _significant(text: str, p: float | None) -> str:
    return f"**{text}**" if p is not None and p < 0.05 else text


def _cost(finals: Finals, name: str, interval: str = INTERVAL) -> str:
    if name not in finals.runs:
        return "–"
    row = finals.rows[name]
    shown = _significant(f"{row.cost.mean:.2f}", row.p)
    around = "" if name == REFERENCE else interval.format(row.cost)
    return shown + around + _missed(row.missed)


def _missed(count: int) -> str:
    return f", {count} missed" if count else ""


def _beside(several: Sequence[Finals]) -> str:
    """Of ours that were run on one of the tasks."""
    uniform = [finals.cheapest_uniform() for finals in several]
    both = list(zip(several, uniform, strict=True))
    ours = [name for name in OURS if any(name in finals.runs for finals in several)]
    return markdown(
        ["", *_tasks(several)],
        [
            ["the cheapest", *(f"`{name}`" for name in uniform)],
            *([f"`{name}`", *(_over(finals, name, other) for finals, other in both)] for name in ours),
        ],
    )


def _over(finals: Finals, ours: str, other: str) -> str:
    return finals.beside(ours, other).text(".2f") if {ours, other} <= finals.runs.keys() else "–"


def _other_seconds(several: Sequence[Finals]) -> list[str]:
    """For the same trials under other assumptions."""
    columns = ["seconds", *costs.OTHER_SECONDS]
    found = [over_tasks([replace(f, cost=name) for f in several]) for name in columns]
    shown = [method for method in found[0] if method in (*ON_PAGE, REFERENCE)]
    body = [[f"`{method}`", *(f"{column[method][0]:.2f}" for column in found)] for method in shown]
    return [
        "## What the seconds depend on",
        "Geometric means over all tasks. *B prompts*: a step of the small model stands for so many times its prompts, "
        f"instead of {costs.SCALE} times.",
        markdown(["method", "as above", *costs.OTHER_SECONDS], body),
    ]


def _weight_or_sampling(several: Sequence[Finals]) -> list[str]:
    measured = [finals for finals in several if finals.task in tables()]
    columns = [column for f in measured for column in (f"`{f.task}`: its weight alone", "method / weight")]
    body = [
        [f"`{name}`", *(cell for f in measured for cell in _control(f, name, control))]
        for name, control in CONTROLS.items()
    ]
    return [
        "## Weight or sampling?",
        f"*Its weight alone*: `{REFERENCE}` (of `gvm`: right answers only), where each group's coefficients are "
        "multiplied by the method's effective weight at the prompt's true pass rate. What the method gains over "
        "that is due to which rollouts it draws and trains, and to its baseline. At equal seconds.",
        markdown(["", *columns], body),
    ]


def _control(finals: Finals, name: str, control: str) -> list[str]:
    return [_cost(finals, control, ""), _over(finals, name, control)]


def _machines() -> list[str]:
    body = [
        [model, f"{machine.sampling:g}", f"{1e6 * machine.per_token:g} µs", f"{machine.fixed:g} s"]
        for model, machine in STEP_MODELS.items()
    ]
    shown = [(r, s) for r, s in zip(costs.WAVE_ROLLOUTS, costs.WAVE_SECONDS, strict=True) if r >= 512]
    return [
        "## Seconds of a step",
        "`a * (sampling of the virtual engines) + b * (trained tokens) + c`, fitted to published step times. Sampling "
        "of R rollouts in one wave takes w(R).",
        markdown(["model", "a", "b", "c"], body),
        markdown(["R", *(f"{r:,}" for r, _ in shown)], [["w(R), s", *(f"{seconds:.0f}" for _, seconds in shown)]]),
    ]


# -- the real stack ---------------------------------------------------------------------------------------------------


def _of_real(name: str) -> tuple[Results[real.Cell], real.Conditions]:
    conditions = real.Conditions(**read_settings(PACKED / name, ("conditions",))["conditions"])
    return Results(PACKED / name, real.Cell, real.MEASURED), conditions


def _models() -> list[str]:
    """Runs with published settings, each from a folder of its own."""
    folders = sorted(file.parent for file in (PACKED / "models").glob("*/settings.json"))
    none = "No one has run it yet ([how to](../../docs/arena.md#a-model-of-15b))."
    shown = [part for folder in folders for part in language_model(*_of_real(f"models/{folder.name}"))]
    return ["## Published settings on a model of 1.5B", *(shown or [none])]


def language_model(results: Results[real.Cell], conditions: real.Conditions) -> list[str]:
    kind, run = conditions.kind, {cell.method for cell in results.by_cell}
    known = dict.fromkeys([*kind.methods, *presets.METHODS]) if kind.is_published else METHODS
    rows = real_table.table(results, [name for name in known if name in run], conditions)
    planned = real.plan(conditions, kind.methods, real.SEEDS)
    left = len(results.missing(planned))
    partial = f" **Partial**: {len(planned) - left} of {len(planned)} planned runs have ended." if left else ""
    shown = ("tokens" if kind.counted == "seconds" else kind.counted, "seconds")
    head = ["method", "seeds", "mean accuracy less the reference's", *(f"{cost} to the target" for cost in shown)]
    gains = [
        [
            f"`{row.method}`",
            str(row.seeds),
            row.gain.times(100).text("+.1f") if row.gain and row.method != kind.reference else "",
            *(_ratio(row.cost[cost], row, kind.reference) if row.cost else "" for cost in shown),
        ]
        for row in rows
    ]
    rates = ", ".join(f"{rate:g}" for rate in conditions.rates)
    best = "; each method at its best one" if len(conditions.rates) > 1 else ""
    weights = f" of `{conditions.weights}` on {conditions.gpus} GPUs" if conditions.weights else ""
    return [
        f"{kind.shown}{weights}. {conditions.budget:,} {kind.counted} a run, learning rate {rates}{best}. Beside "
        f"`{kind.reference}`, with 95 % intervals (Student's t over seeds), in points and as ratios.{partial}",
        markdown(head, gains),
        "Means of a run:",
        *(
            (_means_of_working(rows, kind), *_order(results, rows, conditions))
            if kind.like
            else [_means_of_runs(rows, kind)]
        ),
    ]


def _order(results: Results[real.Cell], rows: Sequence[real_table.Row], conditions: real.Conditions) -> list[str]:
    """Beside that of the small model, of the methods that were run on both; nothing with fewer than three."""
    like = conditions.kind.like
    small = grid_page.Compared(kept_grid()[1], like, grid_page.SUMMED)
    names = [row.method for row in rows if row.method in small.methods and row.seeds == rows[0].seeds]
    if len(names) < LEAST_ORDERED:
        return []
    runs = {row.method: real_table.rates_of(results, row.method)[row.rate] for row in rows}
    ours = np.array([[real_table.at_budget(r, "accuracy", conditions) for r in runs[name].values()] for name in names])
    theirs = np.array([small.measure(name, "right") for name in names])
    tau = kendall_tau(ours, theirs).text(".2f")
    return [f"Kendall's tau with the small model's order of these {len(names)} methods on `{like}`: {tau}."]


def _means_of_runs(rows: Sequence[real_table.Row], kind: real.Kind) -> str:
    more = [f"pass@{kind.answers}", "tokens of an answer"] if kind.is_published else []
    means = ["prompts and updates of a step", "start", "at the end", *more]
    means += ["tokens drawn", "tokens trained", "sampling", "training"]
    spent = [
        [
            f"`{row.method}`",
            f"{row.prompts}, {row.updates}",
            f"{row.start:.1%}",
            f"{row.final:.1%} ± {row.half_width:.1%}",
            *([f"{row.measures['pass']:.1%}", f"{row.measures['length']:.0f}"] if kind.is_published else ()),
            *(f"{row.spent[of]:,.0f}" for of in ("tokens", "trained_tokens")),
            *(f"{row.spent[of]:,.0f} s" for of in ("sampling_seconds", "training_seconds")),
        ]
        for row in rows
    ]
    return markdown(["method", *means], spent)


def _means_of_working(rows: Sequence[real_table.Row], kind: real.Kind) -> str:
    """At the budget."""
    head = ["method", "rate", "right", "working right", f"pass@{kind.answers}", "surprisal of what is trained"]
    body = [
        [
            f"`{row.method}`",
            f"{row.rate:g} of {row.rates}",
            f"{row.final:.1%} ± {row.half_width:.1%}",
            *(f"{row.measures[of]:.1%}" for of in ("working_right", "pass")),
            f"{row.measures['surprisal']:.3f}",
            f"{row.measures['length']:.1f}",
            *(f"{row.spent[of]:,.0f} s" for of in ("sampling_seconds", "training_seconds")),
        ]
        for row in rows
    ]
    return markdown([*head, "tokens of an answer", "sampling", "training"], body)


def _ratio(value: Interval, row: real_table.Row, reference: str) -> str:
    text = value.text(".2f") if row.method != reference else "1.00"
    return text + _missed(row.missed)


def agreement_of(conditions: agreement.Conditions, trials: agreement.Trials) -> list[str]:
    methods = [name for name in METHODS if any(cell.method == name for cell in trials)]
    body = [
        [
            f"`{row.method}`",
            row.quantity.name,
            str(row.seeds),
            *(f"{value:,.0f}" if row.quantity.relative else f"{value:.1%}" for value in (row.learner, row.real)),
            row.difference.times(100).text("+.2f"),
            *(f"{100 * value:.1f}" for value in (row.spread, row.by_chance)),
            row.verdict,
        ]
        for row in agreement.table(trials, methods)
    ]
    head = ["method", "", "seeds", "one process", "real stack", "difference", "spread", "by chance", "verdict"]
    gains = [agreement.contrast(trials, methods, stack) for stack in (agreement.LEARNER, agreement.REAL)]
    shown = [gain.times(100).text("+.2f") if gain else "–" for gain in gains]
    return [
        "## One process and the real stack",
        f"A Llama of one layer on `{conditions.task}`, {conditions.steps} steps of {conditions.prompts} prompts. "
        "Differences are in points or %. *agree*: the whole 95 % interval is within 2 points or 5 %. *open*: more "
        "seeds would tell. *spread*: standard deviation over seeds. *by chance*: what it would be if the real stack "
        "were one more trial in one process.",
        markdown(head, body),
        "What a comparison of the first two methods says, in points of mean accuracy:",
        markdown(["one process", "real stack"], [shown]),
    ]


def _changes() -> list[str]:
    """Of methods that are no longer what their kept trials were made with."""
    found = {name: how for task in WHOLE for name, how in changes(PACKED / f"{task}.jsonl.gz").items()}
    body = [[f"`{name}`", "small model", how] for name, how in found.items()]
    _, run = _of_real("real")
    for what, theirs in read_settings(PACKED / "real", ()).items():
        name = what.removeprefix("flags of ")
        if name != what:
            how = difference(theirs, real.run_flags(name, run)) if name in METHODS else "there is no such method now"
            body += [[f"`{name}`", "language model", how]] if how else []
    if not body:
        return []
    return [
        "## Methods that have changed since their trials",
        markdown(["method", "trials", "first difference"], body),
    ]
