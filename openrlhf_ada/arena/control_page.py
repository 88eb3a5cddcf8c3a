"""The part of docs/arena.md that tells weight from sampling: methods beside uniform sampling of the same weight.

A second table says which weight each method has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openrlhf_ada.arena.aim import beside
from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.tables import REFERENCE, Finals
from openrlhf_ada.arena.weights import effective_weight_of, tables

FIRST, LAST = "<!-- controls: written by `make arena-docs` -->", "<!-- end of controls -->"

CONTROLS = {method.weight_of: name for name, method in METHODS.items() if method.weight_of is not None}
"""By the method whose weight they have."""

RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Of the second table."""


def render_controls(by_task: Sequence[Mapping[str, Finals]]) -> str:
    """Everything between the two marks, of the tasks on which weights were measured."""
    found = [by_cost["seconds"] for by_cost in by_task if "seconds" in by_cost]
    in_seconds = [finals for finals in found if finals.task in tables()]
    rows = [[f"`{name}`", *(cell for finals in in_seconds for cell in _cells(finals, name))] for name in CONTROLS]
    columns = [column for f in in_seconds for column in (f"`{f.task}`: method", "its weight alone", "method / weight")]
    weights = [[f"`{name}`", *(_weights(name, p) for p in RATES)] for name in CONTROLS]
    both = ((["", *columns], rows), (["weight", *(f"p = {p}" for p in RATES)], weights))
    return "\n\n".join(markdown_table(*table) for table in both) + "\n"


def _cells(finals: Finals, method: str) -> list[str]:
    """The method's cost, its control's, and the one over the other."""
    names = (method, CONTROLS[method])
    of_reference = [_cost(finals, name) for name in names]
    both = all(name in finals.runs for name in names)
    return [*of_reference, beside(finals, *names).text if both else "–"]


def _cost(finals: Finals, name: str) -> str:
    if name not in finals.runs:
        return "–"
    missed = finals.to_target[name][1]
    return f"{beside(finals, name, REFERENCE).cost:.2f}" + (f", {missed} missed" if missed else "")


def _weights(method: str, p: float) -> str:
    """On each task; once where it is the same."""
    found = [effective_weight_of(method, task) for task in tables()]
    return ", ".join(dict.fromkeys(f"{table.weight(p) / table.weight(0.5):.2f}" for table in found))
