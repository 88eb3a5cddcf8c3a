"""What a chart shows: numbers and words, no drawing. The page, the PNGs and the CSVs are made from the same charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from openrlhf_ada.reporting.run_record import Row, Run

AXES = {"steps": "training step", "rollouts": "rollouts drawn", "tokens": "tokens drawn", "seconds": "seconds trained"}
"""What the x axis of a chart over time can be, with its label. The first is the default."""

Color = Literal["blue", "orange", "red", "green", "pink", "sky", "grey"]
Kind = Literal["line", "dashed", "points", "bar", "area"]

SMOOTHED_FROM = 15
"""From this many steps on, a curve is drawn faint under a running mean (5 steps, or 1/15 of a long run)."""

MOST_POINTS = 1000
"""Of a curve; a longer run's points are means of neighbours."""

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve or set of bars. `x`: by axis, one value per value of y; the single axis is called "x".

    `low`, `high`: a 95 % interval of every value. `text`: words at every value.
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
    """Draw the interval as a band, not as bars."""

    @property
    def is_smoothed(self) -> bool:
        """Is a running mean drawn over it?"""
        has_bars = self.low is not None and not self.band
        return self.kind == "line" and not has_bars and "steps" in self.x and len(self.y) >= SMOOTHED_FROM

    @property
    def smoothed(self) -> list[float]:
        """The running mean; values that are missing are left out before (`over_time`)."""
        values = [value for value in self.y if value is not None]
        return running_mean(values, window=max(5, len(values) // 15 | 1))


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `name`: of its files. `note`: how to read it. `categories`: names of the bars at x = 0, 1, ..."""

    name: str
    title: str
    note: str
    y_label: str
    series: Sequence[Series]
    x_label: str = ""
    x_share: bool = False
    y_share: bool = False
    categories: Sequence[str] = ()
    diagonal: bool = False
    """Draw y = x."""

    @property
    def is_over_time(self) -> bool:
        """May the reader choose the x axis?"""
        return any("steps" in series.x for series in self.series)

    @property
    def axes(self) -> list[str]:
        """Those that every series has."""
        return [name for name in (AXES if self.is_over_time else ("x",)) if all(name in s.x for s in self.series)]


@dataclass(frozen=True, slots=True)
class Section:
    """Charts below a heading. `text`: paragraphs before them."""

    title: str
    charts: Sequence[Chart]
    text: Sequence[str] = ()


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Centred mean over `window` values (odd); at the ends over the values that exist."""
    half = window // 2
    sums = [0.0, *accumulate(values)]
    ends = [(max(0, i - half), min(len(values), i + half + 1)) for i in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in ends]


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
    name: str,
    rows: Sequence[Row],
    metric: str,
    progress: Progress,
    color: Color = "blue",
    kind: Kind = "line",
    scale: float = 1.0,
) -> list[Series]:
    """A metric's curve as a list of one, or of none if no row has it."""
    points = [(row["step"], scale * row[metric]) for row in rows if row.get(metric) is not None]
    return curve(name, points, progress, color, kind)


def curve(
    name: str, points: Sequence[tuple[int, float]], progress: Progress, color: Color = "blue", kind: Kind = "line"
) -> list[Series]:
    """A curve of (step, value) as a list of one, or of none without points."""
    if not points:
        return []
    block = math.ceil(len(points) / MOST_POINTS)
    values = [[value for _, value in points[i : i + block]] for i in range(0, len(points), block)]
    lasts = [points[min(i + block, len(points)) - 1][0] for i in range(0, len(points), block)]
    return [Series(name, [sum(v) / len(v) for v in values], progress.axes(lasts), color, kind)]
