"""Draws charts as images, by matplotlib. The page of a report draws the same charts by plotly.

Colours are Okabe and Ito's, told apart by colour-blind readers and in grey print. matplotlib is imported inside the
functions, and no global state of it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ada.reporting.charts import AXES, Chart, Section, Series
from openrlhf_ada.reporting.payoff import payoff
from openrlhf_ada.reporting.run_charts import run_sections
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.visits import read_visits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREEN, PINK, SKY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
INK, MUTED, FAINT = "#222222", "#6b6b6b", "#dddddd"

PALETTE = {"blue": BLUE, "orange": ORANGE, "red": RED, "green": GREEN, "pink": PINK, "sky": SKY, "grey": "#8a8a8a"}

OVERVIEW = ("score", "pay_signal", "signal", "allocation", "waste", "phases", "length")
"""Charts that one picture of a run shows, the first four that it has."""


def plot_run(run: Run, out_png: Path) -> Path:
    """Draw the main charts of a run as a PNG of 2400 x 1640 pixels, made to be shown 1200 wide. Returns `out_png`.

    A run without steps gives a figure too, which says so.
    """
    from matplotlib.figure import Figure

    visits = read_visits(run)
    charts = {c.name: c for section in run_sections(run, visits, payoff(run, visits)) for c in section.charts}
    shown = [charts[name] for name in OVERVIEW if name in charts][:4]
    figure = Figure(figsize=(12, 8.2), dpi=200, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.06)  # pyright: ignore
    grid = figure.add_gridspec(2, 2) if len(shown) > 1 else figure.add_gridspec(1, 1)
    for place, chart in enumerate(shown):
        draw_chart(new_axes(figure, grid[divmod(place, 2)]), chart, "steps")
    if not shown:
        figure.text(0.5, 0.5, "no step recorded yet", ha="center", color=MUTED, fontsize=14)
    figure.savefig(out_png)
    return out_png


def write_pngs(sections: Sequence[Section], folder: Path, axis: str) -> list[Path]:
    """One PNG of 1600 x 960 pixels for each chart. `axis`: one of AXES, for charts over time that have it."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in (chart for section in sections for chart in section.charts):
        figure = Figure(figsize=(8, 4.8), dpi=200, facecolor="white", layout="constrained")
        draw_chart(new_axes(figure, figure.add_gridspec(1, 1)[0, 0]), chart, axis)
        figure.savefig(folder / f"{chart.name}.png")
        written.append(folder / f"{chart.name}.png")
    return written


def new_axes(figure: Figure, cell: object) -> Axes:
    """Axes in a cell of the figure's grid, in this package's style."""
    axes: Axes = figure.add_subplot(cell)  # pyright: ignore
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=10.5, length=3, color=MUTED)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def set_title(axes: Axes, text: str, *, x_label: str) -> None:
    """Above the axes on the left, with room for a legend below it; and what x is."""
    axes.set_title(text, loc="left", fontsize=13, fontweight="bold", color=INK, pad=26)
    axes.set_xlabel(x_label, fontsize=11, color=INK)


def draw_chart(axes: Axes, chart: Chart, axis: str) -> None:
    """Draw a chart. `axis`: of AXES; a chart that lacks it takes its first."""
    axis = axis if axis in chart.axes else next(iter(chart.axes), "steps")
    set_title(axes, chart.title, x_label=AXES.get(axis, "") if chart.is_over_time else chart.x_label)
    axes.set_ylabel(_plain(chart.y_label), fontsize=11, color=INK)
    if areas := [series for series in chart.series if series.kind == "area"]:
        _draw_areas(axes, areas, axis)
    bars = [series for series in chart.series if series.kind == "bar"]
    for place, series in enumerate(chart.series):
        if series.kind == "bar":
            _draw_bars(axes, series, place, len(bars))
        elif series.kind != "area":
            _draw_series(axes, series, axis)
    if chart.diagonal:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":")
    _format(axes, chart)
    if len(chart.series) > 1:
        _legend(axes)


def _plain(text: str) -> str:
    """A dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _xy(series: Series, axis: str) -> tuple[Any, Any]:
    x = series.x.get(axis) or next(iter(series.x.values()))
    return np.array(x, dtype=float), np.array(series.y, dtype=float)


def _draw_areas(axes: Axes, areas: Sequence[Series], axis: str) -> None:
    """Stacked. All were recorded at the same steps; one that was not is drawn over the steps that all have."""
    xs = [_xy(series, axis)[0] for series in areas]
    shared = sorted(set(xs[0]).intersection(*xs[1:]))
    ys = [[dict(zip(x, _xy(s, axis)[1], strict=True))[at] for at in shared] for x, s in zip(xs, areas, strict=True)]
    colors = [PALETTE[series.color] for series in areas]
    axes.stackplot(shared, ys, labels=[_plain(s.name) for s in areas], colors=colors, alpha=0.85, linewidth=0)


def _draw_bars(axes: Axes, series: Series, place: int, count: int) -> None:
    x, y = _xy(series, "x")
    width = 0.76 / count
    axes.bar(x + (place - (count - 1) / 2) * width, y, width, color=PALETTE[series.color], label=_plain(series.name))


def _draw_series(axes: Axes, series: Series, axis: str) -> None:
    x, y = _xy(series, axis)
    color, label = PALETTE[series.color], _plain(series.name)
    if series.low is not None and series.high is not None:
        low, high = np.array(series.low, dtype=float), np.array(series.high, dtype=float)
        if series.band:
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        else:
            axes.vlines(x, low, high, color=color, linewidth=1.6, zorder=4)
            for bound in (low, high):
                axes.plot(x, bound, color=color, linestyle="none", marker="_", markersize=8, zorder=4)
    if series.kind == "points":
        axes.plot(x, y, color=color, linestyle="none", marker="o", markersize=6, label=label, zorder=5)
    elif series.is_smoothed:
        if not series.band:
            axes.plot(x, y, color=color, linewidth=0.9, alpha=0.3)
        axes.plot(x, series.smoothed, color=color, linewidth=2.2, label=label)
    else:
        marker = "o" if len(y) <= 25 else None
        style = "--" if series.kind == "dashed" else "-"
        axes.plot(x, y, color=color, linewidth=2, linestyle=style, marker=marker, markersize=4, label=label)


def _format(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if _has_negative(chart) else 0.0)
    if chart.y_share:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    if chart.x_share:
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    if chart.categories:
        axes.set_xticks(range(len(chart.categories)), [_plain(name) for name in chart.categories])
        axes.set_xlim(-0.6, len(chart.categories) - 0.4)
    elif chart.is_over_time:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _has_negative(chart: Chart) -> bool:
    return any(value is not None and value < 0 for series in chart.series for value in series.y)


def _legend(axes: Axes) -> None:
    """Between title and axes, where it can never cover the data."""
    legend = axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.985),
        ncols=5,
        frameon=False,
        fontsize=10 if len(axes.get_legend_handles_labels()[1]) <= 3 else 8.5,
        handlelength=1.3,
        handletextpad=0.5,
        columnspacing=1.0,
        borderpad=0.2,
        labelcolor=INK,
    )
    legend.set_in_layout(False)
