"""By what prompts are chosen (`--ada_choice`): functions of what is known of the candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.pieces import Table, Trait
from openrlhf_ada.core.types import Floats

LEAST_VALUE = 0.1
"""Of the largest possible value, 1: what seems worthless is sampled now and then."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is known of prompts that may be sampled, before they are. Arrays: float64, shape (N,).

    rate: a draw of each pass rate. last: share of positives at the last visit, NaN where there was none. run: visits
    in a row, up to the last one, that showed nothing but positives, or nothing but negatives. easy, hard: GRESO's
    chances to look again at a prompt that was all right, or all wrong, at one visit.
    """

    rate: Floats
    last: Floats
    run: Floats
    easy: float = 0.5
    hard: float = 0.5


def of_rates(rate: Floats) -> Candidates:
    """Prompts of these pass rates that were never visited."""
    return Candidates(rate, np.full(len(rate), np.nan), np.zeros(len(rate)))


CHOICES: Table[Callable[[Candidates], Floats]] = Table()
"""The value of each prompt, shape (N,), at most 1. Prompts are chosen in proportion to it."""


@CHOICES.add("std")
def std(known: Candidates) -> Floats:
    """Twice the standard deviation of one outcome: how much a rollout is expected to move its pass rate."""
    return 2.0 * np.sqrt(known.rate * (1.0 - known.rate))


@CHOICES.add("vade")
def vade(known: Candidates) -> Floats:
    """p (1-p)^2, largest at 1/3 (VADE, arXiv 2511.18902, which takes the best instead of drawing).

    Its constants could not be verified.
    """
    return 6.75 * known.rate * (1.0 - known.rate) ** 2


@CHOICES.add("mopps")
def mopps(known: Candidates) -> Floats:
    """Nearness to 1/2 (MoPPS, arXiv 2507.04632, which takes the nearest, by squared distance, instead of drawing)."""
    return 1.0 - np.abs(2.0 * known.rate - 1.0)


@CHOICES.add("mmr1")
def mmr1(known: Candidates) -> Floats:
    """Half of a batch in proportion to p (1-p), half at random (MMR1, arXiv 2509.21268).

    As its released configuration has it, without the diversity of texts that the paper adds. MMR1 measures p anew
    with 8 rollouts of every prompt of the data every 4 steps; here training's own rollouts say it.
    """
    value = 4.0 * known.rate * (1.0 - known.rate)
    return 0.5 * value + 0.5 * value.mean()


@CHOICES.add("greso", traits={Trait.READS_VISITS})
def greso(known: Candidates) -> Floats:
    """easy^run after visits that were all right, hard^run after visits that were all wrong, else 1 (GRESO, arXiv
    2506.02177 and its code).

    GRESO keeps each prompt by itself with this chance, at least .01, and considers as many as it needs; here as many
    are taken as a step has places, and LEAST_VALUE is the least.
    """
    right, wrong = known.last == 1.0, known.last == 0.0
    return np.where(right, known.easy**known.run, np.where(wrong, known.hard**known.run, 1.0))


POOLS = ((0.25, 0.2), (0.75, 1.0), (1.0, 0.2))
"""prime-rl's default pools: largest share of positives at the last visit (inclusive), and weight."""


@CHOICES.add("pools", traits={Trait.READS_VISITS})
def pools(known: Candidates) -> Floats:
    """The weight of the pool that a prompt's last visit puts it in, 1 before any (prime-rl's difficulty pools).

    prime-rl draws with replacement; here no step has a prompt twice.
    """
    value = np.ones(len(known.last))
    for most, weight in reversed(POOLS):
        value[known.last <= most] = weight
    return value
