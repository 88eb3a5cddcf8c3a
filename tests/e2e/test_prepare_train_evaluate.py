"""The three commands of a user, on the real stack: prepare data, train on it, evaluate what came out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, ROOT, Toy, read_jsonl, steps_of, toy_flags, train

SAMPLING = ("--template", "{}", "--max_new_tokens", "4", "--max_len", "32", "--reward", "arithmetic")


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "openrlhf_ada.cli.main", *map(str, arguments)]


def call(*arguments: Any) -> str:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def prepared(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared in two calls: the first is killed while it samples."""
    folder = tmp_path_factory.mktemp("prepared")
    rows = [{"question": row["input"], "answer": row["label"]} for row in read_jsonl(toy.train)[:48]]
    rows += [*rows[:4], {"question": "1+1=", "answer": "2"}, {"question": "1+1=", "answer": "3"}]
    rows += [{"question": "2+2=", "answer": "four"}, {"question": "", "answer": "1"}]
    raw = folder / "raw.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ("prepare-data", raw, "--model", toy.model, "--out", folder, "--n", 16, "--band", "0.1:0.9", *SAMPLING)
    answers = folder / "answers" / "answers.jsonl"
    first = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    while not (answers.exists() and answers.stat().st_size):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    first.wait(60)
    known = answers.read_text().count("\n")
    assert known > 0
    call(*arguments)
    rows_now = read_jsonl(answers)
    assert len(rows_now) == len({(row["problem"], row["index"]) for row in rows_now}) == 48 * 16
    return folder


@pytest.mark.e2e
def test_prepared_data_has_measured_difficulties(prepared: Path) -> None:
    import datasets

    rows = datasets.load_dataset("parquet", data_files=str(prepared / "train.parquet"), split="train")
    answers = read_jsonl(prepared / "answers" / "answers.jsonl")
    assert 10 < len(rows) < 48
    for row in rows:
        scores = [answer["score"] for answer in answers if answer["problem"] == row["id"]]
        assert (row["ada_draws"], row["ada_positives"]) == (16, sum(scores))
        assert 0.1 <= row["pass_rate"] <= 0.9
    card = (prepared / "README.md").read_text()
    for fact in (
        "| rows read | 56 |",
        "| copies | 4 |",
        "| contradicting labels | 2 |",
        "| without question or label | 1 |",
    ):
        assert fact in card
    dropped = {row["label"]: row["cause"] for row in read_jsonl(prepared / "dropped.jsonl")}
    assert dropped.keys() == {"2", "3", "four"}
    assert "another label" in dropped["2"] and "not an integer" in dropped["four"]
    # What an answer costs the model in nats is known, and answers that stop are not cut off.
    assert all(answer["surprise"] >= 0 for answer in answers)
    assert sum(answer["truncated"] for answer in answers) < len(answers) / 2


@pytest.fixture(scope="module")
def trained(toy: Toy, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run")
    changes = {
        "ada_mode": "est",
        "ada_known_counts": True,
        "ada_eval_ends": True,
        "algo.advantage.estimator": "dr_grpo",
        "data.prompt_dataset": prepared / "train.parquet",
        "data.max_samples": 32,
        "reward.remote_url": "arithmetic",
        "eval.dataset": toy.heldout,
        "eval.steps": 1,
        "eval.n_samples_per_prompt": 4,
        "eval.temperature": 1,
        "ckpt.best_metric_key": "pass@4",
    }
    train(
        toy_flags(toy, run_dir)
        + [p for k, v in changes.items() for p in ([f"--{k}"] if v is True else [f"--{k}", str(v)])]
    )
    return run_dir


@pytest.mark.e2e
def test_training_starts_with_what_was_counted(prepared: Path, trained: Path) -> None:
    import datasets

    whole = datasets.load_dataset("parquet", data_files=str(prepared / "train.parquet"), split="train")
    rows = whole.select(range(32))  # --data.max_samples
    rates = [k / n for k, n in zip(rows["ada_positives"], rows["ada_draws"], strict=True)]
    mean = (sum(rates) + 2 * 0.5) / (len(rates) + 2)
    first = [row for row in read_jsonl(trained / "samples.jsonl") if row["step"] == 1]
    drawn: dict[int, int] = {}
    for sample in first:
        row = int(sample["prompt_id"])
        drawn[row] = drawn.get(row, 0) + 1
        if "predicted" in sample:
            counted = (rows["ada_positives"][row] + 2 * mean) / (rows["ada_draws"][row] + 2)
            assert sample["predicted"] == pytest.approx(counted)
    hardest = min(drawn, key=lambda row: rates[row])
    easiest = max(drawn, key=lambda row: rates[row])
    assert drawn[hardest] > drawn[easiest]


@pytest.mark.e2e
def test_evaluation_chooses_the_best_checkpoint(trained: Path) -> None:
    rows = [row for row in read_jsonl(trained / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in rows] == [0, *[row["step"] for row in steps_of(trained)]]
    for row in rows:
        assert row["eval/accuracy"] <= row["eval/pass@4"] <= 1.0
        assert (row["eval/num_samples"], row["eval/no_score"]) == (32 * 4, 0)
        assert 1 <= row["eval/tokens"] <= 4
    saved = [path.name for path in (trained / "ckpt" / "_actor").iterdir() if path.name.startswith("best_")]
    assert saved


@pytest.mark.e2e
def test_models_are_compared_on_the_same_problems(toy: Toy, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "eval"
    arguments = ("eval", "--benchmark", toy.heldout, "--out", out, *SAMPLING)
    text = call(*arguments, "--model", toy.model, trained / "model", "--n", 4)
    assert "points [" in text
    results = json.loads((out / "results.json").read_text())
    before, after = (model["figures"]["heldout"] for model in results["models"])
    for figures in (before, after):
        assert figures["avg@4"]["mean"] == pytest.approx(figures["pass@1"]["mean"])
        assert figures["pass@1"]["mean"] <= figures["pass@2"]["mean"] <= figures["pass@4"]["mean"]
        assert figures["all_equal@4"]["mean"] <= figures["all_equal@2"]["mean"]
        assert figures["avg@4"]["low"] <= figures["avg@4"]["mean"] <= figures["avg@4"]["high"]
    gain = results["models"][1]["minus_first"]["heldout"]
    assert gain["mean"] == pytest.approx(after["avg@4"]["mean"] - before["avg@4"]["mean"])
    assert (out / "curves.png").stat().st_size > 10_000
    # Once more: everything is there, so no engine starts, and the figures are the same.
    assert call(*arguments, "--model", toy.model, trained / "model", "--n", 4) == text
