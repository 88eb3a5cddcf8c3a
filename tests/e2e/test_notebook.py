"""The notebook runs from its first cell to its last, in a Jupyter kernel: two trainings in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import LIMIT_S, ROOT, read_jsonl
from nbclient import NotebookClient

pytestmark = pytest.mark.e2e

NOTEBOOK = ROOT / "examples" / "notebooks" / "first_run.ipynb"


def text_of(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.long
@pytest.mark.usefixtures("own_ray")
def test_notebook_trains_twice_and_shows_both(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    trained, plotted, samples, compared = cells[2:]
    assert "step 3/3   right" in text_of(trained), "the lines of the run are shown as they come"
    assert "\x1b" not in text_of(trained)
    assert any("image/png" in output.get("data", {}) for output in plotted.outputs)
    assert len(text_of(samples).splitlines()) == 12
    last = text_of(compared).splitlines()[-2:]
    for line, name in zip(last, ("adaptive", "uniform"), strict=True):
        run = tmp_path / "runs" / name
        summary = json.loads((run / "summary.json").read_text())
        evaluations = [row for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
        accuracy = evaluations[-1]["eval/accuracy"]
        assert line == f"{name:10} accuracy {accuracy:.2f} after {summary['rollouts']} rollouts"
        assert [row["step"] for row in evaluations] == [0, 3]
