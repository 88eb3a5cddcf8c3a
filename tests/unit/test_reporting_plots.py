"""Charts as files: a picture of a run, a PNG and a CSV of every chart."""

from __future__ import annotations

import csv
import struct
from pathlib import Path

import pytest
from recorded_runs import make_run

from openrlhf_ada.reporting.charts import Progress, Section, curve, running_mean
from openrlhf_ada.reporting.payoff import payoff
from openrlhf_ada.reporting.plots import plot_run, write_pngs
from openrlhf_ada.reporting.run_charts import run_sections
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.tables import write_csvs
from openrlhf_ada.reporting.visits import read_visits


def sections_of(run: Run) -> list[Section]:
    visits = read_visits(run)
    return run_sections(run, visits, payoff(run, visits))


def size(png: Path) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "evaluations", "off"), [(20, (0, 10, 20), False), (1, (), False), (3, (3,), True), (0, (), False)]
)
def test_picture_is_drawn_of_every_kind_of_run(
    tmp_path: Path, steps: int, evaluations: tuple[int, ...], off: bool
) -> None:
    run = make_run(tmp_path / "run", steps=steps, evaluations=evaluations, off=off)
    assert size(plot_run(run, tmp_path / "run.png")) == (2400, 1640)


@pytest.mark.slow
def test_every_chart_is_a_png(tmp_path: Path) -> None:
    sections = sections_of(make_run(tmp_path / "run", steps=20, evaluations=(0, 20)))
    written = write_pngs(sections, tmp_path / "new" / "png", "tokens")
    assert [path.stem for path in written] == [chart.name for section in sections for chart in section.charts]
    assert {size(path) for path in written} == {(1600, 960)}


def test_every_chart_is_a_csv(tmp_path: Path) -> None:
    sections = sections_of(make_run(tmp_path / "run", steps=2, evaluations=(0, 2)))
    written = {path.stem: list(csv.reader(path.open(newline=""))) for path in write_csvs(sections, tmp_path / "csv")}
    assert len(written) == sum(len(section.charts) for section in sections)
    assert written["score"] == [
        ["series", "steps", "rollouts", "tokens", "seconds", "y", "low", "high", "text"],
        ["training prompts, first samples", "1", "6.0", "1500.0", "30.0", "0.25", "", "", ""],
        ["training prompts, first samples", "2", "12.0", "3000.0", "60.0", "0.25", "", "", ""],
        ["held-out prompts", "0", "0.0", "0.0", "0.0", "0.25", "0.2", "0.3", ""],
        ["held-out prompts", "2", "12.0", "3000.0", "60.0", "0.45", "0.4", "0.5", ""],
    ]
    assert written["draws"][1] == ["prompts", "4", "1.0", "", "", "2 prompts, 8 rollouts"]


def test_running_mean_is_centred_and_shrinks_at_the_ends() -> None:
    assert running_mean([0, 3, 6, 0], window=3) == [1.5, 3.0, 3.0, 3.0]
    assert running_mean([1.0], window=5) == [1.0]


def test_long_runs_have_means_of_neighbours() -> None:
    """2,500 steps: 834 points, each of three steps but for the last, which is of one."""
    (series,) = curve("x", [(step, float(step)) for step in range(1, 2501)], Progress())
    assert len(series.y) == 834 and series.y[0] == 2.0 and series.y[-1] == 2500.0
    assert series.x["steps"][0] == 3
