"""The figure and the tables of docs/choosing.md, from exact enumeration with the policies that flags come to.

python benchmarks/choosing.py      writes docs/images/choosing.png and prints the tables
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from algorithm_figures import noise_at
from numpy.typing import NDArray

from openrlhf_ada.config import AdaConfig
from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.stopping_paths import StoppingPlan
from openrlhf_ada.settings import make_policy, resolve

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "choosing.png"
GROUP = 4
RATES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)

FEW_RATES = (0.02, 0.1, 0.3, 0.5, 0.9)

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
MANY = 400


def policy_of(flags: dict[str, Any]) -> Sequential:
    """What these flags come to."""
    host: Any = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=GROUP, batch_size=1),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="dr_grpo")),
    )
    policy = make_policy(resolve(AdaConfig(mode="seq", **flags), host))
    assert isinstance(policy, Sequential)
    return policy


def plan(flags: dict[str, Any]) -> StoppingPlan:
    return policy_of(flags).plan


def signal(of: StoppingPlan, p: float) -> float:
    """Probability that a prompt's rollouts have both outcomes."""
    return sum(chance for (drawn, positives), chance in of.outcomes(p).items() if 0 < positives < drawn)


def pass_rates(a: float, b: float) -> Floats:
    """The middles of MANY equally likely parts of Beta(a, b)."""
    grid = (np.arange(200_000) + 0.5) / 200_000
    mass = np.cumsum(grid ** (a - 1) * (1 - grid) ** (b - 1))
    return np.interp((np.arange(MANY) + 0.5) / MANY, mass / mass[-1], grid)


def estimated(rates: Floats, allocation: str) -> tuple[float, float]:
    """(rollouts a prompt, share with both outcomes) of Ada-Est that knows the pass rates."""
    drawn = allocate(priority(allocation, rates, 0.02), BUDGET * len(rates), 2, 4 * BUDGET, np.arange(len(rates)))
    return float(drawn.mean()), float((1 - rates**drawn - (1 - rates) ** drawn).mean())


def rollouts_by_pass_rate() -> str:
    """Markdown: expected rollouts of a prompt."""
    adaptive = {name: plan(flags) for name, flags in SEQUENTIAL.items() if flags["exit"] != "fixed"}
    lines = [[name, *(f"{rule.expected_draws(p):.1f}" for p in RATES)] for name, rule in adaptive.items()]
    return _table([_HEADER, *lines])


def signal_by_pass_rate() -> str:
    """Markdown: chance that a prompt's rollouts have both outcomes."""
    lines = [[name, *(f"{signal(plan(flags), p):.0%}" for p in RATES)] for name, flags in SEQUENTIAL.items()]
    return _table([_HEADER, *lines])


_HEADER = ["p", *(f"{p:.2f}".lstrip("0") for p in RATES)]


def by_data_set() -> str:
    """Markdown: rollouts a prompt, share with a signal, and rollouts for each group with a signal."""
    lines = [["", *(f"{name}, Beta({a:g}, {b:g})" for name, (a, b) in DATA_SETS.items())]]
    drawn_from = {name: pass_rates(*shape) for name, shape in DATA_SETS.items()}
    for name, flags in SEQUENTIAL.items():
        rule = plan(flags)
        lines.append([name, *(_cell(*_means(rule, rates)) for rates in drawn_from.values())])
    for allocation in ("inverse_sqrt", "std"):
        name = f"Ada-Est, {BUDGET} on average, `{allocation}`"
        lines.append([name, *(_cell(*estimated(rates, allocation)) for rates in drawn_from.values())])
    return _table(lines)


def noise_by_pass_rate() -> str:
    """Markdown: noise of the update per unit of signal, for as many prompts as one rollout pays for."""
    lines = [["p", *(f"{p:.2f}".lstrip("0") for p in FEW_RATES)]]
    for name, flags in SEQUENTIAL.items():
        policy = policy_of(flags)
        noise = [noise_at(policy, p) * math.sqrt(policy.plan.expected_draws(p)) for p in FEW_RATES]
        lines.append([name, *(f"{value:.2f}" for value in noise)])
    return _table(lines)


def _means(rule: StoppingPlan, rates: Floats) -> tuple[float, float]:
    draws = np.mean([rule.expected_draws(p) for p in rates])
    return float(draws), float(np.mean([signal(rule, p) for p in rates]))


def _cell(draws: float, share: float) -> str:
    return f"{draws:.1f}, {share:.0%}, {draws / share:.1f}"


def _table(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure() -> None:
    import matplotlib.pyplot as plt

    grid = np.concatenate([np.geomspace(0.01, 0.5, 40), 1 - np.geomspace(0.5, 0.01, 40)[1:]])
    image, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, flags in SEQUENTIAL.items():
        rule, style = plan(flags), "--" if flags["exit"] == "fixed" else "-"
        # `balance` lies below the last line, which has the same signal.
        look: dict[str, Any] = {"linewidth": 5, "alpha": 0.4} if name == "`balance`" else {}
        look["label"] = name.replace("`", "")
        left.plot(grid, [rule.expected_draws(p) for p in grid], style, **look)
        right.plot(grid, [signal(rule, p) for p in grid], style, **look)
    for axes, title in ((left, "Expected rollouts of a prompt"), (right, "Chance of both outcomes")):
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("pass rate p")
        axes.set_xscale("logit")
        axes.set_xticks([0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    right.legend(fontsize=8, frameon=False, loc="lower center")
    image.savefig(IMAGE, dpi=100)


if __name__ == "__main__":
    figure()
    print(f"{rollouts_by_pass_rate()}\n\n{signal_by_pass_rate()}\n\n{by_data_set()}\n\n{noise_by_pass_rate()}")
