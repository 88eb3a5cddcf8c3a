"""The figures of docs/algorithms.md, from exact enumeration with the package's own policies; and its tables.

python benchmarks/algorithm_figures.py      writes docs/images/*.png, prints the tables; last line: one JSON object
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective, effective_weight, expected_weight
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import PromptPool, Sample

IMAGES = Path(__file__).parents[1] / "docs" / "images"
GROUP, WAVE, CAP = 4, 8, 32
GRID = np.concatenate([np.geomspace(0.01, 0.5, 25), 1 - np.geomspace(0.5, 0.01, 25)[1:]])
EXITS = {"pos": (1, 0), "balance": (2, 2)}

Curve = NDArray[np.float64]


def sequential(exit_name: str, **options: Any) -> Sequential:
    estimator = options.pop("estimator", "dr_grpo")
    builder = GroupBuilder(Selection("balanced", GROUP, 0.5), estimator, **options)
    return Sequential(ExitRule(*EXITS[exit_name], 0.5), WAVE, CAP, builder)


def uniform(estimator: str) -> Sequential:
    builder = GroupBuilder(Selection("balanced", GROUP, 0.5), estimator)
    return Sequential(ExitRule(0, 0, 0.5), GROUP, GROUP, builder)


def ended_with(drawn: int, positives: int, predicted: float) -> PromptPool:
    pool = PromptPool(0, [Sample(0, i, float(i < positives), float(i < positives), 1) for i in range(drawn)])
    pool.predicted = predicted
    return pool


def weight_at(policy: Sequential, p: float, predicted: float | None = None) -> float:
    """f'_eff(p), exactly."""

    def weight(drawn: int, positives: int) -> float:
        pool = ended_with(drawn, positives, p if predicted is None else predicted)
        group = policy.build(pool, np.random.default_rng(0))
        return effective_weight(group.coefficients, [i < positives for i in group.indices], p, policy.group_size)

    return expected_weight(policy.plan, p, weight)


def noise_at(policy: Sequential, p: float) -> float:
    """Standard deviation of a group's update per unit of its expectation, for score vectors of unit length."""

    def squares(drawn: int, positives: int) -> float:
        group = policy.build(ended_with(drawn, positives, p), np.random.default_rng(0))
        return sum(c * c for c in group.coefficients) / policy.group_size

    return math.sqrt(expected_weight(policy.plan, p, squares)) / weight_at(policy, p)


def curve(policy: Sequential) -> Curve:
    return np.array([weight_at(policy, p) for p in GRID])


def over_pass_rate(axes: Axes, title: str, y_label: str, *, log: bool) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("pass rate p")
    axes.set_ylabel(y_label)
    axes.set_xscale("logit")
    axes.set_xticks([0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def figure_weights() -> None:
    log = Objective("log")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    middle.sharey(left)
    left.plot(GRID, curve(uniform("group_norm")), label="GRPO, n = 4")
    left.plot(GRID, curve(uniform("dr_grpo")), label="Dr. GRPO, n = 4")
    for exit_name in EXITS:
        left.plot(GRID, curve(sequential(exit_name)), label=f"Ada-Seq {exit_name}, as published")
    over_pass_rate(left, "Without correction", "effective weight f'(p)", log=True)
    middle.plot(GRID, 1 / GRID, "k--", linewidth=1, label="1/p, what log p asks for")
    for exit_name in EXITS:
        middle.plot(
            GRID, curve(sequential(exit_name, correction="paper", objective=log, floor=0.001)),
            label=f"{exit_name}, correction paper",
        )  # fmt: skip
    middle.plot(
        GRID, curve(sequential("balance", correction="positives", objective=log)), label="correction positives"
    )
    over_pass_rate(middle, "Aiming at log p", "", log=True)
    right.plot(GRID, np.ones_like(GRID), "k--", linewidth=1, label="1, what p asks for")
    for exit_name in EXITS:
        for baseline in ("pool", "first_wave"):
            right.plot(
                GRID, curve(sequential(exit_name, correction="stratum", baseline=baseline)),
                label=f"{exit_name}, stratum, baseline {baseline}",
            )  # fmt: skip
    right.plot(
        GRID, curve(sequential("balance", correction="stratum", baseline="estimator")),
        label="either, stratum, baseline estimator",
    )  # fmt: skip
    over_pass_rate(right, "Aiming at p", "", log=False)
    right.set_ylim(0, 2.6)
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(IMAGES / "effective_weight.png", dpi=110)


def figure_costs() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for exit_name in EXITS:
        plan = sequential(exit_name).plan
        left.plot(GRID, [plan.expected_draws(p) for p in GRID], label=f"Ada-Seq {exit_name}")
    for name, label in (("inverse_sqrt", "Ada-Est 1/√p"), ("inverse", "Ada-Est 1/p"), ("odds", "Ada-Est √((1-p)/p)")):
        left.plot(GRID, shares(name), "--", label=f"{label}, mean 8")
    over_pass_rate(left, "Rollouts of a prompt (cap 32)", "expected rollouts", log=False)
    for exit_name in EXITS:
        right.plot(GRID, [pool_mean(exit_name, p) - p for p in GRID], label=f"pool mean, {exit_name}")
    right.axhline(0, color="black", linewidth=1, linestyle="--", label="first_wave (exact)")
    over_pass_rate(right, "Bias of the pass rate at the stop", "expected estimate - p", log=False)
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(IMAGES / "allocation.png", dpi=110)


def shares(name: str) -> Curve:
    """Rollouts at mean 8, between 2 and 32, if prompts of all the grid's pass rates are equally many."""
    copies = 200
    u = np.repeat(priority(name, GRID, 0.02), copies)
    split = allocate(u, 8 * len(u), 2, CAP, np.arange(len(u)))
    return split.reshape(len(GRID), copies).mean(axis=1)


def pool_mean(exit_name: str, p: float) -> float:
    outcomes = sequential(exit_name).plan.outcomes(p)
    return sum(chance * k / n for (n, k), chance in outcomes.items())


RATES = (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)


def tables() -> dict[str, dict[str, list[float]]]:
    """Effective weights and noise at RATES by builder; biases of pass rates; costs."""
    log = Objective("log")
    builders: dict[str, Callable[[str], Sequential]] = {
        "none": sequential,
        "paper, log": lambda e: sequential(e, correction="paper", objective=log, floor=0.001),
        "stratum, linear, pool": lambda e: sequential(e, correction="stratum"),
        "stratum, linear, first_wave": lambda e: sequential(e, correction="stratum", baseline="first_wave"),
        "stratum, linear, estimator": lambda e: sequential(e, correction="stratum", baseline="estimator"),
        "stratum, log, pool": lambda e: sequential(e, correction="stratum", objective=log, floor=0.001),
        "positives, log": lambda e: sequential(e, correction="positives", objective=log),
    }
    weights = {
        f"{exit_name}: {name}": [round(weight_at(make(exit_name), p), 3) for p in RATES]
        for exit_name in EXITS
        for name, make in builders.items()
    }
    noise = {
        f"{exit_name}: {name}": [round(noise_at(make(exit_name), p), 2) for p in RATES]
        for exit_name in EXITS
        for name, make in builders.items()
    } | {"uniform: Dr. GRPO": [round(noise_at(uniform("dr_grpo"), p), 2) for p in RATES]}
    biases = {f"{e}: E[pool mean]": [round(pool_mean(e, p), 4) for p in RATES] for e in EXITS}
    costs = {f"{e}: E[N]": [round(sequential(e).plan.expected_draws(p), 1) for p in RATES] for e in EXITS}
    return {"effective weight": weights, "noise": noise, "pool mean": biases, "cost": costs}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    figure_weights()
    figure_costs()
    result = tables()
    for title, rows in result.items():
        print(f"\n{title}, p = {RATES}")
        for name, values in rows.items():
            print(f"  {name:34} {values}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
