"""One figure per run: accuracy, signal, allocation of rollouts, cost.

Colours are Okabe and Ito's, told apart by colour-blind readers and in grey print. matplotlib is imported inside the
functions, and no global state of it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_ada.reporting.histograms import add_allocations
from openrlhf_ada.reporting.run_record import Row, Run, column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREEN, PINK, SKY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
INK, MUTED, FAINT = "#222222", "#6b6b6b", "#dddddd"

SMOOTHED_FROM = 15
"""From this many steps on, a curve per step is drawn faint, under a running mean (5 steps, or 1/15 of a long run)."""


def plot_run(run: Run, out_png: Path) -> Path:
    """Draw the run as a PNG of 2400 x 1640 pixels, made to be shown 1200 wide. Returns `out_png`.

    Panels whose metrics were not recorded say so; a run without steps gives a figure too.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.2), dpi=200, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.06)  # pyright: ignore
    grid = figure.add_gridspec(2, 2)
    _draw_accuracy(new_axes(figure, grid[0, 0]), run)
    _draw_signal(new_axes(figure, grid[0, 1]), run)
    _draw_allocation(new_axes(figure, grid[1, 0]), run)
    cost = grid[1, 1].subgridspec(1, 2, wspace=0.06)
    _draw_cost(new_axes(figure, cost[0, 0]), run.steps, "", "What did it cost? Rollouts", legend=True)
    _draw_cost(new_axes(figure, cost[0, 1]), run.steps, "_tokens", "Tokens", legend=False)
    figure.savefig(out_png)
    return out_png


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


def _legend(axes: Axes, columns: int = 2) -> None:
    """Between title and axes, where it can never cover the data."""
    legend = axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.985),
        ncols=columns,
        frameon=False,
        fontsize=10.5,
        handlelength=1.3,
        handletextpad=0.5,
        columnspacing=1.0,
        borderpad=0.2,
        labelcolor=INK,
    )
    legend.set_in_layout(False)


def _draw_placeholder(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=11)


def _placeholder_text(steps: list[Row]) -> str:
    return "not recorded for this run" if steps else "no step recorded yet"


def _share_axis(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def _step_axis(axes: Axes, rows: Sequence[Row], *, bins: int = 8) -> None:
    """Whole steps only, also where there is just one."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=bins, steps=[1, 2, 5, 10]))
    first, last = rows[0]["step"], rows[-1]["step"]
    if first == last:
        axes.set_xticks([first])
    margin = 0.03 * (last - first) if last > first else 0.5
    axes.set_xlim(first - margin, last + margin)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Centred mean over `window` values (odd); at the ends over the values that exist."""
    half = window // 2
    slices = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in slices]


def _curve(axes: Axes, steps: list[int], values: list[float], color: str, label: str) -> list[float]:
    """Draw a value per step; returns what the bold line shows."""
    if len(values) < SMOOTHED_FROM:
        axes.plot(steps, values, color=color, linewidth=2, marker="o", markersize=4, label=label)
        return values
    smooth = running_mean(values, window=max(5, len(values) // 15 | 1))
    axes.plot(steps, values, color=color, linewidth=0.9, alpha=0.3)
    axes.plot(steps, smooth, color=color, linewidth=2.2, label=label)
    return smooth


def _draw_accuracy(axes: Axes, run: Run) -> None:
    set_title(axes, "Did it learn? Share of right answers", x_label="training step")
    steps, values = column(run.steps, "ada/first_wave_metric_mean")
    if not values and not run.evaluations:
        _draw_placeholder(axes, "no evaluation and no step recorded yet")
        return
    if values:
        _curve(axes, steps, values, BLUE, "training prompts, first wave")
    _share_axis(axes)
    _step_axis(axes, sorted([*run.steps, *run.evaluations], key=lambda row: row["step"]))
    tops = [row["eval/accuracy"] + _half_width(row) for row in run.evaluations]
    axes.set_ylim(0, 1.16 * max([*values, *tops, 0.05]))
    if run.evaluations:
        _draw_evaluations(axes, run.evaluations)
    _legend(axes)


def _half_width(row: Row) -> float:
    """For drawing: an evaluation of a single prompt has no interval, and gets no bar."""
    return row["eval/ci95"] if row.get("eval/ci95") is not None else 0.0


def _draw_evaluations(axes: Axes, rows: list[Row]) -> None:
    from matplotlib.patheffects import withStroke

    x, y = column(rows, "eval/accuracy")
    half_widths = [_half_width(row) for row in rows]
    axes.errorbar(
        x,
        y,
        yerr=half_widths,
        color=RED,
        linewidth=1.6,
        linestyle=(0, (4, 2)),
        marker="s",
        markersize=7,
        elinewidth=1.8,
        capsize=5,
        capthick=1.8,
        label="held-out prompts, 95% interval",
        zorder=5,
    )
    # Room for the numbers beside the curve of the training prompts, so that they do not hide it.
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in axes.get_xticks() if low <= tick <= high])
    axes.set_xlim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    for position in sorted({0, len(x) - 1}):
        before = position == 0 and len(x) > 1
        axes.annotate(
            f"{100 * y[position]:.0f}%",
            (x[position], y[position]),
            xytext=(-9 if before else 9, 0),
            textcoords="offset points",
            ha="right" if before else "left",
            va="center",
            color=RED,
            fontsize=13,
            fontweight="bold",
            zorder=6,
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )


def _draw_signal(axes: Axes, run: Run) -> None:
    set_title(axes, "Was there a signal? Groups with a gradient", x_label="training step")
    rows = [row for row in run.steps if row.get("ada/signal_share_uniform") is not None]
    if not rows:
        _draw_placeholder(axes, _placeholder_text(run.steps))
        return
    steps, ours = column(rows, "ada/signal_share")
    _, uniform = column(rows, "ada/signal_share_uniform")
    size = run.flag("rollout.n_samples_per_prompt")
    plain = "uniform sampling" if size is None else f"uniform sampling, {size} per prompt"
    shown = _curve(axes, steps, ours, GREEN, "this run")
    base = _curve(axes, steps, uniform, ORANGE, f"{plain} (same prompts)")
    axes.fill_between(steps, base, shown, color=GREEN, alpha=0.13, linewidth=0)
    _share_axis(axes)
    _step_axis(axes, rows)
    axes.set_ylim(0, 1.03)
    _legend(axes)


def _draw_allocation(axes: Axes, run: Run) -> None:
    from matplotlib.ticker import MaxNLocator

    name = "ada/allocation_by_pass_rate"
    bins = add_allocations(row[name] for row in run.steps if row.get(name) is not None)
    set_title(axes, "Where did the rollouts go? Mean per prompt", x_label="share of right answers seen for the prompt")
    if not bins:
        _draw_placeholder(axes, _placeholder_text(run.steps))
        return
    heights = [count["rollouts"] / count["prompts"] for count in bins.values()]
    axes.bar([_bin_label(label) for label in bins], heights, color=BLUE, width=0.72)
    for position, (height, count) in enumerate(zip(heights, bins.values(), strict=True)):
        _note(axes, f"{height:.1f}", (position, height), (0, 4), ha="center", fontsize=12, fontweight="bold")
        _note(axes, f"{count['prompts']:,}", (position, 0), (0, -33), ha="center", color=MUTED)
    _note(axes, "prompts:", (-0.5, 0), (0, -33), ha="right", color=MUTED)
    size = run.flag("rollout.n_samples_per_prompt")
    if size is not None:
        axes.axhline(size, color=ORANGE, linewidth=2, linestyle=(0, (4, 2)), label=f"uniform sampling: {size} for all")
        _legend(axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 4, 5, 10]))
    axes.set_xlim(-0.5, len(bins) - 0.5)
    axes.set_ylim(0, max(heights) * 1.14)
    axes.xaxis.labelpad = 22


def _note(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any) -> None:
    """Text at a data point, shifted by points."""
    axes.annotate(text, at, xytext=shift, textcoords="offset points", **{"fontsize": 10.5, "color": INK, **style})


def _bin_label(label: str) -> str:
    """0.2-0.4 becomes 20-40% with a real dash; the bins of one outcome are in words."""
    if label == "0":
        return "none"
    if label == "1":
        return "all"
    low, high = (round(100 * float(edge)) for edge in label.split("-"))
    return f"{low}–{high}%"


def _draw_cost(axes: Axes, recorded: list[Row], suffix: str, title: str, *, legend: bool) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    set_title(axes, title, x_label="training step")
    names = [f"ada/{part}{suffix}" for part in ("kept", "unused", "aborted")]
    rows = [row for row in recorded if all(row.get(name) is not None for name in names)]
    if not rows:
        _draw_placeholder(axes, _placeholder_text(recorded))
        return
    steps = [rows[0]["step"] - 1] + [row["step"] for row in rows]
    series = [_cumulative([row[name] for row in rows]) for name in names]
    labels, colors = ["trained", "unused", "aborted"], [BLUE, ORANGE, MUTED]
    shown = 3 if series[2][-1] > 0 else 2
    axes.stackplot(steps, series[:shown], labels=labels[:shown], colors=colors[:shown], alpha=0.85, linewidth=0)
    total = sum(part[-1] for part in series)
    in_words = EngFormatter(places=1 if total >= 1000 else 0, sep="")(total)
    _note(axes, in_words, (steps[-1], total), (0, 5), ha="right", fontsize=13, fontweight="bold")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    _step_axis(axes, rows, bins=5)
    axes.set_xlim(steps[0], steps[-1])
    axes.set_ylim(0, total * 1.12 if total else 1)
    if legend:
        _legend(axes, columns=3)


def _cumulative(values: list[float]) -> list[float]:
    """Running total, starting at 0: one longer than `values`."""
    totals = [0.0]
    for value in values:
        totals.append(totals[-1] + value)
    return totals
