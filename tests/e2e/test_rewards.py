"""A grader of one's own on the real stack: where it hangs or crashes, that costs its time limit and never the run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import LIMIT_S, ROOT, Toy, check_ledger, read_jsonl, steps_of, toy_flags, train

REWARD = """
import os
from openrlhf_ada.reward.reward_function import pooled
from openrlhf_ada.reward.grade import Grade


def grade(response, label):
    if label.endswith("7"):
        while True:
            pass
    if label == "12":
        os._exit(1)
    right = response.strip() == label
    return Grade(float(right), "" if right else "wrong answer")


reward_func = pooled(f"{__file__}:grade")
"""


@pytest.mark.e2e
def test_a_grader_that_hangs_or_crashes_costs_its_limit(toy: Toy, tmp_path: Path) -> None:
    reward = tmp_path / "my_reward.py"
    reward.write_text(REWARD)
    run_dir = tmp_path / "run"
    flags = {
        "ada_mode": "seq",
        "ada_max_samples": 8,
        "ada_wave": 4,
        "ada_reward_timeout": 1,
        "ada_reward_workers": 2,
        "ada_max_no_score": 0.9,
        "ada_format": "boxed",
        "ada_format_bonus": 0.5,
        "reward.remote_url": reward,
        "data.max_samples": 64,
    }
    train(toy_flags(toy, run_dir, **flags))
    check_ledger(run_dir, batch_size=16, group_size=4, cap=8)
    steps = steps_of(run_dir)
    labels = [row["label"] for row in read_jsonl(toy.train)[:64]]
    hopeless = {str(i) for i, label in enumerate(labels) if label.endswith("7") or label == "12"}
    assert hopeless
    assert sum(row["ada/no_score"] for row in steps) > 0
    samples = read_jsonl(run_dir / "samples.jsonl")
    assert not hopeless & {sample["prompt_id"] for sample in samples}
    for sample in samples:
        # Numbers are in no box: shaping adds nothing, and the cause is the grader's word.
        assert sample["reward"] == sample["metric"]
        assert 0 < sample["scoring_s"] < 1
        assert sample.get("cause") == (None if sample["metric"] == 1.0 else "wrong answer")
    for row in steps:
        assert row["ada/causes"].keys() == {"wrong answer"}
        assert row["ada/scoring_s_mean"] <= row["ada/scoring_s_max"] < 1


class RewardServer(BaseHTTPRequestHandler):
    """Compares with the label as OpenRLHF's protocol has it; fails for every answer to a label that ends in 7."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["labels"][0].endswith("7"):
            self.send_error(500)
            return
        answer = asked["query"][0].removeprefix(asked["prompts"][0]).removesuffix("<eos>")
        body = json.dumps({"rewards": [float(answer == asked["labels"][0])]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def reward_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), RewardServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.mark.e2e
def test_a_reward_server_that_fails_has_given_no_score(toy: Toy, tmp_path: Path, reward_url: str) -> None:
    command = ["eval", "--model", toy.model, "--benchmark", toy.heldout, "--limit", 16, "--n", 2, "--out", tmp_path]
    flags = ["--reward", reward_url, "--template", "{}", "--max_new_tokens", 4, "--max_len", 32]
    done = subprocess.run(
        [sys.executable, "-m", "openrlhf_ada.cli.main", *map(str, [*command, *flags])],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    labels = [row["label"] for row in read_jsonl(toy.heldout)[:16]]
    failing = 2 * sum(label.endswith("7") for label in labels)
    assert failing
    (file,) = tmp_path.glob("*/heldout/answers.jsonl")
    rows = read_jsonl(file)
    assert sum(row["score"] is None for row in rows) == failing
    assert all(row["cause"] for row in rows if row["score"] is None)
    (model,) = json.loads((tmp_path / "results.json").read_text())["models"]
    known = [row["score"] for row in rows if row["score"] is not None]
    assert model["figures"]["heldout"]["avg@2"]["mean"] == pytest.approx(sum(known) / len(known))
    assert model["no_score"] == {"heldout": failing}
    assert f"{failing} answers have no score" in done.stdout
