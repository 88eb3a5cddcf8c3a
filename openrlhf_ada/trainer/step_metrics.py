"""The `ada/...` figures of one step, from its record alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.advantages import BASELINES, is_spread
from openrlhf_ada.core.objectives import effective_weight
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.types import Ledger, Sample, TrainingGroup
from openrlhf_ada.reporting.histograms import allocation_by_pass_rate, draws_histogram, mean_by_pass_rate
from openrlhf_ada.rollout.records import GroupRecord, StepRecord

MOST_CAUSES = 8
"""Causes of scores below 1 that a step's row counts, the most frequent."""


def ledger_metrics(ledger: Ledger) -> dict[str, int]:
    """What the step cost, in every mode."""
    return {f"ada/{name}": value for name, value in asdict(ledger).items()}


def step_metrics(record: StepRecord, settings: Settings, version: int) -> dict[str, Any]:
    """Metrics by name (see docs/metrics.md). `version`: policy version that trains on this batch."""
    groups, everything = record.groups, record.all_groups
    scores = np.concatenate([group.pool.scores for group in everything])
    rewards = np.concatenate([group.pool.rewards for group in everything])
    counts = [(len(group.pool), group.pool.count_positives(settings.positive_above)) for group in everything]
    return {
        "ada/prompts": len(groups),
        "ada/replaced": len(record.replaced),
        "ada/rollouts_per_prompt": record.ledger.drawn / len(groups),
        "ada/failed": record.num_failed,
        "ada/lost": record.num_lost,
        "ada/no_score": record.num_no_score,
        "ada/metric_mean": float(scores.mean()),
        "ada/first_wave_metric_mean": fmean(float(g.pool.scores[: settings.first_wave].mean()) for g in everything),
        "ada/reward_mean": float(rewards.mean()),
        **_signal(record, settings),
        "ada/coefficient_max": max(abs(c) for group in groups for c in _trained(group).coefficients),
        "ada/staleness_mean": version - fmean(s.version for g in groups for s in g.pool.samples),
        "ada/draws_histogram": draws_histogram(drawn for drawn, _ in counts),
        "ada/allocation_by_pass_rate": allocation_by_pass_rate(counts),
        "ada/effective_weight": mean_by_pass_rate(
            (*count, _weight_of(g, count, settings)) for g, count in zip(groups, counts, strict=False)
        ),
        **_grading_metrics(everything),
        **_skipped(groups, settings),
        **record.figures,
    }


def _signal(record: StepRecord, settings: Settings) -> dict[str, float]:
    """How many prompts show two outcomes. Nothing where each has one rollout, which shows one."""
    if settings.max_samples == 1:
        return {}
    groups, everything = record.groups, record.all_groups
    # With a baseline from outside the pool, groups of one outcome have coefficients too.
    by_outcome = Need.SILENT_UNRESOLVED in BASELINES[settings.baseline].lacks or settings.scores == "raw"
    with_signal = sum(_trained(g).resolved if by_outcome else any(_trained(g).coefficients) for g in groups)
    shares = {
        "ada/signal_share": with_signal / len(groups),
        "ada/resolved_share": sum(is_spread(g.pool.scores) for g in everything) / len(everything),
    }
    if settings.first_wave > 1:
        uniform = sum(is_spread(g.pool.scores[: settings.first_wave]) for g in everything)
        shares["ada/signal_share_uniform"] = uniform / len(everything)
    return shares


def _skipped(groups: Sequence[GroupRecord], settings: Settings) -> dict[str, float]:
    """What of the trained rollouts the policy does not compute."""
    if not settings.skips_zeros:
        return {}
    trained = _trained_samples(groups)
    tokens = [sample.num_tokens for sample, coefficient in trained if coefficient == 0.0]
    return {"ada/skipped": len(tokens) / len(trained), "ada/skipped_tokens": sum(tokens)}


def rewarded_wrong(groups: Sequence[GroupRecord], threshold: float) -> float:
    """Share of the trained rollouts that are not positive, and that have a reward other than 0."""
    trained = _trained_samples(groups)
    return sum(sample.score <= threshold and sample.reward != 0.0 for sample, _ in trained) / len(trained)


def _trained_samples(groups: Sequence[GroupRecord]) -> list[tuple[Sample, float]]:
    """Trained rollouts with their coefficients."""
    pairs = [(group.pool.samples, _trained(group)) for group in groups]
    return [(pool[i], c) for pool, of in pairs for i, c in zip(of.indices, of.coefficients, strict=True)]


def _grading_metrics(groups: Sequence[GroupRecord]) -> dict[str, Any]:
    """Of our own reward functions; empty for others."""
    grades = [grade for group in groups for grade in group.grades if grade is not None]
    if not grades:
        return {}
    return {
        "ada/scoring_s_mean": fmean(grade.seconds for grade in grades),
        "ada/forgeable": sum(grade.forgeable for grade in grades),
        "ada/causes": dict(Counter(grade.cause for grade in grades if grade.cause).most_common(MOST_CAUSES)),
    }


def first_wave_stats(record: StepRecord, group_size: int) -> dict[str, float]:
    """OpenRLHF's `rollout/...` figures over the first n samples of each prompt. In means every prompt counts the same.

    The trained group is selected by outcome, so its mean reward says nothing about the policy; the first wave does.
    """
    groups = record.all_groups
    rewards = np.concatenate([group.pool.rewards[:group_size] for group in groups])
    return {
        "rollout/reward_mean": fmean(float(group.pool.rewards[:group_size].mean()) for group in groups),
        "rollout/reward_std": float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0,
        "rollout/response_length_mean": fmean(
            fmean(s.num_tokens for s in g.pool.samples[:group_size]) for g in groups
        ),
        "rollout/truncated_rate": fmean(fmean(group.truncated[:group_size]) for group in groups),
        "rollout/num_samples": float(len(rewards)),
    }


def _trained(record: GroupRecord) -> TrainingGroup:
    if record.group is None:
        raise ValueError(f"row {record.row} was replaced, it has no trained group")
    return record.group


def _weight_of(record: GroupRecord, count: tuple[int, int], settings: Settings) -> float:
    """Effective weight of one trained group at its predicted pass rate, else at its pool's, which is never 0 or 1."""
    drawn, positives = count
    smoothed = (positives + 0.5) / (drawn + 1.0)
    p = smoothed if record.pool.predicted is None else min(max(record.pool.predicted, 0.001), 0.999)
    group = _trained(record)
    positive = record.pool.scores[list(group.indices)] > settings.positive_above
    coefficients = np.array(group.coefficients)
    if settings.in_ppo:
        coefficients = coefficients * np.where(positive, 1.0 - p, -p)
    return effective_weight(coefficients, positive, p, settings.group_size)
