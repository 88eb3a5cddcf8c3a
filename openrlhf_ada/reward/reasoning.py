"""reasoning-gym, importable without a C compiler."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any, NoReturn

SOLVER = "pycosat"

_TUPLE = "__tuple__"


def import_reasoning_gym() -> Any:
    """The package reasoning_gym.

    It imports a SAT solver, which only its zebra puzzles need and which is published as C source. If the solver is not
    installed, a stub takes its place, which fails when it is used.
    """
    if SOLVER not in sys.modules and importlib.util.find_spec(SOLVER) is None:
        solver = ModuleType(SOLVER)
        for name in ("solve", "itersolve"):
            setattr(solver, name, _raise_not_installed)
        sys.modules[SOLVER] = solver
    import reasoning_gym

    return reasoning_gym


def to_label(entry: Any) -> str:
    """An entry as JSON. Tuples stay tuples: some verifiers compare them with what they make themselves."""
    return json.dumps(_with_marked_tuples(entry), default=str)


def from_label(text: str) -> Any:
    """What `to_label` was given; raises ValueError where the text is no JSON."""
    return json.loads(text, object_hook=lambda found: tuple(found[_TUPLE]) if found.keys() == {_TUPLE} else found)


def _with_marked_tuples(value: Any) -> Any:
    if isinstance(value, tuple):
        return {_TUPLE: [_with_marked_tuples(inner) for inner in value]}
    if isinstance(value, list):
        return [_with_marked_tuples(inner) for inner in value]
    return {key: _with_marked_tuples(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _raise_not_installed(*_args: object, **_kwargs: object) -> NoReturn:
    raise RuntimeError(f"zebra puzzles need the package {SOLVER}, which is not installed: pip install {SOLVER}")
