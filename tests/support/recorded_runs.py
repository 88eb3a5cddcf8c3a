"""Small recorded runs for the tests of reports: their figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup
from openrlhf_ada.reporting.histograms import allocation_by_pass_rate
from openrlhf_ada.reporting.run_log import RunLog, sample_records
from openrlhf_ada.reporting.run_record import Run, read_run

ATTACK = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\x1b[31m\u202eabc"

CONFIG: dict[str, Any] = {
    "rollout": {"n_samples_per_prompt": 2, "batch_size": 2},
    "algo": {"advantage": {"estimator": "dr_grpo"}},
    "ada": {"mode": "seq", "exit": "balance", "wave": 2, "max_samples": 4, "positive_threshold": 0.5, "log_texts": 4},
    "train": {"seed": 42},
}


def step_metrics(step: int, drawn: int = 6) -> dict[str, Any]:
    return {
        "ada/prompts": 2,
        "ada/drawn": drawn,
        "ada/kept": 4,
        "ada/unused": drawn - 4,
        "ada/aborted": step % 2,
        "ada/drawn_tokens": 1500,
        "ada/kept_tokens": 1000,
        "ada/unused_tokens": 500,
        "ada/aborted_tokens": 0,
        "ada/rollouts_per_prompt": drawn / 2,
        "ada/first_wave_metric_mean": 0.25,
        "ada/signal_share": 1.0,
        "ada/signal_share_uniform": 0.5,
        "ada/estimator_brier": 0.1,
        "ada/prior_brier": 0.2,
        "ada/effective_weight": {"0.2-0.4": 1.5, "0.4-0.6": 1.0},
        "ada/allocation_by_pass_rate": allocation_by_pass_rate([(4, 1), (2, 1)]),
        "ada/step_s": 30.0,
        "timing/generation": 20.0,
        "timing/ppo_train": 8.0,
        "rollout/response_length_mean": 250.0,
        "ent_loss": 1.0 / step,
    }


def pool_of(scores: Sequence[float], key: int, predicted: float | None = None) -> PromptPool:
    pool = PromptPool(key, [Sample(key, i, float(score), float(score), 3) for i, score in enumerate(scores)])
    pool.predicted = predicted
    return pool


def balanced_group(pool: PromptPool) -> TrainingGroup:
    """One of each outcome, or the first two without coefficients."""
    scores = list(pool.scores)
    if len(set(scores)) == 1:
        return TrainingGroup(pool.key, (0, 1), (0.0, 0.0), (1.0, 1.0), resolved=False)
    pair = tuple(sorted((scores.index(0.0), scores.index(1.0))))
    coefficients = tuple(0.5 if scores[i] else -0.5 for i in pair)
    return TrainingGroup(pool.key, pair, coefficients, (1.0, 1.0), resolved=True)


def log_pools(log: RunLog, step: int, pools: Sequence[Sequence[float]], first_key: int = 0, aborted: int = 0) -> None:
    """A step with these pools, each of a prompt of its own (`row-KEY`)."""
    made = [pool_of(scores, first_key + i) for i, scores in enumerate(pools)]
    groups = [balanced_group(pool) for pool in made]
    for pool, group in zip(made, groups, strict=True):
        texts = [f"answer {i} of {pool.key}" for i in range(len(pool))]
        log.log_samples(step, sample_records(f"row-{pool.key}", f"prompt {pool.key}", pool, texts, group, label="7"))
    drawn = sum(map(len, pools)) + aborted
    signal = sum(group.resolved for group in groups) / len(groups)
    figures = {
        "ada/prompts": len(pools),
        "ada/drawn": drawn,
        "ada/signal_share": signal,
        "ada/drawn_tokens": 3 * drawn,
    }
    log.log_step(step, figures)


def make_run(
    run_dir: Path,
    *,
    steps: int,
    evaluations: tuple[int, ...] = (),
    off: bool = False,
    config: dict[str, Any] = CONFIG,
    accuracy: float = 0.25,
) -> Run:
    """Run with one recorded pool a step: wrong, right, wrong, right; the first two are trained."""
    with RunLog(run_dir, config) as log:
        for step in range(steps + 1):
            if step > 0:
                pool = pool_of([0, 1, 0, 1], step, predicted=0.4)
                texts = [ATTACK, "right", "wrong", "right"]
                records = sample_records(
                    f"row-{step}", f"{ATTACK} {step}", pool, texts, balanced_group(pool), label=f"label {ATTACK}"
                )
                log.log_samples(step, [] if off else records)
                log.log_step(step, {"policy_loss": 0.1} if off else step_metrics(step))
            if step in evaluations:
                found = {"eval/accuracy": accuracy + 0.1 * step, "eval/ci95": None if off else 0.05}
                log.log_evaluation(step, {**found, "eval/accuracy/a&b": 0.25, "eval/accuracy/c": 0.25})
    return read_run(run_dir)
