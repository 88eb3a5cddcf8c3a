"""The table of metrics, and the distributions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from documented import DOCUMENTED, METRIC_CELLS, METRIC_ROWS

from openrlhf_ada.core.types import Ledger
from openrlhf_ada.reporting.histograms import (
    PASS_RATE_BINS,
    allocation_by_pass_rate,
    draws_histogram,
    mean_by_pass_rate,
    pass_rate_bin,
)
from openrlhf_ada.reporting.run_record import OBJECTS, read_run


def test_every_metric_is_explained_once() -> None:
    assert len(set(METRIC_ROWS)) == len(METRIC_ROWS) and all(len(cells) == 4 for cells in METRIC_CELLS)
    assert {f"ada/{field}" for field in Ledger.__dataclass_fields__} <= DOCUMENTED
    assert {f"eval/{name}" for name in ("accuracy", "ci95", "score")} <= DOCUMENTED


def test_draws_histogram_counts_prompts() -> None:
    assert draws_histogram([16, 4, 4, 8]) == {"4": 2, "8": 1, "16": 1}
    assert list(draws_histogram([16, 4, 8])) == ["4", "8", "16"]


@pytest.mark.parametrize(
    ("drawn", "positives", "label"),
    [
        (4, 0, "0"),
        (4, 4, "1"),
        (16, 1, "0-0.2"),
        (5, 1, "0.2-0.4"),
        (5, 3, "0.6-0.8"),
        (4, 2, "0.4-0.6"),
        (6, 5, "0.8-1"),
    ],
)
def test_pass_rate_bins_hold_their_lower_edge(drawn: int, positives: int, label: str) -> None:
    assert PASS_RATE_BINS[pass_rate_bin(positives / drawn)] == label


def test_allocations_are_counted() -> None:
    first = allocation_by_pass_rate([(16, 0), (8, 4), (4, 2)])
    assert first == {"0": {"prompts": 1, "rollouts": 16}, "0.4-0.6": {"prompts": 2, "rollouts": 12}}


def test_mean_by_pass_rate_skips_empty_bins() -> None:
    figures = mean_by_pass_rate([(4, 4, 5.0), (8, 4, 1.0), (4, 2, 2.0), (16, 0, 0.0)])
    assert figures == {"0": 0.0, "0.4-0.6": 1.5, "1": 5.0}
    assert list(figures) == ["0", "0.4-0.6", "1"], "in the order of the bins"
    assert mean_by_pass_rate([]) == {}


def test_a_record_may_hold_every_metric_that_is_an_object(tmp_path: Path) -> None:
    """A run reads its own record at its end."""
    objects = {cells[0].strip("`") for cells in METRIC_CELLS if "->" in cells[1]}
    assert objects == set(OBJECTS)
    (tmp_path / "config.json").write_text("{}")
    row = {"step": 1} | {name: {"wrong answer": 5} for name in objects}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert read_run(tmp_path).steps == [row]
