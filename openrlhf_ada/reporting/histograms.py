"""Distributions that a step reports as JSON objects: small, and addable over steps."""

from __future__ import annotations

from collections import Counter, defaultdict
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


def by_pass_rate(pairs: Iterable[tuple[float, float]]) -> dict[int, list[float]]:
    """Figures by bin of their pass rate, ascending, without empty bins. `pairs`: (pass rate, figure)."""
    bins: dict[int, list[float]] = defaultdict(list)
    for rate, figure in pairs:
        bins[pass_rate_bin(rate)].append(figure)
    return dict(sorted(bins.items()))


def allocation_by_pass_rate(pools: Iterable[tuple[int, int]]) -> dict[str, dict[str, int]]:
    """Prompts and rollouts by observed pass rate. `pools`: one (finished rollouts, positives among them) each."""
    bins = by_pass_rate((positives / drawn, drawn) for drawn, positives in pools)
    return {PASS_RATE_BINS[i]: {"prompts": len(drawn), "rollouts": int(sum(drawn))} for i, drawn in bins.items()}


def mean_by_pass_rate(pools: Iterable[tuple[int, int, float]]) -> dict[str, float]:
    """Mean of a figure by observed pass rate. `pools`: one (finished rollouts, positives among them, figure) each."""
    bins = by_pass_rate((positives / drawn, figure) for drawn, positives, figure in pools)
    return {PASS_RATE_BINS[i]: sum(figures) / len(figures) for i, figures in bins.items()}
