"""reasoning-gym, importable without a C compiler."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any, NoReturn

SOLVER = "pycosat"


def import_reasoning_gym() -> Any:
    """The package reasoning_gym.

    It imports a SAT solver when it loads, for its zebra puzzles alone. The solver is published as C source only, so
    where it is not installed a module stands in for it that fails when it is used.
    """
    if SOLVER not in sys.modules and importlib.util.find_spec(SOLVER) is None:
        solver = ModuleType(SOLVER)
        for name in ("solve", "itersolve"):
            setattr(solver, name, _absent)
        sys.modules[SOLVER] = solver
    import reasoning_gym

    return reasoning_gym


def _absent(*_args: object, **_kwargs: object) -> NoReturn:
    raise RuntimeError(f"zebra puzzles need the package {SOLVER}, which is not installed: pip install {SOLVER}")
