"""Which weight a method really gives a prompt of pass rate p: enumerated, or from a table of measured ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from benchmarks.arena.methods import METHODS
from openrlhf_ada.config.schema import MATCHED
from openrlhf_ada.config.settings import matched, tabulated
from openrlhf_ada.core.objectives import TabulatedObjective

ENUMERATED = {"pos": "reinforce-ada-pos", "balance": "reinforce-ada-balance"} | {
    name: name for name in ("dapo", "pods", "d3s", "maxrl", "aero", "pilot-commit", "speed", "pf-ppo")
}
"""Methods whose weight is a function of p, by the presets that they stand for."""

AS_IT_RAN = ("maxrl", "speed", "pilot-commit")
"""Methods whose presets have another weight by now."""

TABLES = Path(__file__).parent / "results" / "weights.json"
"""The others', by task and method: [rates, weights]. `python -m benchmarks.arena weights` writes it."""


@cache
def tables() -> dict[str, dict[str, list[list[float]]]]:
    """Measured weights: [rates, weights] by task and method."""
    return json.loads(TABLES.read_text(encoding="utf-8"))


def effective_weight_of(method: str, task: str) -> TabulatedObjective:
    """Raises KeyError where it is not enumerated, and not measured on this task."""
    if method in AS_IT_RAN:
        return tabulated(f"arena:{method}", METHODS[method].settings(512))
    if method in ENUMERATED:
        return matched(MATCHED + ENUMERATED[method])
    rates, weights = tables()[task][method]
    return TabulatedObjective(f"measured:{method}", tuple(rates), tuple(weights))


def fingerprint(method: str, task: str) -> str:
    """Another one if this weight changes. Raises KeyError as `effective_weight_of`."""
    table = effective_weight_of(method, task)
    rows = [[f"{value:.4g}" for value in row] for row in (table.rates, table.weights)]
    return sha256(json.dumps(rows).encode()).hexdigest()[:12]


def check_weights(methods: Sequence[str], tasks: Sequence[str]) -> None:
    """Raises ValueError for tasks on which the weight that one of the methods takes was not measured."""
    for name in methods:
        matching = METHODS[name].weight_of
        if matching is None or matching in ENUMERATED:
            continue
        known = [task for task in tables() if matching in tables()[task]]
        missing = [task for task in tasks if task not in known]
        if missing:
            raise ValueError(
                f"--methods {name} --tasks {','.join(missing)}: the weight of {matching} was measured on "
                f"{', '.join(known)} only. Take these tasks, or leave {name} out"
            )
