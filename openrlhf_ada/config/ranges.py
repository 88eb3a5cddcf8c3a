"""What numbers our flags take: the rules of `config` for single values."""

from __future__ import annotations

from collections.abc import Callable

MINIMA = {
    "wave": 1,
    "max_samples": 1,
    "min_samples": 2,
    "k_pos": 1,
    "k_neg": 1,
    "give_up": 0,
    "trust_steps": 1,
    "refill_limit": 1,
    "loss_length": 1,
    "log_texts": 0,
    "quantile_steps": 1,
    "speculation": 0,
    "logprob_steps": 0,
    "reward_memory": 64,
    "reward_workers": 1,
}

RANGES: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "positive_threshold": (lambda v: True, "it is a score, so a finite number", "0.5 is right for 0/1 verdicts"),
    "positive_quantile": (
        lambda v: 0.0 < v < 1.0,
        "it is a share of the scores, between 0 and 1",
        "0.5 makes half of the rollouts positive",
    ),
    "spread": (lambda v: 0.0 < v <= 1.0, "metrics lie in [0, 1], and equal ones are not spread", "Try 0.5"),
    "budget": (lambda v: v >= 2, "a prompt gets at least two rollouts", "Leave it out for n rollouts on average"),
    "half_life": (lambda v: v > 0, "it is a number of steps", "50 is a good start"),
    "prior_mean": (lambda v: 0.0 < v < 1.0, "it is a pass rate between 0 and 1", "Try 0.5"),
    "prior_strength": (lambda v: v > 0, "it is a number of rollouts", "Try 2"),
    "floor": (lambda v: 0.0 < v < 0.5, "it is a small pass rate", "Try 0.02"),
    "timeout": (lambda v: v > 0, "it is a time in seconds", "Try 1800"),
    "cluster_wait": (lambda v: v >= 0, "it is a time in seconds", "Try 600"),
    "max_no_score": (lambda v: 0.0 <= v <= 1.0, "it is a share of prompts between 0 and 1", "Try 0.05"),
    "reward_timeout": (lambda v: v > 0, "it is a time in seconds", "Try 10"),
    "format_bonus": (lambda v: v >= 0, "it is a reward for a format", "Try 0.1"),
    "engine_restarts": (lambda v: v >= 0, "it is a number of restarts", "Try 3"),
    "logprob_warn": (lambda v: v > 0, "it is a distance", "Try 0.1"),
    "logprob_stop": (lambda v: v > 0, "it is a distance", "Try 1"),
    "objective_power": (lambda v: 0.0 < v <= 1.0, "f = p^a / a rises and flattens for 0 < a <= 1", "Try 0.5"),
}
