"""Do several methods differ from one reference? Sign-flip tests over the same seeds, corrected for their number."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXACT_UP_TO = 12
"""Seeds whose signs are flipped in all ways; of more, FLIPS ways are drawn."""

FLIPS = 20_000

SEEDS_FOR_TEST = 6
"""With fewer, no p is below 0.05: the least is 2 of all the ways to flip."""


def corrected_p(differences: Floats) -> list[float]:
    """p of each method's mean difference being 0, two-sided; `differences`: shape (methods, seeds).

    If a method equals the reference, every difference might as well have the other sign. All methods' signs are
    flipped together, since they share the reference's run of a seed. p is the chance that any method not yet told
    apart has so large a mean, each beside its own root mean square (Westfall and Young, 1993, step-down max-T). So it
    does not grow with the number of methods that move together.
    """
    count = differences.shape[1]
    # Tiny, so that a method without any difference has size 0.
    scale = np.sqrt((differences**2).mean(axis=1)) + 1e-300
    sizes = np.abs(_signs(count) @ (differences / scale[:, None]).T) / count
    order = np.argsort(-sizes[0], kind="stable")
    # Of each method and all that come after it.
    largest = np.maximum.accumulate(sizes[:, order[::-1]], axis=1)[:, ::-1]
    # The differences as they are count as one of the ways, up to rounding.
    by_place = (largest >= sizes[0, order] * (1 - 1e-12)).mean(axis=0)
    found = np.empty(len(order))
    found[order] = np.maximum.accumulate(by_place)
    return found.tolist()


def _signs(count: int) -> Floats:
    """Ways to flip, one a row; the first flips nothing."""
    if count <= EXACT_UP_TO:
        return np.array(list(product((1.0, -1.0), repeat=count)))
    signs = np.random.default_rng(0).choice((1.0, -1.0), size=(FLIPS, count))
    signs[0] = 1.0
    return signs
