"""Is the aim reached? Ours beside GRPO with n = 4, and beside the cheapest uniform sampling of each task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_ada.arena.campaign import PROMPTS, RATES
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.tables import REFERENCE, TARGET_SHARE, Finals, ratio

OURS = ("first-right", "raft-1-twice", "counted", "rated-pos")

GRPO = "grpo-4"

UNIFORM = tuple(name for name in METHODS if name.startswith(("uniform-", "grpo-")) and "-as-" not in name)
"""As many rollouts of every prompt, without the weight of another method: in one update of a step, in four or in
eight, in one pass or in two, with and without computing rollouts of advantage 0."""

RAFT = tuple(name for name in METHODS if name.startswith("raft") and "-as-" not in name)
"""The same, training right answers only. What ours gain over it is not due to that."""

AT_MOST = {GRPO: 0.5, "uniform": 2 / 3}
"""Of their cost to the target."""

SHARE_OF_TASKS = 2 / 3


@dataclass(frozen=True, slots=True)
class Beside:
    """`cost`: of ours to the target over that of `other`, `low` to `high`: its 95 % interval (paired bootstrap)."""

    other: str
    cost: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.cost:.2f} ({self.low:.2f} to {self.high:.2f})"


def beside(finals: Finals, ours: str, other: str, target_of: str = REFERENCE) -> Beside:
    """On the same worlds. `target_of`: the method whose gain sets the accuracy to reach."""
    target = finals.target_of(target_of)
    return Beside(other, *ratio(finals.costs_to(target, ours)[0], finals.costs_to(target, other)[0]))


def cheapest(finals: Finals, names: Sequence[str]) -> str | None:
    """Of those that were run, by mean cost; None if none was. It is chosen by the very trials that ours is then
    compared with, so it is a little luckier than it should be."""
    run = [name for name in names if name in finals.runs]
    return min(run, key=lambda name: float(finals.to_target[name][0].mean()), default=None)


def cheapest_uniform(finals: Finals) -> str:
    """The reference is one, so there always is one."""
    return cheapest(finals, UNIFORM) or REFERENCE


def reached(finals: Finals, ours: str, *, surely: bool = False) -> bool:
    """Both bounds, on this task. `surely`: by the whole 95 % intervals."""
    to_grpo, to_uniform = beside(finals, ours, GRPO), beside(finals, ours, cheapest_uniform(finals))
    grpo, uniform = (found.high if surely else found.cost for found in (to_grpo, to_uniform))
    return grpo <= AT_MOST[GRPO] and uniform <= AT_MOST["uniform"]


def render_aim(by_task: Sequence[Finals]) -> str:
    """A table and a sentence for each of ours. Tasks without GRPO or one of ours are left out."""
    parts: list[str] = []
    for ours in OURS:
        several = [finals for finals in by_task if {ours, GRPO} <= finals.runs.keys()]
        if not several:
            continue
        met, sure = (
            [f"`{finals.task}`" for finals in several if reached(finals, ours, surely=surely)]
            for surely in (False, True)
        )
        needed = math.ceil(SHARE_OF_TASKS * len(several))
        verdict = "reached" if len(met) >= needed else "missed"
        where = f", {', '.join(met)}" if met else ""
        parts += [
            f"The aim is at most {AT_MOST[GRPO]:.2f} of `{GRPO}` and {AT_MOST['uniform']:.2f} of the cheapest uniform "
            f"sampling, on {needed} of {len(several)} tasks. `{ours}` has **{verdict}** it: {len(met)} of "
            f"{len(several)}{where}. {_by_intervals(met, sure)}".rstrip(),
            _table(several, ours),
        ]
    return "\n\n".join(parts)


def _by_intervals(met: Sequence[str], sure: Sequence[str]) -> str:
    if met == sure:
        return "The whole 95 % intervals are within these bounds, too." if met else ""
    unsure = ", ".join(name for name in met if name not in sure)
    return f"The whole 95 % intervals are within these bounds on {len(sure)}: not on {unsure}."


def _table(by_task: Sequence[Finals], ours: str) -> str:
    head = [f"`{ours}` beside", *(f"`{finals.task}`" for finals in by_task)]
    body = [[f"`{GRPO}`", *(beside(finals, ours, GRPO).text for finals in by_task)]]
    for label, known in (("the cheapest uniform", UNIFORM), ("the cheapest RAFT", RAFT)):
        names = [name for name in known if name != ours]
        others = [cheapest(finals, names) for finals in by_task]
        if any(others):
            body += _lines(by_task, ours, label, others)
            body.append(["of how many", *(str(len(finals.runs.keys() & set(names))) for finals in by_task)])
    return markdown_table(head, body)


def _lines(by_task: Sequence[Finals], ours: str, label: str, others: Sequence[str | None]) -> list[list[str]]:
    """To the target, to as much of the other's own gain, and which that is on each task."""
    cells: dict[str, list[str]] = {label: [], f"the same, to {TARGET_SHARE:.0%} of its own gain": [], "which is": []}
    for finals, other in zip(by_task, others, strict=True):
        texts = ["–"] * 3
        if other is not None:
            to_own = beside(finals, ours, other, target_of=other)
            texts = [beside(finals, ours, other).text, to_own.text, f"`{other}`"]
        for cell, text in zip(cells.values(), texts, strict=True):
            cell.append(text)
    return [[name, *cell] for name, cell in cells.items()]


def render_edges(by_task: Sequence[Finals]) -> str:
    """Of the methods that are compared above: whose best setting is the least or the largest that is tried."""
    found: dict[tuple[str, str], list[str]] = {}
    for finals in by_task:
        controls = dict.fromkeys([*OURS, GRPO, cheapest_uniform(finals), cheapest(finals, RAFT)])
        for name in [name for name in controls if name is not None and name in finals.settings]:
            for what in _edges(*finals.settings[name]):
                found.setdefault((name, what), []).append(f"`{finals.task}`")
    by_name: dict[str, list[str]] = {}
    for (name, what), tasks in found.items():
        by_name.setdefault(name, []).append(f"{what} on {', '.join(tasks)}")
    where = "; ".join(f"`{name}`: {' and '.join(edges)}" for name, edges in by_name.items())
    tried = f"Tried were rates of {min(RATES):g} to {max(RATES):g} and {min(PROMPTS)} to {max(PROMPTS)} prompts"
    return f"{tried}. The best is at an edge of that, and beyond it something cheaper may be, for {where or 'none'}."


def _edges(rate: float, prompts: int) -> list[str]:
    at_rate = [f"rate {rate:g}"] if rate in (min(RATES), max(RATES)) else []
    return at_rate + ([f"{prompts} prompts"] if prompts in (min(PROMPTS), max(PROMPTS)) else [])
