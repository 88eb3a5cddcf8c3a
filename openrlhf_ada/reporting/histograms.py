"""Distributions that a step reports as JSON objects: small, and addable over steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

PASS_RATE_BINS = ("0", "0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1", "1")
"""Labels in order. Pools of one outcome have their own bins; the others are half-open, [0.2, 0.4) and so on."""


def pass_rate_bin(rate: float) -> int:
    """Position in PASS_RATE_BINS."""
    if rate <= 0.0:
        return 0
    return len(PASS_RATE_BINS) - 1 if rate >= 1.0 else 1 + int(5 * rate)


def draws_histogram(drawn_P: Iterable[int]) -> dict[str, int]:
    """Number of prompts by number of rollouts drawn: [4, 4, 8] -> {"4": 2, "8": 1}, in ascending order."""
    return {str(drawn): prompts for drawn, prompts in sorted(Counter(drawn_P).items())}


def allocation_by_pass_rate(pools: Iterable[tuple[int, int]]) -> dict[str, dict[str, int]]:
    """Prompts and rollouts by observed pass rate; bins without prompts are left out.

    Args:
        pools: one (finished rollouts, positives among them) per prompt.
    """
    bins = {label: {"prompts": 0, "rollouts": 0} for label in PASS_RATE_BINS}
    for drawn, positives in pools:
        count = bins[PASS_RATE_BINS[pass_rate_bin(positives / drawn)]]
        count["prompts"] += 1
        count["rollouts"] += drawn
    return {label: count for label, count in bins.items() if count["prompts"]}


def mean_by_pass_rate(pools: Iterable[tuple[int, int, float]]) -> dict[str, float]:
    """Mean of a figure by observed pass rate; bins without prompts are left out.

    `pools`: one (finished rollouts, positives among them, figure) per prompt.
    """
    bins: dict[str, list[float]] = {label: [] for label in PASS_RATE_BINS}
    for drawn, positives, figure in pools:
        bins[PASS_RATE_BINS[pass_rate_bin(positives / drawn)]].append(figure)
    return {label: sum(figures) / len(figures) for label, figures in bins.items() if figures}
