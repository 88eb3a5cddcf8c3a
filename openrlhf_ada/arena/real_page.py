"""The part of docs/arena.md that says what methods cost on the real stack, from the kept results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.real import REFERENCE, Results, curve
from openrlhf_ada.arena.real_tables import COSTS, SEEDS_FOR_INTERVAL, Interval, Row, table, target_of
from openrlhf_ada.arena.tables import TARGET_SHARE

FIRST, LAST = "<!-- real: written by `make arena-docs` -->", "<!-- end of real -->"

FIGURE = "arena-real.png"

MODELS = {"smollm2": "SmolLM2-135M-Instruct", "toy": "The demo's toy"}


def render_real(results: Results) -> str:
    """Everything between the two marks. Raises ValueError where no run of the reference has ended."""
    seeds = _seeds(results)
    target = target_of(results, seeds)
    if target is None:
        raise ValueError(f"no run of {REFERENCE} has ended")
    rows = table(results, _methods(results), seeds)
    parts = [
        f"{MODELS[results.conditions.model]}, {results.conditions.budget:,} rollouts a run, learning rate "
        f"{results.conditions.rate:g}. The target is {target:.1%}: {TARGET_SHARE:.0%} of the gain of `{REFERENCE}`. "
        f"{_how_many(rows)}",
        _gains(rows),
        _spent(rows),
        f"![Accuracy by rollouts on the real stack](images/{FIGURE})",
    ]
    return "\n\n".join(parts) + "\n"


def _methods(results: Results) -> list[str]:
    run = {cell.method for cell in results.by_cell}
    return [name for name in METHODS if name in run]


def _seeds(results: Results) -> int:
    return 1 + max((cell.seed for cell in results.by_cell), default=-1)


def _how_many(rows: Sequence[Row]) -> str:
    few = [row for row in rows if row.seeds < SEEDS_FOR_INTERVAL]
    if not few:
        return "95 % intervals are Student's t over seeds, paired with the reference."
    named = ", ".join(f"`{row.method}`" for row in few)
    return f"These results are partial. Fewer than {SEEDS_FOR_INTERVAL} seeds, and so no interval: {named}."


def _gains(rows: Sequence[Row]) -> str:
    head = ["method", "seeds", "mean accuracy less the reference's", *(f"{cost} to the target" for cost in COSTS)]
    body = [
        [
            f"`{row.method}`",
            str(row.seeds),
            _points(row.gain) if row.gain and row.method != REFERENCE else "",
            *(_ratio(row.cost[cost], row) if row.cost else "" for cost in COSTS),
        ]
        for row in rows
    ]
    return markdown_table(head, body)


def _spent(rows: Sequence[Row]) -> str:
    """Means of a run."""
    head = [
        "method",
        "prompts of a step",
        "start",
        "at the end",
        "tokens drawn",
        "tokens trained",
        "sampling",
        "training",
    ]
    body = [
        [
            f"`{row.method}`",
            str(row.prompts),
            f"{row.start:.1%}",
            f"{row.final:.1%} ± {row.half_width:.1%}",
            f"{row.spent['tokens']:,.0f}",
            f"{row.spent['trained_tokens']:,.0f}",
            f"{row.spent['sampling_seconds']:,.0f} s",
            f"{row.spent['training_seconds']:,.0f} s",
        ]
        for row in rows
    ]
    return markdown_table(head, body)


def _points(value: Interval) -> str:
    mean = f"{100 * value.mean:+.1f} points"
    return (
        mean
        if value.low is None or value.high is None
        else f"{mean} ({100 * value.low:+.1f} to {100 * value.high:+.1f})"
    )


def _ratio(value: Interval, row: Row) -> str:
    if row.method == REFERENCE:
        return "1.00"
    missed = f", {row.missed} missed" if row.missed else ""
    if value.low is None or value.high is None:
        return f"{value.mean:.2f}{missed}"
    text = f"{value.mean:.2f}"
    shown = f"**{text}**" if value.high < 1 or value.low > 1 else text
    return f"{shown} ({value.low:.2f} to {value.high:.2f}){missed}"


def draw_real(results: Results, out_png: Path) -> None:
    """Every run as a thin line, the mean over seeds as a thick one."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from benchmarks.axes import new_axes, set_title

    figure = Figure(figsize=(8, 4.5), dpi=110, facecolor="white", layout="constrained")
    axes = new_axes(figure, figure.add_gridspec(1, 1)[0, 0])
    set_title(axes, f"{MODELS[results.conditions.model]} on the real stack", x_label="rollouts")
    at = np.linspace(0, results.conditions.budget, 65)
    for number, method in enumerate(_methods(results)):
        curves = [curve(run, "rollouts") for run in results.of(method, _seeds(results)).values()]
        for spent, accuracy in curves:
            axes.plot(spent, accuracy, color=f"C{number}", linewidth=0.5, alpha=0.5)
        mean = np.mean([np.interp(at, *one) for one in curves], axis=0)
        axes.plot(
            at, mean, color=f"C{number}", linewidth=2, label=f"{method}, {len(curves)} seed{'s' * (len(curves) > 1)}"
        )
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.legend(frameon=False, loc="lower right")
    out_png.parent.mkdir(parents=True, exist_ok=True)
    # No version of matplotlib in the file, so that the same results give the same file.
    figure.savefig(out_png, metadata={"Software": None})
