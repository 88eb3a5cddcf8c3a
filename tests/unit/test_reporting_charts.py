"""Charts as files, and curves of long runs."""

from __future__ import annotations

import csv
from pathlib import Path

from recorded_runs import make_run

from openrlhf_ada.reporting.charts import Progress, over_time, write_csvs
from openrlhf_ada.reporting.report import write_report


def test_every_chart_is_a_csv(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, evaluations=(0, 2))
    sections = write_report(run, tmp_path / "report.html")
    written = {path.stem: list(csv.reader(path.open(newline=""))) for path in write_csvs(sections, tmp_path / "csv")}
    assert len(written) == sum(len(section.charts) for section in sections)
    assert written["score"] == [
        ["series", "steps", "rollouts", "tokens", "seconds", "y", "low", "high", "text"],
        ["training prompts, first samples", "1", "6.0", "1500.0", "30.0", "0.25", "", "", ""],
        ["training prompts, first samples", "2", "12.0", "3000.0", "60.0", "0.25", "", "", ""],
        ["held-out prompts", "0", "0.0", "0.0", "0.0", "0.25", "0.2", "0.3", ""],
        ["held-out prompts", "2", "12.0", "3000.0", "60.0", "0.45", "0.4", "0.5", ""],
    ]
    assert written["allocation"][1] == ["by the pass rate seen", "40–60%", "4.0", "", "", "2 prompts, 8 rollouts"]


def test_long_runs_have_means_of_neighbours() -> None:
    """2,500 steps: 834 points, each of three steps but for the last, which is of one."""
    rows = [{"step": step, "loss": float(step)} for step in range(1, 2501)]
    (series,) = over_time("x", rows, "loss", Progress())
    assert len(series.y) == 834 and series.y[0] == 2.0 and series.y[-1] == 2500.0
    assert series.x["steps"][0] == 3
