"""The `ada/...` figures of one step, from its record alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from openrlhf_ada.core.grouping import outcomes_differ
from openrlhf_ada.reporting.histograms import allocation_by_pass_rate, draws_histogram
from openrlhf_ada.rollout.samples_generator import GroupRecord, StepRecord


def step_metrics(record: StepRecord, *, group_size: int, threshold: float, critic_is_baseline: bool) -> dict[str, Any]:
    """Metrics by name (see docs/metrics.md). `critic_is_baseline`: PPO, whose coefficients say nothing of signal."""
    groups = record.groups
    total = len(groups)
    samples = [sample for group in groups for sample in group.pool]
    first = [sample for group in groups for sample in group.pool[:group_size]]
    with_signal = sum(_has_signal(group, critic_is_baseline) for group in groups)
    uniform = sum(outcomes_differ(group.pool[:group_size]) for group in groups)
    weights = [weight for group in groups for weight in group.group.critic_weights]
    return {
        "ada/prompts": total,
        **{f"ada/{name}": value for name, value in asdict(record.ledger).items()},
        "ada/rollouts_per_prompt": len(samples) / total,
        "ada/rounds": record.num_rounds,
        "ada/metric_mean": _mean([sample.metric for sample in samples]),
        "ada/first_wave_metric_mean": _mean([sample.metric for sample in first]),
        "ada/reward_mean": _mean([sample.reward for sample in samples]),
        "ada/signal_share": with_signal / total,
        "ada/signal_share_uniform": uniform / total,
        "ada/resolved_share": sum(group.group.resolved for group in groups) / total,
        "ada/stratum_factor_std": statistics.pstdev(weights),
        "ada/draws_histogram": draws_histogram(len(group.pool) for group in groups),
        "ada/allocation_by_pass_rate": allocation_by_pass_rate(
            (len(group.pool), sum(sample.metric > threshold for sample in group.pool)) for group in groups
        ),
    }


def first_wave_stats(record: StepRecord, group_size: int) -> dict[str, float]:
    """The host's `rollout/...` figures over the first n samples of each prompt.

    The trained group is selected by outcome, so its mean reward says nothing about the policy; the first wave does.
    """
    payloads = [payload for group in record.groups for payload in group.payloads[:group_size]]
    rewards = [float(payload.rewards[0]) for payload in payloads]
    mean = _mean(rewards)
    variance = sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)
    return {
        "rollout/reward_mean": mean,
        "rollout/reward_std": variance**0.5,
        "rollout/response_length_mean": _mean([float(payload.response_length[0]) for payload in payloads]),
        "rollout/truncated_rate": _mean([float(payload.truncated[0]) for payload in payloads]),
        "rollout/num_samples": float(len(payloads)),
    }


def _has_signal(group: GroupRecord, critic_is_baseline: bool) -> bool:
    return group.group.resolved if critic_is_baseline else any(c != 0.0 for c in group.group.coefficients)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
