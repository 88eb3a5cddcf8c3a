"""What a chart shows: numbers and words, no drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from openrlhf_ada.reporting.run_record import Row, Run

DIGITS = 5
"""Of a figure in a page."""

AXES = {"steps": "training step", "rollouts": "rollouts drawn", "tokens": "tokens drawn", "seconds": "seconds trained"}
"""What the x axis of a chart over time can be, with its label. The first is the default."""

Color = Literal["blue", "orange", "green", "pink", "sky", "red", "grey"]
Kind = Literal["line", "points", "bar", "area"]

COLORS: tuple[Color, ...] = ("blue", "orange", "green", "pink", "sky", "red", "grey")

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve or set of bars. `x`: by axis, one value per value of y; the single axis is called "x".

    `low`, `high`: a 95 % interval of every value, drawn as a band if `band`. `text`: words at every value.
    """

    name: str
    y: Values
    x: Mapping[str, Values]
    color: Color = "blue"
    kind: Kind = "line"
    low: Values | None = None
    high: Values | None = None
    text: Sequence[str] | None = None
    band: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `note`: how to read it. `categories`: names of what is at x = 0, 1, ..."""

    name: str
    title: str
    note: str
    y_label: str
    series: Sequence[Series]
    x_label: str = ""
    y_share: bool = False
    categories: Sequence[str] = ()

    @property
    def is_over_time(self) -> bool:
        """May the reader choose the x axis?"""
        return any("steps" in series.x for series in self.series)


@dataclass(frozen=True, slots=True)
class Section:
    """Charts below a heading. `text`: a paragraph before them."""

    title: str
    charts: Sequence[Chart]
    text: str = ""


def with_data(sections: Sequence[Section]) -> list[Section]:
    """Without charts that have nothing to show, and without sections that have no chart then."""
    kept = [Section(s.title, [chart for chart in s.charts if chart.series], s.text) for s in sections]
    return [section for section in kept if section.charts]


@dataclass(slots=True)
class Progress:
    """What a run had spent after each step: the x axes of its curves. Axes that were not recorded are left out."""

    at: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Progress:
        costs = {"rollouts": "ada/drawn", "tokens": "ada/drawn_tokens", "seconds": "ada/step_s"}
        costs = {axis: name for axis, name in costs.items() if all(row.get(name) is not None for row in run.steps)}
        spent = dict.fromkeys(costs, 0.0)
        progress = cls({0: {"steps": 0, **spent}})
        for row in run.steps:
            spent = {axis: spent[axis] + row[name] for axis, name in costs.items()}
            progress.at[row["step"]] = {"steps": row["step"], **spent}
        return progress

    def axes(self, steps: Sequence[int]) -> dict[str, list[float]]:
        """By axis, its values at these steps; an axis that lacks one of them is left out.

        An evaluation may be of a step that has no row yet (a killed run): only the axis of steps has it.
        """
        rows = [self.at.get(step, {"steps": step}) for step in steps]
        names = [name for name in AXES if all(name in row for row in rows)]
        return {name: [row[name] for row in rows] for name in names}


def over_time(
    name: str, rows: Sequence[Row], metric: str, progress: Progress, color: Color = "blue", kind: Kind = "line"
) -> list[Series]:
    """A metric's curve as a list of one, or of none if no row has it."""
    points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    return [Series(name, values, progress.axes(steps), color, kind)]


def shortened(values: Sequence[float | None]) -> list[float | int | None]:
    """To DIGITS significant digits; whole numbers as they are; None for what is not finite."""
    return [None if value is None or not math.isfinite(value) else rounded(value) for value in values]


def rounded(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(f"{float(value):.{DIGITS}g}")
