"""A plan's table and picture: what a step of each method takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ada.reporting.plots import BLUE, FAINT, GREEN, ORANGE, PINK

RATES = (0.1, 0.9)
"""Pass rates that the table shows the weight of."""

WIDTH = 110
"""Columns of the table, in a narrower terminal too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of one method, as means. `weights`: of prompts of RATES; None where they are not enumerated.

    `to_target`: seconds to the arena's target over those of uniform sampling with 8; None for a method that the arena
    has not tried.
    """

    method: str
    prompts: int
    rollouts: float
    tokens: float
    trained: float
    signal: float
    weights: tuple[float, ...] | None
    sampling_s: float
    training_s: float
    fixed_s: float
    to_target: float | None

    @property
    def seconds(self) -> float:
        return self.sampling_s + self.training_s + self.fixed_s


def show(plans: Sequence[Plan]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("--ada_method", no_wrap=True)
    names = (
        "prompts",
        "drawn",
        "trained",
        "tokens",
        "signal",
        "weight",
        "sampling",
        "training",
        "step s",
        "to target",
    )
    for column in names:
        table.add_column(column, justify="right", no_wrap=True)
    for plan in plans:
        weights = "" if plan.weights is None else " ".join(f"{weight:.2g}" for weight in plan.weights)
        table.add_row(
            *(plan.method, f"{plan.prompts:,}", f"{plan.rollouts:,.0f}", f"{plan.trained:,.0f}"),
            *(f"{plan.tokens / 1e6:.2f}M", f"{plan.signal:.0%}", weights),
            *(f"{seconds:.0f}" for seconds in (plan.sampling_s, plan.training_s, plan.seconds)),
            "" if plan.to_target is None else f"{plan.to_target:.2f}",
        )
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)
    low, high = RATES
    console.print(
        "\nOf one step. drawn, trained: rollouts. signal: share of prompts with both outcomes. weight: how much "
        f"prompts of pass rate {low} and {high} count beside one of 0.5. step s: with the fixed part. to target: not "
        "simulated but measured in the arena, in this machine's seconds: how long until its model had learned, over "
        "uniform sampling with 8 (docs/arena.md). Compare methods by this; more signal does not always pay."
    )


def draw(plans: Sequence[Plan], file: Path) -> None:
    """Seconds of a step by part, the share of prompts with a signal, and what the arena measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.5 + 0.45 * len(plans)), dpi=120, layout="constrained")
    seconds, signal, target = figure.subplots(1, 3, sharey=True, width_ratios=(2, 1, 1))
    names, left = [plan.method for plan in plans], [0.0] * len(plans)
    for field, label, colour in (
        ("sampling_s", "sampling", BLUE),
        ("training_s", "training", ORANGE),
        ("fixed_s", "fixed", FAINT),
    ):
        parts = [getattr(plan, field) for plan in plans]
        seconds.barh(names, parts, left=left, color=colour, label=label)
        left = [at + part for at, part in zip(left, parts, strict=True)]
    signal.barh(names, [plan.signal for plan in plans], color=GREEN)
    target.barh(names, [plan.to_target or 0.0 for plan in plans], color=PINK)
    seconds.invert_yaxis()
    seconds.set_title("seconds of a step", loc="left", fontsize=11)
    signal.set_title("prompts with a signal", loc="left", fontsize=11)
    target.set_title("arena: seconds to target", loc="left", fontsize=11)
    target.set_xlabel("of those of uniform sampling with 8")
    signal.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside lower left")
    for axes in (seconds, signal, target):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
