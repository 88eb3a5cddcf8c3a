"""Problems of reasoning-gym's tasks: what its generators raise is one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.data.files import DataError
from openrlhf_ada.reward.reasoning import import_reasoning_gym, to_label

PREFIX = "reasoning_gym:"


def task_entries(path: str, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """(question, label) of `size` problems of `reasoning_gym:<task>`.

    Raises:
        DataError: there is no such task, it needs what is not installed, or it fails.
    """
    task = path.removeprefix(PREFIX)
    gym = import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = nearest(task, DATASETS)
        hint = f"did you mean {PREFIX}{near}?" if near else f"name one of its {len(DATASETS)} tasks"
        raise DataError(f"{path}: reasoning-gym has no task {task!r}: {hint}")
    try:
        entries: Any = gym.create_dataset(task, size=size, seed=seed)
        for entry in entries:
            yield entry["question"], to_label(entry)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise DataError(
            f"{path}: reasoning-gym cannot make {size} problems with seed {seed} ({type(error).__name__}: {reason}): "
            f"try another seed or size, or leave the task out"
        ) from error
