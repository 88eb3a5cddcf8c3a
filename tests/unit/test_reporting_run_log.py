"""The record of a run: strict when written, exact when resumed, tolerant of a torn last line only."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup
from openrlhf_ada.reporting.jsonl import RunDamageError
from openrlhf_ada.reporting.run_log import Row, RunLog, sample_records
from openrlhf_ada.reporting.run_record import read_run, summarise
from openrlhf_ada.reward.grade import TimedGrade

CONFIG = {"rollout": {"n_samples_per_prompt": 2}, "logger": {"wandb": {"key": "canary", "org": None}}}


def record(key: int, index: int, response: str = "5") -> Row:
    """A row of a pool of two, the first of which is trained."""
    pool = PromptPool(key, [Sample(key, i, score=1.0, reward=0.5, num_tokens=3) for i in range(2)])
    group = TrainingGroup(key, (0,), (0.25,), (1.0,), resolved=True)
    return sample_records(f"row-{key}", f"prompt {key}", pool, [response] * 2, group)[index]


def write_steps(log: RunLog, *steps: int) -> None:
    for step in steps:
        log.log_samples(step, [record(key=step, index=0)])
        log.log_step(step, {"ada/drawn": 10 * step})


# -- what is written ----------------------------------------------------------------------------------------------


def test_record_is_readable_while_it_is_being_written(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        log.log_evaluation(0, {"eval/accuracy": 0.25, "eval/ci95": None})
        write_steps(log, 1, 2)
        run = read_run(tmp_path / "run")
    assert [row["step"] for row in run.steps] == [1, 2]
    assert run.steps[1] == {"step": 2, "ada/drawn": 20}
    assert run.evaluations == [{"step": 0, "eval/accuracy": 0.25, "eval/ci95": None}]
    assert run.summary is None
    assert run.flag("rollout.n_samples_per_prompt") == 2
    assert run.flag("rollout.nothing.here") is None


def test_score_that_a_program_could_have_forged_is_marked(tmp_path: Path) -> None:
    pool = PromptPool(1, [Sample(1, i, score=1.0, reward=0.5, num_tokens=3) for i in range(2)])
    grades = [TimedGrade(1.0, "", 0.25, i == 0) for i in range(2)]
    with RunLog(tmp_path, CONFIG) as log:
        log.log_samples(1, sample_records("row", "prompt", pool, ["a", "b"], None, grades))
        log.log_step(1, {})
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row.get("forgeable") for row in rows] == [True, None]


@pytest.mark.slow
def test_killed_process_keeps_every_logged_step(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom openrlhf_ada.reporting.run_log import RunLog\n"
        "log = RunLog(Path(sys.argv[1]), {})\nlog.log_step(1, {'ada/drawn': 1})\nos.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False)
    assert ended.returncode == -9
    assert read_run(tmp_path / "run").steps == [{"step": 1, "ada/drawn": 1}]


def test_own_metrics_must_be_finite_host_ones_become_null(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}) as log:
        with pytest.raises(ValueError, match=r"'ada/reward_mean' is nan"):
            log.log_step(1, {"ada/reward_mean": math.nan})
        log.log_step(1, {"policy_loss": math.nan, "kl": np.float32(np.inf), "n": np.int64(3), "ok": np.bool_(True)})
    assert read_run(tmp_path).steps == [{"step": 1, "policy_loss": None, "kl": None, "n": 3, "ok": True}]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"ada/reward_mean": math.inf}, "'ada/reward_mean' is inf"),
        ({"ada/draws_histogram": {"4": math.inf}}, r"'ada/draws_histogram' is {'4': inf}"),
    ],
)
def test_bad_metrics_are_refused_and_not_written(tmp_path: Path, metrics: dict, message: str) -> None:
    with RunLog(tmp_path, {}) as log:
        with pytest.raises(ValueError, match=message):
            log.log_step(1, metrics)
        log.log_step(1, {})
    assert read_run(tmp_path).steps == [{"step": 1}]


def test_values_json_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}) as log:
        with pytest.raises(TypeError, match=r"'loss' is .*ndarray"):
            log.log_step(1, {"loss": np.zeros(2)})
        with pytest.raises(TypeError, match=r"'ada/draws_histogram' is .*keys must be"):
            log.log_step(1, {"ada/draws_histogram": {(4,): 1}})


def test_steps_are_logged_once_and_in_order(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}) as log:
        log.log_step(2, {})
        for step in (2, 1):
            with pytest.raises(ValueError, match=f"step {step} is logged after step 2"):
                log.log_step(step, {})


def test_samples_have_texts_of_the_lowest_keys_only(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}, text_prompts_per_step=1, text_chars=4) as log:
        log.log_samples(1, [record(9, 0), record(7, 1, "abcdefgh"), record(7, 0, "\udc80</script>")])
    rows = list(read_run(tmp_path).samples())
    assert [(row["key"], row["index"]) for row in rows] == [(7, 0), (7, 1), (9, 0)]
    assert rows[0]["prompt"] == "prom [... 4 more characters]"
    assert rows[0]["response"].startswith("\udc80</s"), "half a surrogate pair must survive the file"
    assert rows[1]["response"] == "abcd [... 4 more characters]"
    assert "prompt" not in rows[1] and "response" not in rows[2]
    assert rows[2] == {
        "prompt": "prom [... 4 more characters]",
        "step": 1,
        "prompt_id": "row-9",
        "key": 9,
        "index": 0,
        "metric": 1.0,
        "reward": 0.5,
        "tokens": 3,
        "version": 0,
        "kept": True,
        "coefficient": 0.25,
        "positive": True,
    }


def test_sample_records_join_pool_and_group() -> None:
    pool = PromptPool(7, [Sample(7, i, score=float(i == 2), reward=0.1, num_tokens=4) for i in range(3)])
    group = TrainingGroup(7, (0, 2), (-0.5, 0.5), (1.0, 1.0), resolved=True)
    records = sample_records("row-1", "1 + 1 =", pool, ["a", "b", "c"], group)
    assert [(row["kept"], row["coefficient"], row["response"]) for row in records] == [
        (True, -0.5, "a"),
        (False, None, "b"),
        (True, 0.5, "c"),
    ]
    assert not any(row["kept"] for row in sample_records("row-1", "1 + 1 =", pool, ["a", "b", "c"], None))
    with pytest.raises(ValueError, match="shorter"):
        sample_records("row-1", "1 + 1 =", pool, ["a"], group)


def test_summary_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}) as log:
        log.write_summary({"rollouts": 3})
        with pytest.raises(ValueError, match="JSON"):
            log.write_summary({"accuracy_after": math.nan})
    assert read_run(tmp_path).summary == {"rollouts": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "samples.jsonl",
        "summary.json",
    ]


# -- resuming -----------------------------------------------------------------------------------------------------


def test_second_run_does_not_overwrite_a_record(tmp_path: Path) -> None:
    RunLog(tmp_path, {}).close()
    with pytest.raises(FileExistsError, match="--ada_run_dir"):
        RunLog(tmp_path, {})


def test_resume_drops_rows_after_the_checkpoint(tmp_path: Path) -> None:
    with RunLog(tmp_path, CONFIG) as log:
        write_steps(log, 1, 2)
        log.log_evaluation(2, {"eval/accuracy": 0.5})
        write_steps(log, 3)
        log.log_evaluation(3, {"eval/accuracy": 0.9})
        log.write_summary({})
    with (tmp_path / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"step": 4, "ada')
    with RunLog(tmp_path, CONFIG, resume_from_step=2) as log:
        assert read_run(tmp_path).summary is None
        with pytest.raises(ValueError, match="step 2 is logged after step 2"):
            log.log_step(2, {})
        log.log_evaluation(2, {"eval/accuracy": 0.6})
        write_steps(log, 3)
    run = read_run(tmp_path)
    assert [row["ada/drawn"] for row in run.steps] == [10, 20, 30]
    assert [row["step"] for row in run.samples()] == [1, 2, 3]
    assert run.evaluations == [{"step": 2, "eval/accuracy": 0.6}], "of two evaluations of a step the later counts"


def test_resume_names_missing_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunLog(tmp_path, {}) as log:
        write_steps(log, 1)
    with caplog.at_level(logging.WARNING), RunLog(tmp_path, {}, resume_from_step=4) as log:
        log.log_step(5, {})
    assert "training resumes after step 4, but the record ends at 1" in caplog.text


def test_resume_without_a_record_starts_one(tmp_path: Path) -> None:
    with RunLog(tmp_path / "new", {}, resume_from_step=0) as log:
        write_steps(log, 1)
    assert len(read_run(tmp_path / "new").steps) == 1


# -- damage -------------------------------------------------------------------------------------------------------


def damaged(tmp_path: Path, tail: bytes) -> Path:
    with RunLog(tmp_path, {}) as log:
        write_steps(log, 1, 2)
    with (tmp_path / "metrics.jsonl").open("ab") as stream:
        stream.write(tail)
    return tmp_path


@pytest.mark.parametrize("tail", [b'{"step": 3, "ada/dra', b"{", b'{"t": "\xc3', b'{"step": 3, "x": NaN}'])
def test_torn_last_line_is_left_out_with_a_warning(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(read_run(damaged(tmp_path, tail)).steps) == 2
    assert "line 3 is cut off" in caplog.text


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b'{"step": 3,\n{"step": 4}\n', r"metrics.jsonl, line 3: not JSON"),
        (b"\n", r"line 3: not JSON"),
        (b"[3]\n", r"line 3: not a JSON object"),
        (b'{"step": 2}\n', r"line 3: step 2 follows step 2"),
        (b'{"ada/drawn": 2}\n', r"line 3: 'step' is None"),
        (b'{"step": 3, "x": NaN}\n', r"line 3: not JSON \(NaN is not JSON\)"),
    ],
)
def test_any_other_damage_is_an_error_with_file_and_line(tmp_path: Path, tail: bytes, message: str) -> None:
    with pytest.raises(RunDamageError, match=message):
        read_run(damaged(tmp_path, tail))


def test_not_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
        read_run(tmp_path)
    with RunLog(tmp_path, {}):
        (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunDamageError, match=r"config.json: not JSON"):
        read_run(tmp_path)


# -- the summary --------------------------------------------------------------------------------------------------


def step_metrics(prompts: int, signal: float, uniform: float) -> dict[str, float]:
    return {
        "ada/prompts": prompts,
        "ada/signal_share": signal,
        "ada/signal_share_uniform": uniform,
        "ada/drawn": 10 * prompts,
        "ada/drawn_tokens": 100 * prompts,
        "ada/step_s": 1.5,
    }


FLAGS = {"rollout": {"n_samples_per_prompt": 4}}


def test_summary_weighs_steps_by_their_groups(tmp_path: Path) -> None:
    with RunLog(tmp_path, FLAGS) as log:
        log.log_evaluation(0, {"eval/accuracy": 0.2, "eval/ci95": 0.05})
        log.log_step(1, step_metrics(prompts=3, signal=1.0, uniform=1 / 3))
        log.log_step(2, step_metrics(prompts=1, signal=0.0, uniform=0.0))
        log.log_evaluation(2, {"eval/accuracy": 0.4, "eval/ci95": 0.06})
    summary = summarise(read_run(tmp_path))
    assert summary == {
        "accuracy_before": 0.2,
        "accuracy_after": 0.4,
        "ci95_before": 0.05,
        "ci95_after": 0.06,
        "signal_share": 0.75,
        "signal_share_uniform": 0.25,
        "signal_cost": pytest.approx(40 / 3),
        "signal_cost_uniform": 16.0,
        "rollouts": 40,
        "tokens": 400,
        "train_seconds": 3.0,
        "steps": 2,
    }


def test_mode_off_has_costs_but_no_signal(tmp_path: Path) -> None:
    with RunLog(tmp_path, FLAGS) as log:
        log.log_step(1, {"ada/drawn": 64, "ada/drawn_tokens": 640, "ada/step_s": 1.5})
    summary = summarise(read_run(tmp_path))
    assert summary["rollouts"] == 64
    assert all(summary[name] is None for name in summary if name.startswith("signal"))


def test_summary_of_empty_run_is_empty(tmp_path: Path) -> None:
    RunLog(tmp_path, {}).close()
    summary = summarise(read_run(tmp_path))
    assert summary.pop("steps") == 0
    assert set(summary.values()) == {None}
