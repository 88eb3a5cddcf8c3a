"""Results that are kept with the code, and the part of docs/arena.md that is made from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ada.arena import costs
from openrlhf_ada.arena.aim import render_aim, render_edges
from openrlhf_ada.arena.campaign import TRIAL_VERSION, Result, Results, Setting, final_cells, made_with, tuned
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.tables import REFERENCE, Finals, Rank, Row, ranks, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST, LAST = "<!-- results: written by `make arena-docs` -->", "<!-- end of results -->"

PACKED = Path(__file__).parent / "results"
"""Small files of the results that come with the package."""

PAGE_COSTS = {"rollouts": "rollouts", "seconds": "seconds", "seconds-7b": "seconds of 7B on A100"}
"""What methods are tuned for and compared by on the page, and what it calls them."""

ALL_COSTS = {
    "rollouts": "rollouts",
    "seconds": "seconds",
    "tokens": "tokens drawn",
    "trained_tokens": "tokens trained",
}
"""What is reported of every method, and what the page calls it."""

DRAWN = (REFERENCE, "first-right", "raft-1-twice", "counted", "balance", "est")
"""Methods that have a colour of their own in every figure; the cheapest gets one as well."""


def cost_model() -> dict[str, Any]:
    """The figures that seconds are computed from, as JSON has them. Settings tuned for seconds depend on them."""
    figures = {name: asdict(hardware) for name, hardware in costs.STEP_MODELS.items()}
    names = ("PROMPT_TOKENS", "ANSWER_TOKENS", "WAVE_SECONDS", "STREAM_WAIT", "REFILL_WAIT")
    return json.loads(json.dumps(figures | {name: getattr(costs, name) for name in names}))


# -- results in small files -------------------------------------------------------------------------------------------


def pack(
    results: Results, task: str, methods: Mapping[str, Sequence[str]], seeds: int, budget: int, file: Path
) -> None:
    """Write the trials of a task that count: each once, in differences. `methods`: by the cost tuned for.

    What the file holds of other methods and costs stays, and so does its reference: another processor rounds
    otherwise, and the ratios of all methods would move. Raises ValueError where its seeds, budget or seconds differ,
    KeyError for a trial that has not ended.
    """
    header = {"task": task, "seeds": seeds, "budget": budget, "version": TRIAL_VERSION, "cost model": cost_model()}
    plans, trials, made = _kept_in(file, header, {name for names in methods.values() for name in names})
    for cost, names in methods.items():
        kept = plans.setdefault(cost, {})
        new = [name for name in dict.fromkeys([REFERENCE, *names]) if name != REFERENCE or name not in kept]
        kept |= {name: tuned(results, task, name, budget, cost) for name in new}
        for cell in final_cells(results, [task], new, seeds, budget, cost):
            trials[_key(asdict(cell))] = asdict(cell) | _columns(results.by_cell[cell])
    planned = [
        (method, *setting, seed, costs.unit_of(cost))
        for cost, settings in plans.items()
        for method, setting in settings.items()
        for seed in range(seeds)
    ]
    lines: list[dict[str, Any]] = [header]
    lines += [{"cost": cost, "settings": settings} for cost, settings in plans.items()]
    lines.append(
        {"made with": {name: _made_with(name, task) for settings in plans.values() for name in settings} | made}
    )
    lines += [trials[key] for key in dict.fromkeys(planned)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without a time, so that the same results give the same file.
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    """Of a trial among those of one task."""
    return line["method"], line["rate"], line["prompts"], line["seed"], line["unit"]


def _kept_in(
    file: Path, header: dict[str, Any], anew: Collection[str] = ()
) -> tuple[dict[str, dict[str, Setting]], dict[tuple[Any, ...], Result], dict[str, dict[str, Any]]]:
    """(settings of each method by cost, trials by key, what methods were made with) of an existing file; else nothing.

    What a method of `anew` was with other settings is left out. Raises ValueError for another header, and where
    another method has changed.
    """
    if not file.exists():
        return {}, {}, {}
    theirs, *lines = _lines(file)
    for name in header.keys() - {"cost model"}:
        if theirs[name] != header[name]:
            raise ValueError(
                f"{file} has results with another {name} ({theirs[name]} there, {header[name]} here). "
                "Remove it, or run the campaign as it was run"
            )
    made: dict[str, dict[str, Any]] = next((line["made with"] for line in lines if "made with" in line), {})
    changed = {method: change for method in made if (change := _change(method, header["task"], made[method]))}
    for method in sorted(changed.keys() - (set(anew) - {REFERENCE})):
        remedy = (
            "Remove the file, and pack all anew"
            if method == REFERENCE or method not in METHODS
            else "Run them anew and pack them"
        )
        raise ValueError(f"{file}: its trials of {method} were made otherwise ({changed[method]}). {remedy}")
    plans = {
        line["cost"]: {
            name: (rate, prompts) for name, (rate, prompts) in line["settings"].items() if name not in changed
        }
        for line in lines
        if "cost" in line
    }
    trials = {_key(line): line for line in lines if "method" in line and line["method"] not in changed}
    return plans, trials, {method: made[method] for method in made if method not in changed}


_made_with = cache(made_with)


def _change(method: str, task: str, theirs: dict[str, Any]) -> str:
    """Which setting of the method is another one now; empty where none is. Only what it had and has is compared."""
    if method not in METHODS:
        return "there is no such method now"
    ours = _made_with(method, task)
    names = (name for name, value in theirs.items() if ours.get(name, value) != value)
    return next((f"{name}: {theirs[name]} there, {ours[name]} here" for name in names), "")


def _columns(result: Result) -> Result:
    accuracy = [round(value, 4) for value in result["accuracy"]]
    points = result["spent"]
    columns = {
        name: np.diff([point[name] for point in points], prepend=0).tolist() for name in points[0] if name != "batches"
    }
    shape = [len(waves) for waves in points[-1]["batches"]]
    flat = [[count for wave in _padded(point["batches"], shape) for count in wave] for point in points]
    return {
        "accuracy": accuracy,
        "spent": columns,
        "shape": shape,
        "batches": np.diff(flat, axis=0, prepend=0).tolist(),
    }


def _padded(batches: Sequence[Sequence[Sequence[int]]], shape: Sequence[int]) -> Iterator[Sequence[int]]:
    """All waves one after the other, 0 where there was none yet."""
    for batch, waves in enumerate(shape):
        for wave in range(waves):
            known = batch < len(batches) and wave < len(batches[batch])
            yield batches[batch][wave] if known else (0, 0)


def _restored(line: dict[str, Any]) -> Result:
    columns = {name: np.cumsum(steps).tolist() for name, steps in line["spent"].items()}
    spent: list[dict[str, Any]] = []
    for at, flat in enumerate(np.cumsum(line["batches"], axis=0).tolist()):
        left = map(list, zip(flat[::2], flat[1::2], strict=True))
        batches = [[next(left) for _ in range(waves)] for waves in line["shape"]]
        spent.append({name: column[at] for name, column in columns.items()} | {"batches": batches})
    return {"accuracy": line["accuracy"], "spent": spent}


def unpack(file: Path) -> dict[str, Finals]:
    """By cost. Raises ValueError for a file of another cost model, whose settings were tuned for other seconds."""
    header = _lines(file)[0]
    plans, trials, _ = _kept_in(file, header)
    runs = {key: _restored(line) for key, line in trials.items()}
    return {
        cost: Finals(
            header["task"],
            cost,
            settings,
            {
                method: [runs[method, *setting, seed, costs.unit_of(cost)] for seed in range(header["seeds"])]
                for method, setting in settings.items()
            },
        )
        for cost, settings in plans.items()
    }


def _lines(file: Path) -> list[dict[str, Any]]:
    """Raises ValueError for a file of another cost model, whose settings were tuned for other seconds."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    theirs, ours = lines[0]["cost model"], cost_model()
    for name in {**theirs, **ours}:
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"{file} was tuned with another cost model ({name}: {theirs.get(name)} there, {ours.get(name)} here). "
                "Run the campaign again with its folder, which keeps all trials that still count, and pack it anew"
            )
    return lines


# -- the page ---------------------------------------------------------------------------------------------------------


def render(by_task: Sequence[Mapping[str, Finals]]) -> str:
    """Everything between the two marks, for the tasks' results by cost."""
    parts: list[str] = []
    several_by_cost = {cost: [finals[cost] for finals in by_task if cost in finals] for cost in PAGE_COSTS}
    for cost, several in several_by_cost.items():
        if not several:
            parts += [f"### At equal {PAGE_COSTS[cost]}", "Not run yet."]
            continue
        ranked = ranks(several)
        parts += [f"### At equal {PAGE_COSTS[cost]}", _in_short(ranked), _rank_table(several, ranked)]
        parts.append(_not_run(several, cost))
        parts += [render_aim(several), render_edges(several)]
    if several_by_cost["seconds"]:
        parts += ["### What the seconds depend on", _other_seconds(several_by_cost["seconds"])]
    for finals in by_task:
        task = task_of(finals)
        parts += [f"### Task `{task}`", f"![Accuracy by cost, task {task}](images/arena-{task}.png)"]
        parts += [_task_table(of) for of in finals.values()]
    return "\n\n".join(parts) + "\n"


def task_of(by_cost: Mapping[str, Finals]) -> str:
    """Whose results these are."""
    return next(iter(by_cost.values())).task


def inserted(text: str, results: str, marks: tuple[str, str] = (FIRST, LAST)) -> str:
    """The page with these results between its marks. Raises ValueError where it has no marks."""
    before, first, rest = text.partition(marks[0])
    _, last, after = rest.partition(marks[1])
    if not first or not last:
        raise ValueError(f"the page has no lines {marks[0]} and {marks[1]}, between which the results go")
    return f"{before}{first}\n\n{results}\n{last}{after}"


def _in_short(ranked: Sequence[Rank]) -> str:
    """What pays and what does not, as the tests say."""
    tested = [rank for rank in ranked if rank.p is not None]
    groups = {
        "Cheaper than the reference": [rank for rank in tested if _sure(rank) and rank.cost < 1],
        "Dearer": [rank for rank in tested if _sure(rank) and rank.cost > 1],
        "Not told apart from it": [rank for rank in tested if not _sure(rank)],
    }
    lines = [
        f"- {title}: " + (", ".join(f"`{rank.method}` {rank.cost:.2f}" for rank in found) or "none") + "."
        for title, found in groups.items()
    ]
    return "\n\n".join(["Of the methods that were run on all tasks of the table:", "\n".join(lines)])


def _sure(rank: Rank) -> bool:
    return rank.p is not None and rank.p < 0.05


def _rank_table(by_task: Sequence[Finals], ranked: Sequence[Rank]) -> str:
    """Methods by mean rank; a cell is the ratio on a task with its interval, bold where the corrected test is sure."""
    rows = [{row.method: row for row in table(finals)} for finals in by_task]
    head = ["method", *(f"`{finals.task}`" for finals in by_task), "all", "mean rank", "p"]
    body = [
        [
            f"`{rank.method}`",
            *(_cell(of[rank.method]) for of in rows),
            f"{rank.cost:.2f}",
            f"{rank.rank:.1f}",
            _p(rank.p),
        ]
        for rank in ranked
    ]
    names = dict.fromkeys(name for of in rows for name in of)
    unranked = [name for name in names if name not in {rank.method for rank in ranked}]
    for name in sorted(unranked, key=lambda name: min(of[name].cost for of in rows if name in of)):
        body.append([f"`{name}`", *(_cell(of[name]) if name in of else "–" for of in rows), "", "", ""])
    note = "\n\nWithout a rank: methods that were not run on all of these tasks." if unranked else ""
    return markdown_table(head, body) + note


def _not_run(by_task: Sequence[Finals], cost: str) -> str:
    run = {name for finals in by_task for name in finals.runs}
    controls = {name for name, method in METHODS.items() if method.weight_of is not None}
    left_out = set[str]() if controls & run else controls
    missing = [f"`{name}`" for name in METHODS if name not in run | left_out]
    missing += ["`weighed-as-*`"] if left_out else []
    return f"Not run at equal {PAGE_COSTS[cost]} yet: {', '.join(missing) or 'none'}."


def _other_seconds(by_task: Sequence[Finals]) -> str:
    """Geometric means over all tasks, for the same trials under other assumptions."""
    over = "Geometric means over " + ", ".join(f"`{finals.task}`" for finals in by_task) + ":\n\n"
    columns = ["seconds", *costs.OTHER_SECONDS]
    found = [{rank.method: rank.cost for rank in ranks([replace(f, cost=name) for f in by_task])} for name in columns]
    body = [[f"`{method}`", *(f"{column[method]:.2f}" for column in found)] for method in found[0]]
    return over + markdown_table(["method", "as above", *costs.OTHER_SECONDS], body)


def _cell(row: Row) -> str:
    ratio = f"**{row.cost:.2f}**" if row.p is not None and row.p < 0.05 else f"{row.cost:.2f}"
    interval = "" if row.method == REFERENCE else f" ({row.low:.2f} to {row.high:.2f})"
    return ratio + interval + (f", {row.missed} missed" if row.missed else "")


def _task_table(finals: Finals) -> str:
    """`others`: what has been spent besides when the target is reached, with the settings tuned for this cost."""
    others = {label: replace(finals, cost=name) for name, label in ALL_COSTS.items() if name != finals.cost}
    name = PAGE_COSTS[str(finals.cost)]
    reached = f"{name} to {finals.target:.1%}"
    head = ["method", "rate", "prompts", reached, "p", *others, "mean accuracy", "at the end"]
    body = [
        [
            f"`{row.method}`",
            f"{row.rate:g}",
            str(row.prompts),
            _mean_cost(finals, row.method),
            _p(row.p),
            *(_mean_cost(other, row.method) for other in others.values()),
            f"{row.area:.1%}",
            f"{row.final:.1%}",
        ]
        for row in table(finals)
    ]
    return f"Tuned for {name}, and what else the methods have spent at their target:\n\n" + markdown_table(head, body)


def _mean_cost(finals: Finals, method: str) -> str:
    """To the target; at least that much where a seed did not reach it."""
    found, missed = finals.to_target[method]
    return f"{'≥ ' * bool(missed)}{found.mean():,.0f}"


def _p(value: float | None) -> str:
    return "" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


# -- figures ----------------------------------------------------------------------------------------------------------

PANELS = (("rollouts", "rollouts"), ("rollouts", "tokens"), ("seconds", "seconds"))
"""(tuned for, cost on the axis) of each panel."""


def draw(by_cost: Mapping[str, Finals], out_png: Path) -> None:
    """Mean accuracy by rollouts, tokens and seconds, and the accuracy to reach."""
    from matplotlib.figure import Figure

    from benchmarks.axes import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY, new_axes, set_title

    figure = Figure(figsize=(15, 5), dpi=110, facecolor="white", layout="constrained")
    colours = dict(zip(DRAWN, (INK, PINK, ORANGE, RED, BLUE, GREEN), strict=True))
    cheapest = dict.fromkeys(table(finals)[0].method for finals in by_cost.values())
    colours |= dict(zip((name for name in cheapest if name not in colours), (SKY,), strict=False))
    panels = [panel for panel in PANELS if panel[0] in by_cost]
    grid, named = figure.add_gridspec(1, len(panels)), dict[str, Any]()
    for place, (tuned_for, cost) in enumerate(panels):
        finals = by_cost[tuned_for]
        axes = new_axes(figure, grid[0, place])
        set_title(axes, f"Accuracy by {cost}", x_label=f"{cost} (tuned for {tuned_for})")
        _draw_curves(axes, finals, cost, colours)
        named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=8, frameon=False)
    out_png.parent.mkdir(parents=True, exist_ok=True)
    # No version of matplotlib in the file, so that the same results give the same file.
    figure.savefig(out_png, metadata={"Software": None})


def _draw_curves(axes: Axes, finals: Finals, cost: str, colours: Mapping[str, str]) -> None:
    """`colours`: of methods that are named; the others are drawn faint."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    from benchmarks.axes import FAINT, MUTED

    end = min(costs.spent_as(cost, run["spent"])[-1] for runs in finals.runs.values() for run in runs)
    at = np.linspace(0, end, 101)
    for name, runs in sorted(finals.runs.items(), key=lambda item: item[0] in colours):
        curves = [np.interp(at, costs.spent_as(cost, run["spent"]), run["accuracy"]) for run in runs]
        colour, label = (colours[name], name) if name in colours else (FAINT, None)
        axes.plot(at, np.mean(curves, axis=0), color=colour, linewidth=2 if label else 1.2, label=label)
    axes.axhline(finals.target, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
