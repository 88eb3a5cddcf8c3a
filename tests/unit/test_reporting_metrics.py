"""The table of metrics, its document, and the distributions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrlhf_ada.core.types import Ledger
from openrlhf_ada.reporting.histograms import (
    PASS_RATE_BINS,
    allocation_by_pass_rate,
    draws_histogram,
    mean_by_pass_rate,
    pass_rate_bin,
)
from openrlhf_ada.reporting.metrics import METRICS, check_metric_name, render_metrics_table
from openrlhf_ada.reporting.run_record import OBJECTS, read_run

DOCS = Path(__file__).parents[2] / "docs"


def test_docs_are_generated_from_the_table() -> None:
    written = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert written == render_metrics_table(), "docs/metrics.md is out of date: run `make docs`"


def test_every_metric_is_explained_in_one_table_row() -> None:
    for name, metric in METRICS.items():
        assert name.startswith(("ada/", "eval/"))
        assert metric.unit and metric.meaning and metric.bad
        assert "|" not in "".join(metric) and "\n" not in "".join(metric), f"{name} would break the table"


def test_the_ledger_is_in_the_table() -> None:
    assert {f"ada/{field}" for field in Ledger.__dataclass_fields__} <= METRICS.keys()


def test_unknown_own_names_are_refused_host_names_pass() -> None:
    for name in ("ada/drawn", "eval/accuracy/math_train", "rollout/reward_mean", "policy_loss"):
        check_metric_name(name)
    with pytest.raises(ValueError, match=r"'ada/drawm' is not in METRICS"):
        check_metric_name("ada/drawm")


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
    objects = {"ada/draws_histogram", "ada/allocation_by_pass_rate", "ada/effective_weight", "ada/causes"}
    assert objects == OBJECTS
    (tmp_path / "config.json").write_text("{}")
    row = {"step": 1} | {name: {"wrong answer": 5} for name in objects}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert read_run(tmp_path).steps == [row]
