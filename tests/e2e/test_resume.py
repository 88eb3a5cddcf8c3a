"""A killed run that is resumed goes on as an uninterrupted one would: prompts, pass rates and evaluations.

Prompts are chosen here (--ada_candidates). The order of OpenRLHF's own loader is resumed in test_reward_model.py.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from books import ASYNC, PARTIAL, PPO, SEQ
from conftest import Toy, read_jsonl, steps_of, toy_flags, train
from documented import is_documented
from interrupted_runs import Interruption, interrupt
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tracked import numbers

from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.choice import PromptChooser
from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.visits import VisitHistory
from openrlhf_ada.reporting.run_record import read_run

pytestmark = pytest.mark.e2e

BATCH, N, HALF_LIFE, ROWS, CANDIDATES, SEED = 16, 4, 3, 32, 2, 42
FLAGS: dict[str, Any] = {
    "ada_mode": "est",
    "ada_half_life": HALF_LIFE,
    "ada_candidates": CANDIDATES,
    "train.seed": SEED,
    "algo.advantage.estimator": "dr_grpo",
    "train.num_episodes": 2,
    "ckpt.save_steps": 2,
    "ckpt.best_metric_key": "none",
    "eval.steps": 2,
    "eval.n_samples_per_prompt": 2,
}
"""Two episodes of 32 prompts: four steps, each of which chooses half of them."""


def test_killed_run_resumes_from_its_checkpoint(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = FLAGS | {"eval.dataset": toy.heldout}
    flags |= {"logger.tensorboard_dir": tmp_path / "tensorboard"}
    killed = Interruption(signal.SIGKILL, -signal.SIGKILL, forked=False)
    interrupt(toy_flags(toy, run, **flags), "step 3/4", killed)
    assert [row["step"] for row in steps_of(run)] == [1, 2, 3]
    # Step 3 is done again.
    assert (run / "ckpt" / "_actor" / "latest").read_text() == "global_step2"
    train(toy_flags(toy, run, **flags, **{"ckpt.load_enable": True}))

    steps, samples = steps_of(run), read_jsonl(run / "samples.jsonl")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    firsts = [s for s in samples if s["index"] == 0]
    assert [s["key"] for s in firsts] == list(range(4 * BATCH))
    assert all(0 < row["ada/choice_chance"] < 1 for row in steps), "prompts were chosen"
    assert 0.5 <= steps[0]["ada/coverage"] <= steps[-1]["ada/coverage"] <= 1.0
    assert steps[-1]["ada/total_drawn"] == len(samples) == 4 * BATCH * N
    assert json.loads((run / "summary.json").read_text())["rollouts"] == len(samples)
    evaluations = [row["step"] for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert evaluations == [2, 4]
    check_replay(samples)
    check_trackers(run, tmp_path / "tensorboard")
    first, second = json.loads((run / "starts.json").read_text())
    assert first["versions"] == second["versions"] and second["command"].endswith("--ckpt.load_enable")
    lines = [line[21:] for line in (run / "log.txt").read_text().splitlines()]
    assert lines.count("starting Ray") == 2
    assert sum(line.startswith("step 3/4 ") for line in lines) == 2
    assert lines[-1].startswith("report: ") and f"{run}/report.html" in lines[-1]


def test_a_run_that_is_resumed_with_other_flags_is_exported_and_reported(toy: Toy, tmp_path: Path) -> None:
    """A page that cannot be drawn costs no model, and a complete run starts nothing."""
    run = tmp_path / "run"
    (run / "report.html").mkdir(parents=True)
    flags = SEQ | {"ckpt.save_steps": 1}
    said = train(toy_flags(toy, run, **flags)).stderr
    assert "IsADirectoryError" in said and f"report {run}" in said
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    first = (run / "model" / "model.safetensors").read_bytes()

    (run / "report.html").rmdir()
    flags |= {"train.num_episodes": 2, "ada_exit": "pos", "ada_wave": 3, "ckpt.load_enable": True}
    said = train(toy_flags(toy, run, **flags)).stderr
    assert "--ada_exit pos (was balance)" in said and f"report: {run}/report.html" in said
    assert (run / "model" / "model.safetensors").read_bytes() != first
    record = read_run(run)
    assert [row["step"] for row in record.steps] == [1, 2, 3, 4]
    starts = (run / "starts.json").read_text()
    assert ["--ada_exit pos" in start["command"] for start in json.loads(starts)] == [False, True]
    said = train(toy_flags(toy, run, **flags)).stderr
    assert "already complete" in said and str(run / "model") in said and "--train.num_episodes" in said
    assert (run / "starts.json").read_text() == starts and "starting Ray" not in said


def test_resumed_run_ends_with_the_weights_of_one_that_was_not_stopped(toy: Toy, tmp_path: Path) -> None:
    """Two optimizer steps of four micro-batches a step, for policy and critic: their order is the step's own.

    So are the prompts, which are chosen by what earlier visits have shown.
    """
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    flags = SEQ | PPO | {"train.num_episodes": 2, "ckpt.save_steps": 2, "actor.adam.lr": 1e-3}
    flags |= {"ada_candidates": CANDIDATES, "ada_choice": "greso"}
    flags |= {"train.batch_size": 32, "train.micro_batch_size": 8}
    train(toy_flags(toy, whole, **flags))
    shutil.copytree(whole / "ckpt", resumed / "ckpt")
    # As if it had been killed just before its last checkpoint was whole.
    (resumed / "ckpt" / "_manifests" / "global_step4.json").unlink()
    train(toy_flags(toy, resumed, **flags, **{"ckpt.load_enable": True}))

    rows = [row for row in steps_of(whole) if row["step"] > 2]
    for expected, found in zip(rows, steps_of(resumed), strict=True):
        for name in ("step", "policy_loss", "critic_loss", "actor_lr", "ada/drawn", "rollout/reward_mean"):
            assert found[name] == expected[name], name
    chosen = [
        [(sample["step"], sample["prompt_id"]) for sample in read_jsonl(run / "samples.jsonl") if sample["step"] > 2]
        for run in (whole, resumed)
    ]
    assert chosen[0] == chosen[1] and len({prompt for _, prompt in chosen[0]}) < ROWS
    weights = [load_file(run / "model" / "model.safetensors") for run in (whole, resumed)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("mode", [ASYNC, PARTIAL], ids=["async", "partial"])
def test_what_was_sampled_ahead_is_sampled_again(toy: Toy, tmp_path: Path, mode: dict[str, Any]) -> None:
    """Prompts and counts go on from the checkpoint. The rollouts are those of other weights."""
    run = tmp_path / "run"
    flags = FLAGS | {name.replace("__", "."): value for name, value in mode.items()}
    flags |= {"ada_candidates": None, "eval.steps": None, "eval.n_samples_per_prompt": None}
    interrupt(toy_flags(toy, run, **flags), "step 3/4", Interruption(signal.SIGINT, 130))
    before = [sample for sample in read_jsonl(run / "samples.jsonl") if sample["step"] <= 2]
    train(toy_flags(toy, run, **flags, **{"ckpt.load_enable": True}))

    samples = read_jsonl(run / "samples.jsonl")
    assert samples[: len(before)] == before, "what was trained before the checkpoint stays"
    assert [row["step"] for row in steps_of(run)] == [1, 2, 3, 4]
    assert sorted({(s["step"], s["key"]) for s in samples}) == [(1 + key // BATCH, key) for key in range(4 * BATCH)]
    counts = PassRateCounts(HALF_LIFE, prior_mean=0.5, prior_strength=2.0, give_up=64)
    for step in range(1, 5):
        rows, drawn, positives, predicted = pools_of(samples, step)
        assert predicted == pytest.approx(counts.predict(rows).tolist(), abs=1e-12), f"step {step}"
        counts.observe(rows, drawn, positives)


def pools_of(samples: list[dict[str, Any]], step: int) -> tuple[list[int], list[int], list[int], list[float]]:
    """By prompt: its row, rollouts, positives among them, and the pass rate that was predicted."""
    pools: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        if sample["step"] == step:
            pools.setdefault(sample["key"], []).append(sample)
    rows = [int(pool[0]["prompt_id"]) for pool in pools.values()]
    positives = [sum(s["metric"] > 0.5 for s in pool) for pool in pools.values()]
    return rows, [len(pool) for pool in pools.values()], positives, [pool[0]["predicted"] for pool in pools.values()]


def check_trackers(run: Path, tensorboard: Path) -> None:
    """One page, with every figure of the record; TensorBoard shows those of step 3 that count."""
    (page,) = tensorboard.iterdir()
    events = EventAccumulator(str(page), size_guidance={"scalars": 0})
    events.Reload()
    for row in read_jsonl(run / "metrics.jsonl"):
        step = row.pop("step")
        assert [name for name in row if not is_documented(name)] == []
        prefix = "" if "eval/accuracy" in row else "train/"
        for name, value in numbers(prefix, row).items():
            shown = [event.value for event in events.Scalars(name) if event.step == step]
            assert shown == pytest.approx([value], rel=1e-6, abs=1e-30), name


def check_replay(samples: list[dict[str, Any]]) -> None:
    """Replayed from the record with the same counts, every choice and every split comes out again, before and after
    the stop."""
    counts = PassRateCounts(HALF_LIFE, prior_mean=0.5, prior_strength=2.0, give_up=64)
    visits = VisitHistory(0.5)
    chooser = PromptChooser(ROWS, CANDIDATES, np.random.default_rng([SEED, 3]), counts, visits)
    for step in range(1, 5):
        pools: dict[int, list[dict[str, Any]]] = {}
        for sample in samples:
            if sample["step"] == step:
                pools.setdefault(sample["key"], []).append(sample)
        rows = [int(pool[0]["prompt_id"]) for pool in pools.values()]
        chosen = chooser.take(BATCH)
        assert [choice.row for choice in chosen] == rows, f"step {step}"
        assert [pool[0]["chance"] for pool in pools.values()] == pytest.approx([choice.chance for choice in chosen])
        rates = counts.predict(rows)
        assert [pool[0]["predicted"] for pool in pools.values()] == pytest.approx(rates.tolist(), abs=1e-12)
        drawn = [len(pool) for pool in pools.values()]
        split = allocate(priority("inverse_sqrt", rates, 0.02), BATCH * N, 2, 4 * N, list(pools))
        assert drawn == split.tolist(), f"step {step}"
        chooser.end_step([])
        counts.observe(rows, drawn, [sum(s["metric"] > 0.5 for s in pool) for pool in pools.values()])
