"""A plan's table: what a step of each method takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ada.reporting.other_logs import CHARS_PER_TOKEN, Log, equal_rollouts, shares

RATES = (0.1, 0.9)
"""Pass rates that the table shows the weight of."""

WIDTH = 110
"""Columns of the table, in a narrower terminal too."""


DEFAULT, CONTROL = "reinforce-ada-balance", "uniform-8"

EXPERIMENTS = ("lambda-n1-e2", "spo-n2", "first-success-8", "raft-n1-e2")

_EVIDENCE = {
    f"{DEFAULT} is recommended: its authors published it on four models (Qwen2.5-Math-1.5B and 7B, Llama-3.2-3B, "
    "Qwen3-4B; arXiv 2510.04996).": (DEFAULT,),
    f"{CONTROL} is the control that a run has to beat: uniform sampling that computes no rollout of advantage 0.": (
        CONTROL,
    ),
    f"{', '.join(EXPERIMENTS)} are experiments: shown on small models only (docs/arena.md). Published runs of larger "
    "models with long reasoning have not tried the first, and show no lead of right answers alone.": EXPERIMENTS,
}
"""Of which methods each line is said."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of one method, as means. `weights`: of prompts of RATES; None where they are not enumerated."""

    method: str
    prompts: int
    rollouts: float
    tokens: float
    wasted: float
    trained: float
    signal: float
    weights: tuple[float, ...] | None
    sampling_s: float
    training_s: float
    fixed_s: float

    @property
    def seconds(self) -> float:
        return self.sampling_s + self.training_s + self.fixed_s

    @property
    def groups_a_minute(self) -> float:
        """Groups with signal in a minute of steps: what compares steps of different lengths."""
        return 60.0 * self.prompts * self.signal / self.seconds


def show_log(path: Path, log: Log) -> None:
    """What was logged, and what of it taught nothing."""
    wrong, right, mixed = shares(log)
    rollouts = len(log.rollouts)
    print(
        f"{path} ({log.trainer}): {rollouts:,} rollouts of {len(log.groups):,} prompts in {log.steps:,} steps, most "
        f"with {log.usual_size}. Right: a score above {log.positive_above:g}.\n"
        f"with signal {mixed:.0%} of the prompts; all wrong {wrong:.0%}, all right {right:.0%}: "
        f"{equal_rollouts(log) / rollouts:.0%} of the rollouts compare with nothing."
    )
    print(
        f"With more than {log.usual_size} rollouts for a prompt, what is said below is a fit: nothing has seen them."
    )
    if log.unscored:
        print(f"{log.unscored:,} rollouts have no score; they are left out.")
    if not log.counts_tokens:
        print(f"Tokens are not logged; an answer has one for {CHARS_PER_TOKEN:g} characters here.")
    print()


def show(plans: Sequence[Plan]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("--ada_method", no_wrap=True)
    figures = ("prompts", "drawn", "trained", "tokens", "wasted", "signal", "weight", "sampling", "training", "step s")
    for column in (*figures, "groups/min"):
        table.add_column(column, justify="right", no_wrap=True)
    for plan in plans:
        weights = "" if plan.weights is None else " ".join(f"{weight:.2g}" for weight in plan.weights)
        table.add_row(
            *(plan.method, f"{plan.prompts:,}", f"{plan.rollouts:,.0f}", f"{plan.trained:,.0f}"),
            f"{plan.tokens / 1e6:.3g}M" if plan.tokens >= 1e5 else f"{plan.tokens:,.0f}",
            *(f"{plan.wasted:.0%}", f"{plan.signal:.0%}", weights),
            *(f"{seconds:.3g}" for seconds in (plan.sampling_s, plan.training_s, plan.seconds)),
            f"{plan.groups_a_minute:,.0f}",
        )
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)
    console.print(
        "\nOf one step. drawn, trained: rollouts. wasted: share of the tokens that were not needed. signal: share of "
        f"prompts with both outcomes. weight: how much prompts of pass rate {RATES[0]} and {RATES[1]} count beside "
        "one of 0.5. step s: with the fixed part. groups/min: groups with signal in a minute. How well a policy "
        "learns from a step is not simulated, and more signal does not always pay. What is known of that:"
    )
    names = {plan.method for plan in plans}
    for line, of in _EVIDENCE.items():
        if names & set(of):
            console.print(f"- {line}", highlight=False)
