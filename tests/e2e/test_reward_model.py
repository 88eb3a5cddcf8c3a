"""OpenRLHF's reward model scores rollouts while they are sampled, on the real stack."""

from __future__ import annotations

import math
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from books import ASYNC, COLOCATED, EST, OWN_CRITIC, PPO, SEQ, check_books
from conftest import ROOT, Toy, check_ledger, forked_python, read_jsonl, steps_of, toy_flags, train
from reward_models import build_reward_model

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

START, QUANTILE, N = 2.0, 0.6, 4
"""The first threshold is above every score that this model gives, so step 1 has no positive."""

FOLLOW = {"ada_positive_threshold": START, "ada_positive_quantile": QUANTILE}

SERVER = """
import runpy
from openrlhf_ada.platforms import without_gpu
if without_gpu.is_needed():
    without_gpu.activate()
runpy.run_module("openrlhf.cli.serve_rm", run_name="__main__")
"""


@pytest.fixture(scope="module")
def reward_model(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_reward_model(toy.model, tmp_path_factory.mktemp("reward") / "model")


@pytest.fixture
def by_model(reward_model: Path) -> dict[str, Any]:
    return {"reward.remote_url": None, "reward.model_name_or_path": reward_model, "reward.num_gpus_per_node": 1}


@pytest.fixture
def by_server(reward_model: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """OpenRLHF's own server, started as the documentation says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "serve.py"
    script.write_text(SERVER)
    address = ["--host", "127.0.0.1", "--port", str(port)]
    program, environment = forked_python()
    command = [program, str(script), "--reward.model_name_or_path", str(reward_model), *address]
    with (tmp_path / "serve.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--ds.attn_implementation", "sdpa"],
            stdout=log, stderr=log, cwd=ROOT, env=environment,
        )  # fmt: skip
    try:
        await_server(f"http://127.0.0.1:{port}/docs", server, tmp_path / "serve.log")
        yield {"reward.remote_url": f"http://127.0.0.1:{port}/get_reward", "ada_scores": "raw"}
    finally:
        server.terminate()
        server.wait()


def await_server(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(120):
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise AssertionError(f"the reward server does not answer: {log.read_text()[-4000:]}")


def lower_quantile(scores: list[float], share: float) -> float:
    """The least score with at least `share` of them at or below it."""
    ordered = sorted(scores)
    return ordered[math.ceil(share * len(ordered)) - 1]


def check_scores(run: Path, *, first: int, clip: float = 10.0) -> None:
    """Thresholds follow earlier steps' first scores, metrics follow thresholds, rewards are scores."""
    samples, threshold, seen = read_jsonl(run / "samples.jsonl"), START, list[float]()
    for row in steps_of(run):
        drawn = [s for s in samples if s["step"] == row["step"]]
        assert row["ada/score_threshold"] == threshold
        for sample in drawn:
            assert sample["metric"] == float(sample["raw_score"] > threshold)
            assert sample["reward"] == max(min(sample["raw_score"], clip), -clip)
        scores = [s["raw_score"] for s in drawn if s["index"] < first]
        assert row["ada/raw_score_mean"] == pytest.approx(sum(scores) / len(scores))
        assert len(set(scores)) > 8, "it tells answers apart"
        seen += scores
        threshold = lower_quantile(seen, QUANTILE)


def test_a_model_scores_an_asynchronous_run(toy: Toy, by_model: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes = EST | ASYNC | OWN_CRITIC
    train(toy_flags(toy, run, **changes, ada_correction="stratum", train__num_episodes=2, **FOLLOW, **by_model))
    check_books(run, changes)
    check_scores(run, first=2)


def test_colocated_ppo_with_kl_and_the_hosts_reward_server(
    toy: Toy, by_server: dict[str, Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    evaluation = {"eval.dataset": toy.heldout, "eval.n_samples_per_prompt": 2, "ada_eval_ends": True}
    # A clip range that scores leave shows that the threshold is of scores, and rewards are clipped.
    clip = {"reward.clip_range": "-0.875 0.875"}
    changes = SEQ | PPO | COLOCATED | {"ada_loss": "sequence-constant", "algo__kl__init_coef": 0.01}
    others = FOLLOW | by_server | evaluation | clip
    flags = toy_flags(toy, run, **changes, **others, train__num_episodes=2)
    at = flags.index("-0.875 0.875")
    train([*flags[:at], "-0.875", "0.875", *flags[at + 1 :]])
    check_ledger(run, batch_size=16, group_size=N, cap=16)
    check_books(run, changes)
    check_scores(run, first=N, clip=0.875)
    first, second = steps_of(run)[:2]
    assert first["ada/rollouts_per_prompt"] == 16, "no score exceeds a threshold that was guessed too high"
    assert second["ada/rollouts_per_prompt"] < 16
    assert second["ada/signal_share"] > first["ada/signal_share"] == 0.0
    for row in steps_of(run):
        assert row["critic_loss"] > 0
        assert abs(row["kl"]) < 1.0
        # Balanced groups are re-weighted to their pools; the first step has none.
        assert (row["ada/coefficient_max"] > 1) == (row["step"] > 1)
    shares = [row["eval/accuracy"] for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert shares == [0.0, 0.0], "held-out answers above the first threshold"


@pytest.mark.long
def test_mode_off_leaves_the_model_to_openrlhf(toy: Toy, by_model: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(toy_flags(toy, run, **PPO, **by_model, train__num_episodes=2))
    check_books(run, PPO)
    for row in steps_of(run):
        assert row["ada/drawn"] == row["ada/kept"] == 16 * N
        assert -10 < row["rollout/reward_mean"] < START
        assert "ada/score_threshold" not in row
