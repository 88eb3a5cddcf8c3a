"""Problems of reasoning-gym's tasks: what its generators raise is one clear error."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.data.files import DataError
from openrlhf_ada.reward.reasoning_answers import SOLVER, import_reasoning_gym, to_label

PREFIX = "reasoning_gym:"

_NEEDS_SOLVER = "zebra_puzzles"
_MIXTURE = "composite"


def task_entries(path: str, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """(question, label) of `size` problems of `reasoning_gym:<task>`.

    Raises:
        DataError: there is no such task, it needs what is not installed, or it fails.
    """
    task = path.removeprefix(PREFIX)
    check_task(path)
    try:
        entries: Any = import_reasoning_gym().create_dataset(task, size=size, seed=seed)
        for entry in entries:
            yield entry["question"], to_label(entry)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise DataError(
            f"{path}: reasoning-gym cannot make {size} problems with seed {seed} ({type(error).__name__}: {reason}): "
            f"try another seed or size, or leave the task out"
        ) from error


def check_task(path: str) -> None:
    """Raises DataError for a task that reasoning-gym does not have, or cannot make problems of."""
    task = path.removeprefix(PREFIX)
    import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = nearest(task, DATASETS)
        hint = f"did you mean {PREFIX}{near}?" if near else f"name one of its {len(DATASETS)} tasks"
        raise DataError(f"{path}: reasoning-gym has no task {task!r}: {hint}")
    if task == _MIXTURE:
        raise DataError(
            f"{path}: it is a mixture of other tasks and has none by itself: name the tasks one by one, such as "
            f"{PREFIX}chain_sum {PREFIX}countdown"
        )
    if task == _NEEDS_SOLVER and not _has_solver():
        raise DataError(
            f"{path}: it needs the package {SOLVER}, which is not installed: pip install {SOLVER} (it needs a C "
            f"compiler), or leave the task out"
        )


def _has_solver() -> bool:
    try:
        return importlib.util.find_spec(SOLVER) is not None
    except ValueError:  # the stub that takes its place has no spec
        return False
