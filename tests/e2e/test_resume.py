"""A run that is resumed goes on as an uninterrupted one does: weights, prompts, pass rates, evaluations and records.

Prompts are chosen here (--ada_candidates). Real processes that die, and the printed command: test_lost_processes.py.
"""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from books import PARTIAL, PPO
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
    "algo.advantage.estimator": "dr_grpo",
    "train.num_episodes": 2,
    "ckpt.save_steps": 2,
}
"""Two episodes of 32 prompts: four steps."""

CHOSEN = FLAGS | PPO | {
    "ada_candidates": CANDIDATES,
    "train.seed": SEED,
    "actor.adam.lr": 1e-3,
    "train.batch_size": 32,
    "train.micro_batch_size": 8,
    "ckpt.best_metric_key": "none",
    "eval.steps": 2,
    "eval.n_samples_per_prompt": 2,
}  # fmt: skip
"""Each step chooses half of the prompts. Two optimizer steps of four micro-batches, for policy and critic."""

OTHER = {"ckpt.load_enable": True, "eval.temperature": 0.9}


@dataclass(frozen=True)
class Runs:
    """One run, twice: to its end, and resumed from its middle. `first`: what was recorded and exported before."""

    folder: Path
    tensorboard: Path
    flags: dict[str, Any]
    first: Path
    said: tuple[str, str]


@pytest.fixture(scope="module")
def runs(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """As if it had been killed just before its last checkpoint was whole. Its first page could not be drawn."""
    folder = tmp_path_factory.mktemp("resume")
    run, first, tensorboard = folder / "run", folder / "first", folder / "tensorboard"
    (run / "report.html").mkdir(parents=True)
    flags = CHOSEN | {"eval.dataset": toy.heldout, "logger.tensorboard_dir": tensorboard}
    whole = train(toy_flags(toy, run, **flags)).stderr
    shutil.copytree(run, first, ignore=shutil.ignore_patterns("ckpt"))
    (run / "report.html").rmdir()
    (run / "summary.json").unlink()
    (run / "ckpt" / "_manifests" / "global_step4.json").unlink()
    resumed = train(toy_flags(toy, run, **flags | OTHER)).stderr
    return Runs(run, tensorboard, flags, first, (whole, resumed))


def test_it_ends_with_the_weights_of_the_run_that_was_not_stopped(runs: Runs) -> None:
    whole, resumed = (steps_of(run) for run in (runs.first, runs.folder))
    assert [row["step"] for row in whole] == [row["step"] for row in resumed] == [1, 2, 3, 4]
    assert resumed[:2] == whole[:2], "what was trained before the checkpoint stays"
    for expected, found in zip(whole, resumed, strict=True):
        for name in ("policy_loss", "critic_loss", "actor_lr", "ada/drawn", "rollout/reward_mean"):
            assert found[name] == expected[name], name
    assert drawn(runs.first) == drawn(runs.folder)
    weights = [load_file(run / "model" / "model.safetensors") for run in (runs.first, runs.folder)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def drawn(run: Path) -> list[tuple[Any, ...]]:
    names = ("step", "key", "index", "prompt_id", "reward", "tokens", "coefficient")
    return [tuple(sample[name] for name in names) for sample in read_jsonl(run / "samples.jsonl")]


def test_its_record_is_of_one_run(runs: Runs) -> None:
    run = runs.folder
    steps, samples = steps_of(run), read_jsonl(run / "samples.jsonl")
    firsts = [s for s in samples if s["index"] == 0]
    assert [s["key"] for s in firsts] == list(range(4 * BATCH))
    assert all(0 < row["ada/choice_chance"] < 1 for row in steps), "prompts were chosen"
    assert 0.5 <= steps[0]["ada/coverage"] <= steps[-1]["ada/coverage"] <= 1.0
    assert steps[-1]["ada/total_drawn"] == len(samples) == 4 * BATCH * N
    assert json.loads((run / "summary.json").read_text())["rollouts"] == len(samples)
    evaluations = [row["step"] for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert evaluations == [2, 4]
    check_replay(samples)
    check_trackers(run, runs.tensorboard)
    lines = [line[21:] for line in (run / "log.txt").read_text().splitlines()]
    assert sum(line.startswith("step 3/4 ") for line in lines) == 2
    assert lines[-1].startswith("report: ") and f"{run}/report.html" in lines[-1]


def test_a_page_that_cannot_be_drawn_costs_no_model(runs: Runs) -> None:
    said = runs.said[0]
    assert "IsADirectoryError" in said and f"report {runs.folder}" in said
    assert json.loads((runs.first / "summary.json").read_text())["steps"] == 4


def test_other_flags_are_told_and_kept(toy: Toy, runs: Runs) -> None:
    """And a complete run starts nothing."""
    said = runs.said[1]
    assert "training goes on from global_step2" in said
    assert "--eval.temperature 0.9 (was " in said and f"report: {runs.folder}/report.html" in said
    starts = (runs.folder / "starts.json").read_text()
    first, second = json.loads(starts)
    assert first["versions"] == second["versions"]
    assert ["--eval.temperature 0.9" in start["command"] for start in (first, second)] == [False, True]
    assert [row["step"] for row in read_run(runs.folder).steps] == [1, 2, 3, 4]
    said = train(toy_flags(toy, runs.folder, **runs.flags | OTHER)).stderr
    assert "already complete" in said and str(runs.folder / "model") in said and "--train.num_episodes" in said
    assert (runs.folder / "starts.json").read_text() == starts and "starting Ray" not in said


@pytest.mark.long
def test_what_was_sampled_ahead_is_sampled_again(toy: Toy, tmp_path: Path) -> None:
    """Prompts and counts go on from the checkpoint. The rollouts are those of other weights."""
    run = tmp_path / "run"
    flags = FLAGS | {name.replace("__", "."): value for name, value in PARTIAL.items()}
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
