"""How often prompts are chosen in the long run, by pass rate: exact, for a large data set whose pass rates stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.core.choice import chances
from openrlhf_ada.core.criteria import CHOICES, LEAST_VALUE, Candidates, of_rates
from openrlhf_ada.core.pieces import Trait

Floats = NDArray[np.float64]

Visits = Sequence[Mapping[tuple[int, int], float]]
"""For each pass rate: chances of (N drawn, K positive) at a visit."""

LONGEST_RUN = 32
"""Visits in a row with one outcome that are told apart."""


def shares(
    choice: str, candidates: int, rates: Floats, visits: Callable[[], Visits], lengths: Floats | None = None
) -> Floats:
    """How often a prompt is chosen, over the mean of the candidates, shape (N,).

    Candidates are of `rates`, shape (N,), all equally frequent and drawn right, with answers of `lengths` over the
    mean (default: 1), shape (N,). `visits` is asked for where the choice reads what earlier visits showed; GRESO's
    chances to look again are those of the start.
    """
    if Trait.READS_VISITS in CHOICES[choice].traits:
        return _after_visits(choice, candidates, visits())
    known = of_rates(rates) if lengths is None else replace(of_rates(rates), length=lengths)
    value = np.maximum(CHOICES[choice].function(known), LEAST_VALUE)
    return candidates * chances(value, len(value) / candidates)


def _after_visits(choice: str, candidates: int, visits: Visits) -> Floats:
    """A prompt waits 1 / chance passes after a visit, and the chance depends on what that visit and those before it
    showed: so it is chosen in 1 / E[1 / chance] of the passes, E over visits. min(1, c value) is the chance."""
    states = [_visit_states(outcomes) for outcomes in visits]
    values = [_values(choice, [state for state, _ in of_rate]) for of_rate in states]
    weights = [np.array([chance for _, chance in of_rate]) for of_rate in states]

    def chosen(c: float) -> Floats:
        return np.array([1.0 / (w / np.minimum(1.0, c * v)).sum() for v, w in zip(values, weights, strict=True)])

    low, high = 0.0, 1.0 / LEAST_VALUE
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if chosen(middle).mean() < 1.0 / candidates else (low, middle)
    return candidates * chosen(high)


def _visit_states(outcomes: Mapping[tuple[int, int], float]) -> list[tuple[tuple[float, int], float]]:
    """((share of positives at the last visit, run), chance) over a prompt's visits.

    With chance a that a visit is all right, k such visits in a row end at a visit with chance a^k (1 - a).
    """
    mixed = {k / n: 0.0 for n, k in outcomes if 0 < k < n}
    alike = {0.0: 0.0, 1.0: 0.0}
    for (n, k), chance in outcomes.items():
        (mixed if 0 < k < n else alike)[k / n] += chance
    found: list[tuple[tuple[float, int], float]] = [((share, 0), chance) for share, chance in mixed.items()]
    for share, a in alike.items():
        found += [((share, run), a**run * (1.0 - a)) for run in range(1, LONGEST_RUN)]
        found.append(((share, LONGEST_RUN), a**LONGEST_RUN))
    return found


def _values(choice: str, states: Sequence[tuple[float, int]]) -> Floats:
    last, run = (np.array(column, dtype=np.float64) for column in zip(*states, strict=True))
    ones = np.ones(len(states))
    return np.maximum(CHOICES[choice].function(Candidates(ones, ones, last, run)), LEAST_VALUE)
