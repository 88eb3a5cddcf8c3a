"""The table of docs/choosing.md, from exact enumeration with the policies that flags come to.

Means over a data set are exact for Ada-Seq and uniform sampling too. For Ada-Est, whose split is of whole rollouts,
they are those of PARTS prompts; twice as many change no printed digit (tests/unit/test_docs_choosing.py).

python benchmarks/choosing.py      writes the table into the page
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.policies import Estimated, Policy, Sequential
from openrlhf_ada.core.stopping import State, StoppingPlan

PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
GROUP = 4

Floats = NDArray[np.float64]

SEQUENTIAL: dict[str, dict[str, Any]] = {
    "uniform, 4": {"exit": "fixed", "max_samples": 4},
    "uniform, 8": {"exit": "fixed", "max_samples": 8},
    "uniform, 16": {"exit": "fixed", "max_samples": 16},
    "`pos`": {"exit": "pos"},
    "`balance`": {"exit": "balance"},
    "`balance`, 1 and 1, M = 4": {"exit": "balance", "k_pos": 1, "k_neg": 1, "wave": 4},
}
"""What is compared, by our flags; all others have their defaults, and groups of 4 are trained."""

DATA_SETS = {
    "most wrong": (0.5, 3.5),
    "mixed": (1.5, 1.5),
    "all or nothing": (0.5, 0.5),
    "most right": (3.5, 0.5),
}
"""Pass rates are Beta(a, b)."""

BUDGET = 8
PARTS = 20_000
ALLOCATIONS = ("inverse_sqrt", "std")


def policy_from(config: AdaConfig) -> Policy:
    """What these flags come to where groups of GROUP are trained."""
    return make_policy(resolve(config, n=GROUP, advantage="dr_grpo", batch=1))


def policy_of(flags: dict[str, Any]) -> Sequential:
    """The Ada-Seq of these flags."""
    policy = policy_from(AdaConfig(mode="seq", **flags))
    assert isinstance(policy, Sequential)
    return policy


def estimated_by(allocation: str) -> Estimated:
    """The Ada-Est of BUDGET rollouts on average."""
    policy = policy_from(AdaConfig(mode="est", budget=BUDGET, allocation=allocation))
    assert isinstance(policy, Estimated)
    return policy


def plan(flags: dict[str, Any]) -> StoppingPlan:
    return policy_of(flags).plan


def signal(of: StoppingPlan, p: float) -> float:
    """Probability that a prompt's rollouts have both outcomes."""
    return sum(chance for (drawn, positives), chance in of.outcomes(p).items() if 0 < positives < drawn)


def outcomes(of: StoppingPlan, a: float, b: float) -> dict[State, float]:
    """Probability of every final state over prompts whose pass rates are Beta(a, b).

    The number of orders that lead to (N, K) does not depend on p: it is their probability at 1/2 times 2^N. Each order
    has the probability p^K (1 - p)^(N - K), whose mean is B(a + K, b + N - K) / B(a, b).
    """
    return {
        (drawn, positives): chance * math.exp(drawn * math.log(2) + _log_beta(a + positives, b + drawn - positives))
        / math.exp(_log_beta(a, b))
        for (drawn, positives), chance in of.outcomes(0.5).items()
    }  # fmt: skip


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def sequential(of: StoppingPlan, a: float, b: float) -> tuple[float, float]:
    """(rollouts a prompt, share with both outcomes) over Beta(a, b)."""
    chances = outcomes(of, a, b)
    draws = sum(drawn * chance for (drawn, _), chance in chances.items())
    return draws, sum(chance for (drawn, positives), chance in chances.items() if 0 < positives < drawn)


def pass_rates(a: float, b: float, parts: int = PARTS) -> Floats:
    """The middles of so many equally likely parts of Beta(a, b), a and b at least 1/2.

    As the square of a sine, p has a density without poles: sin^(2a - 1) cos^(2b - 1).
    """
    cells = 10 * parts
    edges = np.linspace(0.0, math.pi / 2, cells + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    mass = np.concatenate([[0.0], np.cumsum(np.sin(middles) ** (2 * a - 1) * np.cos(middles) ** (2 * b - 1))])
    return np.sin(np.interp((np.arange(parts) + 0.5) / parts, mass / mass[-1], edges)) ** 2


def estimated(rates: Floats, allocation: str) -> tuple[float, float]:
    """(rollouts a prompt, share with both outcomes) of Ada-Est that knows the pass rates."""
    policy = estimated_by(allocation)
    u = priority(policy.allocation, rates, policy.floor)
    budget = round(policy.budget * len(rates))
    drawn = allocate(u, budget, policy.min_samples, policy.max_samples, np.arange(len(rates)))
    return float(drawn.mean()), float((1 - rates**drawn - (1 - rates) ** drawn).mean())


def by_data_set() -> str:
    """Markdown: rollouts a prompt, share with a signal, and rollouts for each group with a signal."""
    lines = [["", *(f"{name}, Beta({a:g}, {b:g})" for name, (a, b) in DATA_SETS.items())]]
    for name, flags in SEQUENTIAL.items():
        rule = plan(flags)
        lines.append([name, *(cell(*sequential(rule, *shape)) for shape in DATA_SETS.values())])
    drawn_from = [pass_rates(*shape) for shape in DATA_SETS.values()]
    for allocation in ALLOCATIONS:
        name = f"Ada-Est, {BUDGET} on average, `{allocation}`"
        lines.append([name, *(cell(*estimated(rates, allocation)) for rates in drawn_from)])
    return _table(lines)


def cell(draws: float, share: float) -> str:
    return f"{draws:.1f}, {share:.0%}, {draws / share:.1f}"


def _table(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


BEGIN, END = "<!-- begin generated: python benchmarks/choosing.py -->", "<!-- end generated -->"


def written(page: str) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{by_data_set()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
