"""The first table of docs/arena.md: what ours and their nearest rivals take of GRPO's cost on every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from openrlhf_ada.arena.aim import GRPO, beside
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.tables import Finals

FIRST, LAST = "<!-- in short: written by `make arena-docs` -->", "<!-- end of in short -->"

SHOWN = {
    "seconds": ("first-right", "raft-1-twice", "raft-twice", "counted", "uniform-4-twice-skip"),
    "rollouts": ("first-right", "raft-1-twice", "raft-twice", "counted", "uniform-4-twice"),
}
"""By the cost that methods are tuned for and compared by."""

AT_END = ("first-right", "raft-1-twice", "raft-twice", "counted", GRPO)
"""Methods whose accuracy after equal cost is shown."""


def render_short(by_task: Sequence[Mapping[str, Finals]]) -> str:
    """Everything between the two marks. A task that was not run at a cost has no figures there."""
    tasks = list(dict.fromkeys(finals.task for by_cost in by_task for finals in by_cost.values()))
    of = {(finals.task, cost): finals for by_cost in by_task for cost, finals in by_cost.items()}
    body = [
        [f"{cost}: `{name}`", *(_of_grpo(of.get((task, cost)), name) for task in tasks)]
        for cost, names in SHOWN.items()
        for name in names
    ]
    body += [
        [f"right after equal {cost}: `{name}`", *(_at_end(of.get((task, cost)), name) for task in tasks)]
        for cost in SHOWN
        for name in AT_END
    ]
    return markdown_table(["", *(f"`{task}`" for task in tasks)], body) + "\n"


def _of_grpo(finals: Finals | None, name: str) -> str:
    if finals is None or not {name, GRPO} <= finals.runs.keys():
        return "–"
    return f"{beside(finals, name, GRPO).cost:.2f}"


def _at_end(finals: Finals | None, name: str) -> str:
    if finals is None or name not in finals.runs:
        return "–"
    return f"{np.mean([run['accuracy'][-1] for run in finals.runs[name]]):.1%}"
