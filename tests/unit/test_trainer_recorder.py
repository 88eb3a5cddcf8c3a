"""What the recorder does at the edges: resumed elsewhere, evaluations that are no accuracy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openrlhf_ada.config import AdaConfig
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.trainer.recorder import Recorder

STEP = {"ada/drawn": 8, "ada/drawn_tokens": 80}


class Events:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def put_nowait(self, event: dict[str, Any]) -> None:
        self.seen.append(event)


def make_recorder(run_dir: Path, resume_from: int | None = None) -> tuple[Recorder, Events]:
    events = Events()
    args = SimpleNamespace(logger=SimpleNamespace(wandb=SimpleNamespace(run_name="x")), ada_events=events)
    return Recorder(AdaConfig(run_dir=str(run_dir)), args, resume_from), events


def answer(score: float | None) -> Any:
    return SimpleNamespace(prompts=["1+1="], scores=None if score is None else torch.tensor([score]))


def test_totals_go_on_where_the_run_is_resumed(tmp_path: Path) -> None:
    make_recorder(tmp_path)[0].step(1, STEP, 2)
    make_recorder(tmp_path, resume_from=1)[0].step(2, STEP, 2)
    assert read_run(tmp_path).steps[-1]["ada/total_drawn"] == 16


def test_run_resumed_into_a_new_directory_counts_from_there(tmp_path: Path) -> None:
    make_recorder(tmp_path / "new", resume_from=5)[0].step(6, STEP, 7)
    (row,) = read_run(tmp_path / "new").steps
    assert (row["step"], row["ada/total_drawn"]) == (6, 8)


@pytest.mark.parametrize("score", [-1.0, 1.5, None])
def test_evaluation_with_other_scores_is_not_recorded_and_said(score: float | None, tmp_path: Path) -> None:
    """OpenRLHF trains on any reward, -1 and 1 are common; a failed reward call gives none."""
    recorder, events = make_recorder(tmp_path)
    recorder.evaluation(3, [answer(1.0), answer(score)], 2, {"1+1=": "sums"})
    assert read_run(tmp_path).evaluations == []
    (event,) = events.seen
    assert event["type"] == "note"
    assert "evaluation after step 3: not recorded" in event["text"]


def test_evaluation_is_recorded(tmp_path: Path) -> None:
    recorder, _ = make_recorder(tmp_path)
    recorder.evaluation(3, [answer(1.0), answer(0.0)], 2, {"1+1=": "sums"})
    assert read_run(tmp_path).evaluations[0]["eval/accuracy"] == 0.5
