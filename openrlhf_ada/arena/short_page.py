"""The first tables of docs/arena.md: what ours and their nearest rivals take of GRPO's cost, and of each other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from openrlhf_ada.arena.aim import GRPO, beside
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.tables import REFERENCE, Finals

FIRST, LAST = "<!-- in short: written by `make arena-docs` -->", "<!-- end of in short -->"

SHOWN = {
    "seconds": ("first-right", "raft-1-twice", "raft-twice", "counted", "uniform-4-twice-skip"),
    "rollouts": ("first-right", "raft-1-twice", "raft-twice", "counted", "uniform-4-twice"),
}
"""By the cost that methods are tuned for and compared by."""

SMALLER, SHOWN_SMALLER = "4 B prompts", ("first-right", "raft-1-twice", "counted")
"""Seconds where a step stands for a quarter as many prompts, about as many as presets have."""

AT_END = ("first-right", "raft-1-twice", "raft-twice", "counted", GRPO)
"""Methods whose accuracy after equal cost is shown."""

OURS, RIVAL = "first-right", "raft-1-twice"
"""The two that are ahead, beside each other: to the target, and to 80 % of what the rival gains."""


def render_short(by_task: Sequence[Mapping[str, Finals]]) -> str:
    """Everything between the two marks. A task that was not run at a cost has no figures there."""
    tasks = list(dict.fromkeys(finals.task for by_cost in by_task for finals in by_cost.values()))
    of = {(finals.task, cost): finals for by_cost in by_task for cost, finals in by_cost.items()}
    body = [
        [f"{cost}: `{name}`", *(_of_grpo(of.get((task, cost)), name) for task in tasks)]
        for cost, names in SHOWN.items()
        for name in names
    ]
    seconds = {task: of.get((task, "seconds")) for task in tasks}
    smaller = {task: finals and replace(finals, cost=SMALLER) for task, finals in seconds.items()}
    body += [
        [f"seconds, a quarter of the prompts in a step: `{name}`", *(_of_grpo(smaller[task], name) for task in tasks)]
        for name in SHOWN_SMALLER
    ]
    body += [
        [f"right after equal {cost}: `{name}`", *(_at_end(of.get((task, cost)), name) for task in tasks)]
        for cost in SHOWN
        for name in AT_END
    ]
    apart = [
        [f"{cost}, {to}", *(_apart(of.get((task, cost)), target_of) for task in tasks)]
        for cost in SHOWN
        for to, target_of in (("to the target", REFERENCE), (f"to 80 % of the gain of `{RIVAL}`", RIVAL))
    ]
    columns = [f"`{task}`" for task in tasks]
    both = ((["", *columns], body), ([f"`{OURS}` beside `{RIVAL}`", *columns], apart))
    return "\n\n".join(markdown_table(*table) for table in both) + "\n"


def _of_grpo(finals: Finals | None, name: str) -> str:
    if finals is None or not {name, GRPO} <= finals.runs.keys():
        return "–"
    return f"{beside(finals, name, GRPO).cost:.2f}"


def _apart(finals: Finals | None, target_of: str) -> str:
    if finals is None or not {OURS, RIVAL} <= finals.runs.keys():
        return "–"
    return f"{beside(finals, OURS, RIVAL, target_of=target_of).cost:.2f}"


def _at_end(finals: Finals | None, name: str) -> str:
    if finals is None or name not in finals.runs:
        return "–"
    return f"{np.mean([run['accuracy'][-1] for run in finals.runs[name]]):.1%}"
