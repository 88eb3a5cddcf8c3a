"""Distributions that a step reports as JSON objects: small, and addable over steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypedDict

PASS_RATE_BINS = ("0", "0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1", "1")
"""Labels in order. Pools of one outcome have their own bins; the others are half-open, [0.2, 0.4) and so on."""


class BinCount(TypedDict):
    """Content of one pass-rate bin."""

    prompts: int
    rollouts: int


def draws_histogram(drawn_P: Iterable[int]) -> dict[str, int]:
    """Number of prompts by number of rollouts drawn: [4, 4, 8] -> {"4": 2, "8": 1}, in ascending order."""
    return {str(drawn): prompts for drawn, prompts in sorted(Counter(drawn_P).items())}


def allocation_by_pass_rate(pools: Iterable[tuple[int, int]]) -> dict[str, BinCount]:
    """Prompts and rollouts by observed pass rate; bins without prompts are left out.

    Args:
        pools: one (finished rollouts, positives among them) per prompt.

    Raises:
        ValueError: an empty pool, or more positives than rollouts.
    """
    bins: dict[str, BinCount] = {label: {"prompts": 0, "rollouts": 0} for label in PASS_RATE_BINS}
    for drawn, positives in pools:
        count = bins[pass_rate_bin(drawn, positives)]
        count["prompts"] += 1
        count["rollouts"] += drawn
    return {label: count for label, count in bins.items() if count["prompts"]}


def mean_by_pass_rate(pools: Iterable[tuple[int, int, float]]) -> dict[str, float]:
    """Mean of a figure by observed pass rate; bins without prompts are left out.

    `pools`: one (finished rollouts, positives among them, figure) per prompt.
    """
    bins: dict[str, list[float]] = {label: [] for label in PASS_RATE_BINS}
    for drawn, positives, figure in pools:
        bins[pass_rate_bin(drawn, positives)].append(figure)
    return {label: sum(figures) / len(figures) for label, figures in bins.items() if figures}


def pass_rate_bin(drawn: int, positives: int) -> str:
    """The label of a pool's bin, by integer arithmetic: 1 of 5 is in "0.2-0.4" on every machine."""
    if drawn < 1 or not 0 <= positives <= drawn:
        raise ValueError(f"a pool of {drawn} rollouts with {positives} positives: expected 0 <= positives <= rollouts")
    if positives == 0:
        return PASS_RATE_BINS[0]
    if positives == drawn:
        return PASS_RATE_BINS[-1]
    return PASS_RATE_BINS[1 + 5 * positives // drawn]


def add_allocations(histograms: Iterable[Mapping[str, BinCount]]) -> dict[str, BinCount]:
    """Sum of several steps' `allocation_by_pass_rate`, in bin order."""
    total: dict[str, BinCount] = {label: {"prompts": 0, "rollouts": 0} for label in PASS_RATE_BINS}
    for histogram in histograms:
        for label, count in histogram.items():
            total[label]["prompts"] += count["prompts"]
            total[label]["rollouts"] += count["rollouts"]
    return {label: count for label, count in total.items() if count["prompts"]}
