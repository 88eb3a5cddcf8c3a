"""The part of docs/arena.md that says whether one process and the real stack agree, from the kept results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from openrlhf_ada.arena.agreement import LEARNER, MARKS, REAL, Cell, Conditions, Result
from openrlhf_ada.arena.agreement_tables import COST_MARGIN, MARGIN, Row, contrast, curves, table
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.real_tables import Interval

FIRST, LAST = "<!-- agreement: written by `make arena-docs` -->", "<!-- end of agreement -->"

FIGURE = "arena-agreement.png"


def render_agreement(conditions: Conditions, trials: Mapping[Cell, Result]) -> str:
    """Everything between the two marks. Raises ValueError where no seed was run on both tracks."""
    methods = _methods(trials)
    rows = table(trials, methods)
    if not rows:
        raise ValueError("no seed was run in one process and on the real stack")
    parts = [
        _verdict(rows),
        f"Task `{conditions.task}`, {conditions.steps} steps of {conditions.prompts} prompts, learning rate "
        f"{conditions.rate:g}. Each seed has a world and a starting model of its own, one run on the real stack, and "
        f"{_repeats(trials)} in one process.",
        _table(rows),
        *_contrasts(trials, methods),
        f"![Accuracy by steps in one process and on the real stack](images/{FIGURE})",
    ]
    return "\n\n".join(parts) + "\n"


def _methods(trials: Mapping[Cell, Result]) -> list[str]:
    """Those that both tracks have run, in the order of METHODS."""
    of = {stack: {cell.method for cell in trials if cell.stack == stack} for stack in (LEARNER, REAL)}
    return [name for name in METHODS if name in of[LEARNER] & of[REAL]]


def _repeats(trials: Mapping[Cell, Result]) -> int:
    return 1 + max(cell.repeat for cell in trials if cell.stack == LEARNER)


def _verdict(rows: Sequence[Row]) -> str:
    """One honest sentence for each kind of quantity."""
    accuracy = [row for row in rows if not row.quantity.relative]
    costs = [row for row in rows if row.quantity.relative]
    return " ".join(
        _sentence(kind, of, margin)
        for kind, of, margin in (
            ("accuracies", accuracy, f"{MARGIN:.0%} points".replace("%", "")),
            ("rollouts and tokens", costs, f"{COST_MARGIN:.0%}"),
        )
    )


def _sentence(kind: str, rows: Sequence[Row], margin: str) -> str:
    largest = max(abs(row.difference.mean) for row in rows)
    size = f"The largest mean difference is {100 * largest:.1f} {'%' if rows[0].quantity.relative else 'points'}."
    left = {row.verdict: [] for row in rows if not row.agrees}
    for row in rows:
        if not row.agrees:
            left[row.verdict].append(f"{row.quantity.name} of `{row.method}`")
    if not left:
        return f"**The {kind} agree**: all 95 % intervals of the differences are within {margin}. {size}"
    if "differ" in left:
        return f"**The {kind} differ**: {', '.join(left['differ'])}. {size}"
    named = ", ".join(name for names in left.values() for name in names)
    return (
        f"**No difference of {kind} is seen**, but more seeds are needed to say that they agree within {margin}: "
        f"{named}. {size}"
    )


def _table(rows: Sequence[Row]) -> str:
    head = ["method", "", "seeds", "one process", "real stack", "difference", "spread", "by chance", "verdict"]
    body = [
        [
            f"`{row.method}`",
            row.quantity.name,
            str(row.seeds),
            _number(row, row.learner),
            _number(row, row.real),
            _interval(row.difference, "%" if row.quantity.relative else "points"),
            *(f"{100 * value:.1f}" for value in (row.spread, row.by_chance)),
            row.verdict,
        ]
        for row in rows
    ]
    return markdown_table(head, body)


def _number(row: Row, value: float) -> str:
    return f"{value:,.0f}" if row.quantity.relative else f"{value:.1%}"


def _interval(value: Interval, unit: str) -> str:
    mean = f"{100 * value.mean:+.2f} {unit}"
    return (
        mean
        if value.low is None or value.high is None
        else f"{mean} ({100 * value.low:+.2f} to {100 * value.high:+.2f})"
    )


def _contrasts(trials: Mapping[Cell, Result], methods: Sequence[str]) -> list[str]:
    """What a comparison of the first two methods would say on each track."""
    if len(methods) < 2:
        return []
    gains = [contrast(trials, methods, stack) for stack in (LEARNER, REAL)]
    if None in gains:
        return []
    one, real = (_interval(gain, "points") for gain in gains if gain is not None)
    return [
        f"What a comparison of the two methods would say, at equal steps: the mean accuracy of `{methods[1]}` less "
        f"that of `{methods[0]}` is {one} in one process, and {real} on the real stack."
    ]


def draw_agreement(conditions: Conditions, trials: Mapping[Cell, Result], out_png: Path) -> None:
    """Every run as a thin line, means as thick ones; one panel for each method."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from benchmarks.axes import BLUE, ORANGE, new_axes, set_title

    methods = _methods(trials)
    figure = Figure(figsize=(6 * len(methods), 4.5), dpi=110, facecolor="white", layout="constrained")
    grid = figure.add_gridspec(1, len(methods))
    at = np.linspace(0, conditions.steps, MARKS + 1)
    for place, method in enumerate(methods):
        axes = new_axes(figure, grid[0, place])
        set_title(axes, method, x_label="training steps")
        for stack, colour, label in ((LEARNER, BLUE, "one process"), (REAL, ORANGE, "real stack")):
            of = curves(trials, method, stack)
            for curve in chain.from_iterable(of):
                axes.plot(at, curve, color=colour, linewidth=0.5, alpha=0.4)
            mean = np.mean([np.mean(of_seed, axis=0) for of_seed in of], axis=0)
            axes.plot(at, mean, color=colour, linewidth=2, label=label)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
        axes.legend(frameon=False, loc="lower right")
    out_png.parent.mkdir(parents=True, exist_ok=True)
    # No version of matplotlib in the file, so that the same results give the same file.
    figure.savefig(out_png, metadata={"Software": None})
