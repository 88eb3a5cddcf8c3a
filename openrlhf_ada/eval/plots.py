"""pass@k and the share of groups without a signal, plotted against k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_ada.eval.measures import Estimate
from openrlhf_ada.eval.results import ModelResults
from openrlhf_ada.reporting.plots import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9")


def plot_curves(results: Sequence[ModelResults], benchmark: str, out_png: Path) -> Path:
    """Both curves of every model on one benchmark (or on all, "average"), with 95 % bands. Returns `out_png`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), dpi=160, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, measure, title, label in (
        (left, "pass@", "Solved by at least one of k answers", "pass@k"),
        (right, "all_equal@", "Groups of k without a signal", "all right or all wrong"),
    ):
        ks: set[int] = set()
        for result, color in zip(results, _colors(len(results)), strict=True):
            points = _points(result.estimates()[benchmark], measure)
            ks |= set(points)
            _curve(axes, points, color, result.model)
        _style(axes, f"{title} ({benchmark})", label, sorted(ks))
    left.legend(frameon=False, fontsize=10, loc="best")
    figure.savefig(out_png)
    return out_png


def _colors(count: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(count)]


def _points(table: dict[str, Estimate], measure: str) -> dict[int, Estimate]:
    found = {int(name.removeprefix(measure)): value for name, value in table.items() if name.startswith(measure)}
    # A group of one has no spread by itself.
    return {k: found[k] for k in sorted(found) if measure == "pass@" or k > 1}


def _curve(axes: Axes, points: dict[int, Estimate], color: str, label: str) -> None:
    ks, values = list(points), list(points.values())
    axes.plot(ks, [v.mean for v in values], color=color, linewidth=2, marker="o", markersize=4, label=label)
    axes.fill_between(ks, [v.low for v in values], [v.high for v in values], color=color, alpha=0.15, linewidth=0)


def _style(axes: Axes, title: str, label: str, ks: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator, PercentFormatter

    axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=INK)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ks), [str(k) for k in ks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("k, answers per problem", color=INK)
    axes.set_ylabel(label, color=INK)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
