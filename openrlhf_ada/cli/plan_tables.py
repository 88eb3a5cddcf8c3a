"""A plan's table and picture: what a step of each method takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RATES = (0.1, 0.9)
"""Pass rates that the table shows the weight of."""

WIDTH = 110
"""Columns of the table, in a narrower terminal too."""


DEFAULT, CONTROL, EXPERIMENTS = "reinforce-ada-balance", "uniform-8", ("spo-n2", "first-success-8", "raft-n1-e2")

_EVIDENCE = {
    f"{DEFAULT} is recommended: its authors published it on four models (Qwen2.5-Math-1.5B and 7B, Llama-3.2-3B, "
    "Qwen3-4B; arXiv 2510.04996).": (DEFAULT,),
    f"{CONTROL} is the control that a run has to beat: uniform sampling that computes no rollout of advantage 0.": (
        CONTROL,
    ),
    f"{', '.join(EXPERIMENTS)} are experiments: shown on small models whose prompts have one right answer "
    "(docs/arena.md). Published results of larger models with long reasoning do not show this.": EXPERIMENTS,
}
"""Of which methods each line is said."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of one method, as means. `weights`: of prompts of RATES; None where they are not enumerated."""

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
    )
    for column in names:
        table.add_column(column, justify="right", no_wrap=True)
    for plan in plans:
        weights = "" if plan.weights is None else " ".join(f"{weight:.2g}" for weight in plan.weights)
        table.add_row(
            *(plan.method, f"{plan.prompts:,}", f"{plan.rollouts:,.0f}", f"{plan.trained:,.0f}"),
            *(f"{plan.tokens / 1e6:.2f}M", f"{plan.signal:.0%}", weights),
            *(f"{seconds:.0f}" for seconds in (plan.sampling_s, plan.training_s, plan.seconds)),
        )
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)
    low, high = RATES
    console.print(
        "\nOf one step. drawn, trained: rollouts. signal: share of prompts with both outcomes. weight: how much "
        f"prompts of pass rate {low} and {high} count beside one of 0.5. step s: with the fixed part. How well a "
        "policy learns from a step is not simulated, and more signal does not always pay. What is known of that:"
    )
    names = {plan.method for plan in plans}
    for line, of in _EVIDENCE.items():
        if names & set(of):
            console.print(f"- {line}", highlight=False)


BLUE, ORANGE, GREEN, FAINT = "#0072B2", "#E69F00", "#009E73", "#dddddd"


def draw(plans: Sequence[Plan], file: Path) -> None:
    """Seconds of a step by part, and the share of prompts with a signal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.5 + 0.45 * len(plans)), dpi=120, layout="constrained")
    seconds, signal = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
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
    seconds.invert_yaxis()
    seconds.set_title("seconds of a step", loc="left", fontsize=11)
    signal.set_title("prompts with a signal", loc="left", fontsize=11)
    signal.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside lower left")
    for axes in (seconds, signal):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
