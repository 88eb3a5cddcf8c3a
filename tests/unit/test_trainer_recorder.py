"""What the recorder writes: totals over resumes, every rollout of a step, evaluations that are an accuracy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import pool_of
from run_flags import settings_with

from openrlhf_ada.core.types import Ledger, TrainingGroup
from openrlhf_ada.eval.held_out import HeldOut
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.reporting.tracking import Trackers
from openrlhf_ada.rollout.records import GroupRecord, StepRecord
from openrlhf_ada.trainer.recorder import Recorder, emit

STEP = {"ada/drawn": 8, "ada/drawn_tokens": 80}


class Events:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def put_nowait(self, event: dict[str, Any]) -> None:
        self.seen.append(event)


def make_recorder(run_dir: Path, resume_from: int | None = None) -> tuple[Recorder, Events]:
    events = Events()
    logger = SimpleNamespace(wandb=SimpleNamespace(run_name="x"))
    args = SimpleNamespace(logger=logger, ada_events=events, ada=settings_with(run_dir=str(run_dir)))
    return Recorder(args, resume_from, Trackers()), events


def test_totals_go_on_where_the_run_is_resumed(tmp_path: Path) -> None:
    make_recorder(tmp_path)[0].step(1, STEP, 2)
    make_recorder(tmp_path, resume_from=1)[0].step(2, STEP, 2)
    assert read_run(tmp_path).steps[-1]["ada/total_drawn"] == 16


def test_run_resumed_into_a_new_directory_counts_from_there(tmp_path: Path) -> None:
    make_recorder(tmp_path / "new", resume_from=5)[0].step(6, STEP, 7)
    (row,) = read_run(tmp_path / "new").steps
    assert (row["step"], row["ada/total_drawn"]) == (6, 8)


def test_an_evaluation_has_what_was_used_up_by_its_step(tmp_path: Path) -> None:
    """An asynchronous run evaluates an older policy than the one it is training."""
    recorder = make_recorder(tmp_path)[0]
    recorder.step(1, STEP, 2)
    recorder.step(2, STEP, 2)
    used = [(now["ada/total_drawn"], now["ada/total_drawn_tokens"]) for now in map(recorder.used, (0, 1, 2))]
    assert used == [(0, 0), (8, 80), (16, 160)]
    assert recorder.used() == recorder.used(2)
    resumed = make_recorder(tmp_path, resume_from=1)[0]
    assert resumed.used() == recorder.used(1)


# -- samples ------------------------------------------------------------------------------------------------------


def group_record(row: int, outcomes: list[float], group: TrainingGroup | None, texts: list[str]) -> GroupRecord:
    size = len(outcomes)
    return GroupRecord(row, f"{row}+1=", pool_of(outcomes, key=row + 10), group, [False] * size, texts)


def test_samples_of_replaced_prompts_are_recorded_too(tmp_path: Path) -> None:
    trained = TrainingGroup(10, (0, 2), (0.5, -0.5), (1.0, 1.0), resolved=True)
    groups = [group_record(0, [1, 0, 0], trained, ["1", "2", "3"])]
    record = StepRecord(groups, [group_record(1, [0, 0], None, [])], Ledger(), {}, 0)
    make_recorder(tmp_path)[0].samples(1, record)
    rows = list(read_run(tmp_path).samples())
    assert [(row["prompt_id"], row["key"], row["index"], row["kept"], row["coefficient"]) for row in rows] == [
        ("0", 10, 0, True, 0.5),
        ("0", 10, 1, False, None),
        ("0", 10, 2, True, -0.5),
        ("1", 11, 0, False, None),
        ("1", 11, 1, False, None),
    ]
    assert [row["response"] for row in rows[:3]] == ["1", "2", "3"]


def test_prediction_is_in_the_prompts_first_row(tmp_path: Path) -> None:
    known, unknown = group_record(0, [1, 0], None, []), group_record(1, [0, 0], None, [])
    known.pool.predicted, known.pool.critic_value = 0.25, -0.5
    make_recorder(tmp_path)[0].samples(1, StepRecord([], [known, unknown], Ledger(), {}, 0))
    first, second, *others = list(read_run(tmp_path).samples())
    assert (first["predicted"], first["critic_value"]) == (0.25, -0.5)
    for row in (second, *others):
        assert not {"predicted", "critic_value"} & row.keys()


# -- evaluation ---------------------------------------------------------------------------------------------------


def held_out(scores: dict[str, list[list[float]]], no_score: int = 0) -> HeldOut:
    return HeldOut(
        2,
        {name: [Answered(s, [1] * len(s), [False] * len(s)) for s in groups] for name, groups in scores.items()},
        no_score,
    )


def test_evaluation_without_scores_is_not_recorded(tmp_path: Path) -> None:
    recorder, events = make_recorder(tmp_path)
    recorder.evaluation(3, held_out({}, no_score=4))
    assert read_run(tmp_path).evaluations == []
    assert [event["text"][:30] for event in events.seen] == [
        "4 held-out answers have no sco",
        "evaluation after step 3: not r",
    ]


@pytest.mark.parametrize("score", [-1.0, 1.5])
def test_evaluation_with_other_scores_is_not_recorded(score: float, tmp_path: Path) -> None:
    """OpenRLHF trains on any reward, -1 and 1 are common."""
    recorder, events = make_recorder(tmp_path)
    recorder.evaluation(3, held_out({"sums": [[1.0, 0.0]], "products": [[1.0, score]]}))
    assert read_run(tmp_path).evaluations == []
    (event,) = events.seen
    assert event["type"] == "note"
    assert "evaluation after step 3: not recorded" in event["text"]


def test_evaluation_is_recorded_and_reported(tmp_path: Path) -> None:
    recorder, events = make_recorder(tmp_path)
    recorder.evaluation(3, held_out({"sums": [[1.0, 0.0]], "products": [[1.0, 1.0], [0.0, 1.0]]}))
    (row,) = read_run(tmp_path).evaluations
    assert row["eval/accuracy"] == pytest.approx(2 / 3)
    assert (row["eval/accuracy/sums"], row["eval/accuracy/products"]) == (0.5, 0.75)
    assert (row["eval/num_prompts"], row["eval/num_samples"]) == (3, 6)
    (event,) = events.seen
    assert (event["type"], event["step"], event["accuracy"]) == ("eval", 3, row["eval/accuracy"])


# -- events -------------------------------------------------------------------------------------------------------


def test_event_goes_to_the_driver_where_there_is_one() -> None:
    events = Events()
    emit(SimpleNamespace(ada_events=events), "sampling", done=1, total=2)
    assert events.seen == [{"type": "sampling", "done": 1, "total": 2}]
    emit(SimpleNamespace(ada_events=None), "sampling", done=1, total=2)
