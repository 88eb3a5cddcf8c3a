"""Ada-Seq on the real stack learns, and says so in figures that are right. Other modes: test_modes.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train

pytestmark = pytest.mark.e2e

SEQ = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16}


def test_balance_with_grpo_learns_and_reports(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train(
        toy_flags(
            toy, run, **SEQ, data__max_samples=192, train__num_episodes=2, eval__dataset=toy.heldout,
            eval__temperature=1.0, eval__n_samples_per_prompt=16, ada_eval_ends=True,
        )
    )  # fmt: skip
    check_start(done.stderr)
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    steps = steps_of(run)
    assert [row["step"] for row in steps] == list(range(1, 25))
    first, last = steps[:6], steps[-6:]
    right = [sum(row["ada/first_wave_metric_mean"] for row in part) / 6 for part in (first, last)]
    assert right[1] > right[0] + 0.1
    evaluations = [row for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in evaluations] == [0, 24]
    assert evaluations[1]["eval/accuracy"] > evaluations[0]["eval/accuracy"] + evaluations[0]["eval/ci95"]
    signal = sum(row["ada/signal_share"] for row in steps)
    assert signal > sum(row["ada/signal_share_uniform"] for row in steps)
    for name in ("config.json", "summary.json", "report.html"):
        assert (run / name).stat().st_size > 0
    check_summary(run)


def check_start(printed: str) -> None:
    """Nothing of a normal start reads like a fault."""
    assert len(re.findall(r"^1 vLLM engine is up after \d+ s$", printed, re.MULTILINE)) == 1, printed
    waiting = r"1 vLLM engine is starting: 0 up after \d+ s; --verbose .+"
    lines = [line for line in printed.splitlines() if "engine" in line and not line.startswith("loading engines")]
    assert all(re.fullmatch(waiting, line) or " is up after " in line for line in lines), lines


def check_summary(run: Path) -> None:
    """The figures that others read, recomputed from every recorded rollout."""
    summary = json.loads((run / "summary.json").read_text())
    by_prompt: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for sample in read_jsonl(run / "samples.jsonl"):
        by_prompt.setdefault((sample["step"], sample["key"]), []).append(sample)
    pools = list(by_prompt.values())
    drawn = sum(row["ada/drawn"] for row in steps_of(run))
    with_signal = sum(any(sample["coefficient"] for sample in pool if sample["kept"]) for pool in pools)
    expected = {
        "signal_share": with_signal / len(pools),
        "rollouts": drawn,
        "tokens": sum(row["ada/drawn_tokens"] for row in steps_of(run)),
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    for name in ("accuracy_before", "accuracy_after", "ci95_before", "ci95_after", "train_seconds"):
        assert summary[name] > 0
