"""Charts as CSV files, for a spreadsheet or for plots of one's own."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ada.reporting.charts import AXES, Chart, Section


def write_csvs(sections: Sequence[Section], folder: Path) -> list[Path]:
    """One CSV for each chart: series, x (every axis that the series has), y, bounds of its 95 % interval, words."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(chart, folder / f"{chart.name}.csv") for section in sections for chart in section.charts]


def _write(chart: Chart, path: Path) -> Path:
    axes = list(AXES) if chart.is_over_time else ["x"]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["series", *axes, "y", "low", "high", "text"])
        for series in chart.series:
            for i, y in enumerate(series.y):
                x = [series.x[axis][i] if axis in series.x else None for axis in axes]
                if chart.categories:
                    x = [chart.categories[int(at)] for at in x if at is not None]
                bounds = [values[i] if values is not None else None for values in (series.low, series.high)]
                writer.writerow([series.name, *x, y, *bounds, series.text[i] if series.text else None])
    return path
