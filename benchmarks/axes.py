"""Axes of the figures in docs/, by matplotlib.

Colours are Okabe and Ito's, told apart by colour-blind readers and in grey print. matplotlib is imported inside the
functions, and no global state of it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREEN, PINK, SKY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
INK, MUTED, FAINT = "#222222", "#6b6b6b", "#dddddd"


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
