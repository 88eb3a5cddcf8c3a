"""The commands of a user, on the real stack: prepare data and train on it with a script, evaluate what came out."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, ROOT, Toy, forked_python, read_jsonl, steps_of, train
from example_runs import check_example, run_example
from reward_servers import RewardServer

pytestmark = pytest.mark.e2e

NUM_PROBLEMS = 192


def call(*arguments: Any) -> str:
    return train(list(map(str, arguments)), "openrlhf_ada.cli.main").stdout


@dataclass(frozen=True)
class Outcome:
    prepared: Path
    run: Path


@pytest.fixture(scope="module")
def outcome(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of train_ada_hard_prompts.sh. Its first command was killed before, while it sampled, and goes on here."""
    folder = tmp_path_factory.mktemp("hard")
    found = Outcome(folder / "prompts", folder / "run")
    rows = [{"question": row["input"], "answer": row["label"]} for row in read_jsonl(toy.train)]
    rows += [*rows[:4], {"question": "40+2=", "answer": "42"}, {"question": "40+2=", "answer": "3"}]
    rows += [{"question": "40+4=", "answer": "forty-four"}, {"question": "", "answer": "1"}]
    raw = folder / "raw.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    start_preparing_and_kill(toy, raw, found.prepared)
    more = ("--eval.steps", "1", "--ckpt.best_metric_key", "pass@4")
    problems = {"RAW": str(raw), "PROMPTS": str(found.prepared)}
    run_example("train_ada_hard_prompts.sh", toy, found.run, *more, **problems)
    answers = read_jsonl(found.prepared / "answers" / "answers.jsonl")
    assert len(answers) == len({(row["problem"], row["index"]) for row in answers}) == NUM_PROBLEMS * 16
    return found


def start_preparing_and_kill(toy: Toy, raw: Path, out: Path) -> None:
    arguments = ("--model", toy.model, "--out", out, "--n", 16, "--band", "hard", "--max_new_tokens", 4)
    grading = ("--reward", "arithmetic", "--engines", 1)
    command = ["-m", "openrlhf_ada.cli.main", "prepare-data", raw, *arguments, *grading]
    program, environment = forked_python()
    process = subprocess.Popen(
        [program, *map(str, command)],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    answers = out / "answers" / "answers.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not (answers.exists() and answers.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert 0 < answers.read_text().count("\n") < NUM_PROBLEMS * 16


def test_prepared_data_has_measured_difficulties(outcome: Outcome) -> None:
    import datasets

    prepared = outcome.prepared
    rows = datasets.load_dataset("parquet", data_files=str(prepared / "train.parquet"), split="train")
    answers = read_jsonl(prepared / "answers" / "answers.jsonl")
    assert 32 <= len(rows) < NUM_PROBLEMS
    for row in rows:
        scores = [answer["score"] for answer in answers if answer["problem"] == row["id"]]
        assert (row["ada_draws"], row["ada_positives"]) == (16, sum(scores))
        assert 0 <= row["ada_positives"] <= 2, "`hard`"
        assert row["pass_rate"] == row["ada_positives"] / 16
    card = (prepared / "README.md").read_text()
    for fact in (
        "| rows read | 200 |",
        "| copies | 4 |",
        "| contradicting labels | 2 |",
        "| unfit question or label | 1 |",
    ):
        assert fact in card
    causes = {row["place"]: row["cause"] for row in read_jsonl(prepared / "dropped.jsonl")}
    # After 192 problems: 4 copies, 2 that contradict each other, 1 bad label, 1 without a question.
    assert causes.keys() == {f"line {number}" for number in range(NUM_PROBLEMS + 1, NUM_PROBLEMS + 9)}
    copies, (first, second, label, question) = (
        list(causes.values())[1:5],
        [causes[f"line {n}"] for n in range(197, 201)],
    )
    assert len(set(copies)) == 1 and "label" not in copies[0]
    assert "another label" in first and "another label" in second
    assert "integer" in label and "'question'" in question
    # What an answer costs the model in nats is known, and answers that stop are not cut off.
    assert all(answer["surprise"] >= 0 for answer in answers)
    assert sum(answer["truncated"] for answer in answers) < len(answers) / 2


def test_training_starts_with_known_counts(outcome: Outcome) -> None:
    import datasets

    check_example(outcome.run, "est", eval_steps=1)
    whole = datasets.load_dataset("parquet", data_files=str(outcome.prepared / "train.parquet"), split="train")
    rows = whole.select(range(32))  # --data.max_samples
    rates = [k / n for k, n in zip(rows["ada_positives"], rows["ada_draws"], strict=True)]
    mean = (sum(rates) + 2 * 0.5) / (len(rates) + 2)
    first = [row for row in read_jsonl(outcome.run / "samples.jsonl") if row["step"] == 1]
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


def test_evaluation_chooses_the_best_checkpoint(outcome: Outcome) -> None:
    rows = [row for row in read_jsonl(outcome.run / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in rows] == [0, *[row["step"] for row in steps_of(outcome.run)]]
    for row in rows:
        assert row["eval/accuracy"] <= row["eval/pass@4"] <= 1.0
        assert (row["eval/num_samples"], row["eval/no_score"]) == (32 * 4, 0)
        assert 1 <= row["eval/tokens"] <= 4
    saved = [path.name for path in (outcome.run / "ckpt" / "_actor").iterdir() if path.name.startswith("best_")]
    assert saved


@pytest.fixture
def reward_server(toy: Toy) -> Iterator[RewardServer]:
    """Fails for one problem only."""
    counts = Counter(row["label"] for row in read_jsonl(toy.heldout))
    failing = next(label for label, count in counts.items() if count == 1)
    server = RewardServer()
    server.failure = lambda label: "answers 500" if label == failing else ""
    yield server
    server.close()


def test_models_are_compared_on_the_same_problems(
    toy: Toy, outcome: Outcome, tmp_path: Path, reward_server: RewardServer
) -> None:
    """Graded by a server of one's own. Where that fails there is no score, and the answer is in no figure."""
    out = tmp_path / "eval"
    sampling = ("--max_new_tokens", 4, "--max_len", 32, "--reward", reward_server.url, "--n", 4)
    models = ("--model", toy.model, outcome.run / "model")
    text = call("eval", "--benchmark", toy.heldout, "--out", out, *sampling, *models)
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
    assert "pass@heldout" in (out / "results.html").read_text()
    check_missing_scores(out, results["models"], text)
    # The server works again: the answers without a score are sampled again, and no others.
    reward_server.failure = lambda label: ""
    text = call("eval", "--benchmark", toy.heldout, "--out", out, *sampling, *models[:2])
    assert "have no score" not in text
    assert {len(read_jsonl(file)) for file in out.glob("*/heldout/answers.jsonl")} == {32 * 4}
    # Once more: everything is there, so no engine starts, and the figures are the same.
    assert call("eval", "--benchmark", toy.heldout, "--out", out, *sampling, *models[:2]) == text


def check_missing_scores(out: Path, models: list[dict[str, Any]], text: str) -> None:
    failing = 4  # of one problem
    files = list(out.glob("*/heldout/answers.jsonl"))
    assert len(files) == len(models) == 2
    means: list[float] = []
    for file in files:
        rows = read_jsonl(file)
        assert sum(row["score"] is None for row in rows) == failing
        assert all(row["cause"] for row in rows if row["score"] is None)
        known = [row["score"] for row in rows if row["score"] is not None]
        means.append(sum(known) / len(known))
    assert sorted(model["figures"]["heldout"]["avg@4"]["mean"] for model in models) == pytest.approx(sorted(means))
    assert [model["no_score"] for model in models] == [{"heldout": failing}] * 2
    assert f"{2 * failing} answers" in text
