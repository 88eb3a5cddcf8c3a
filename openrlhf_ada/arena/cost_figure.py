"""A figure of docs/arena.md: what methods take of the reference's cost to the target, on each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_ada.arena.tables import REFERENCE, Finals, Row, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = "arena-cost.png"

SHOWN = ("first-right", "raft-1-twice", "counted", "grpo-4", "balance")
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
STEP = 0.14
"""Between the methods of a task, whose rows are 1 apart."""


def draw_costs(by_task: Sequence[Mapping[str, Finals]], out_png: Path) -> None:
    """In seconds and in rollouts, with 95 % intervals."""
    from matplotlib.figure import Figure

    from benchmarks.axes import BLUE, GREEN, ORANGE, PINK, RED, new_axes, set_title

    colours: dict[str, str] = dict(zip(SHOWN, (PINK, BLUE, RED, ORANGE, GREEN), strict=True))
    panels = [cost for cost in ("seconds", "rollouts") if any(cost in by_cost for by_cost in by_task)]
    figure = Figure(figsize=(6.5 * len(panels), 5), dpi=110, facecolor="white", layout="constrained")
    grid = figure.add_gridspec(1, len(panels))
    axes = [new_axes(figure, grid[0, place]) for place in range(len(panels))]
    for cost, panel in zip(panels, axes, strict=True):
        set_title(panel, f"Cost to the target in {cost}", x_label=f"of {REFERENCE}'s (less is better)")
        _draw_panel(panel, [by_cost[cost] for by_cost in by_task if cost in by_cost], colours)
    named = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=len(SHOWN), frameon=False)
    out_png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_png, metadata={"Software": None})


def _draw_panel(axes: Axes, by_task: Sequence[Finals], colours: Mapping[str, str]) -> None:
    """A row for each task, the first at the top."""
    from matplotlib.ticker import NullLocator

    from benchmarks.axes import FAINT, MUTED

    for place, (name, colour) in enumerate(colours.items()):
        found = [(y, row) for y, finals in enumerate(by_task) if (row := _row(finals, name)) is not None]
        if not found:
            continue
        at = [y + STEP * (place - len(colours) // 2) for y, _ in found]
        costs, low, high = zip(*((row.cost, row.cost - row.low, row.high - row.cost) for _, row in found), strict=True)
        axes.errorbar(costs, at, xerr=(low, high), fmt="o", color=colour, markersize=5, linewidth=1.5, label=name)
    axes.axvline(1.0, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(by_task)), [finals.task for finals in by_task])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=FAINT, linewidth=0.8)


def _row(finals: Finals, method: str) -> Row | None:
    return next((row for row in table(finals) if row.method == method), None)
