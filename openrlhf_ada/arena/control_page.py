"""The part of docs/arena.md that tells weight from sampling: methods beside uniform sampling of the same weight.

Where a method's weight was measured, a second table says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openrlhf_ada.arena.aim import beside
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import METHODS, PUBLISHED
from openrlhf_ada.arena.tables import REFERENCE, Finals
from openrlhf_ada.arena.weights import measured, measured_weight

FIRST, LAST = "<!-- controls: written by `make arena-docs` -->", "<!-- end of controls -->"

EQUAL = "uniform-8-counts"
"""The control of methods that weigh prompts nearly alike."""

ADAPTIVE = ("pos", "balance", "est")

RIGHT_ONLY = ("raft", "gvm")
"""They compare nothing, so controls that do are none of theirs."""

RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9)
"""Of the second table."""


def control_of(method: str) -> str:
    """8 rollouts of every prompt, with the same effective weight."""
    control = f"uniform-8-as-{method}"
    return control if control in METHODS else EQUAL


def render_controls(by_task: Sequence[Mapping[str, Finals]]) -> str:
    """Everything between the two marks, of tasks where a control was run in seconds."""
    in_seconds = [by_cost["seconds"] for by_cost in by_task if "seconds" in by_cost]
    tasks = [finals for finals in in_seconds if EQUAL in finals.runs]
    names = [name for name in (*ADAPTIVE, *PUBLISHED) if name not in RIGHT_ONLY]
    rows = [
        [f"`{name}`", f"`{control_of(name)}`", *(cell for task in tasks for cell in _cells(task, name))]
        for name in names
    ]
    columns = [column for task in tasks for column in (f"`{task.task}`", "control", "beside it")]
    weights = [[f"`{name}`", *(_weights(name, p) for p in RATES)] for name in _measured()]
    both = ((["", "its control", *columns], rows), (["weight", *(f"p = {p}" for p in RATES)], weights))
    return "\n\n".join(markdown_table(*table) for table in both) + "\n"


def _cells(finals: Finals, method: str) -> list[str]:
    """The method's cost, its control's, and the method beside its control."""
    control = control_of(method)
    run = {name: name in finals.runs for name in (method, control)}
    of_reference = [f"{beside(finals, name, REFERENCE).cost:.2f}" if run[name] else "–" for name in (method, control)]
    return [*of_reference, beside(finals, method, control).text if all(run.values()) else "–"]


def _measured() -> list[str]:
    return list(dict.fromkeys(name for tables in measured().values() for name in tables))


def _weights(method: str, p: float) -> str:
    return ", ".join(f"{measured_weight(method, task).weight(p):.2f}" for task in measured())
