"""Grades answers to reasoning-gym's tasks with the verifier of each task."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import Grade, UnusableLabelError
from openrlhf_ada.reward.math_text import boxes, final_part
from openrlhf_ada.reward.reasoning import from_label, import_reasoning_gym

LONGEST = 20_000
"""Characters. Grids and proofs are long, but not longer; verifiers may take for ever on longer text."""

_TAGGED = re.compile(r"<answer>((?:(?!<answer>|</answer>).)*)</answer>", re.DOTALL)


def grade(response: str, label: Any) -> Grade:
    """What the task's own verifier gives, in [0, 1]: some grade in between, and many give 0.01 for a wrong answer.

    Args:
        response: its answer is the last `<answer>...</answer>` after any thinking; else the last box; else all of it.
        label: an entry of reasoning-gym as JSON, or as a dict.

    Raises:
        UnusableLabelError: the label is no such entry, or of a task that is not installed.
    """
    entry = _entry(label)
    verifier = _verifier(_task(entry))
    answer = find_answer(response)
    if not answer:
        return Grade(0.0, "no answer")
    if len(answer) > LONGEST:
        return Grade(0.0, "answer too long")
    try:
        score = float(verifier(answer, entry))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - see below
        # Some verifiers crash on badly formed answers. If this one works on the task's own answer, the response is
        # wrong; if it crashes there too, that exception says that there is no score.
        if entry["answer"] is not None:
            verifier(str(entry["answer"]), entry)
        return Grade(0.0, "unreadable answer")
    return Grade(score, "" if score == 1.0 else "wrong answer")


def find_answer(response: str) -> str:
    """The answer in a response, without white space around it; empty if there is none."""
    text = final_part(response)[-2 * LONGEST :]
    tagged = _TAGGED.findall(text)
    if tagged:
        return tagged[-1].strip()
    return (boxes(text) or [text])[-1].strip()


def task_of(label: Any) -> str:
    """The task that a label is of; raises UnusableLabelError."""
    return _task(_entry(label))


def _task(entry: dict[str, Any]) -> str:
    return entry["metadata"]["source_dataset"]


def _entry(label: Any) -> dict[str, Any]:
    try:
        entry = from_label(label) if isinstance(label, str) else label
        if isinstance(entry["metadata"]["source_dataset"], str) and "answer" in entry and "question" in entry:
            return entry
    except (ValueError, TypeError, KeyError):
        pass
    raise UnusableLabelError(
        f"{str(label)[:80]!r} is no entry of reasoning-gym: expected question, answer and metadata.source_dataset"
    )


@lru_cache(maxsize=256)
def _verifier(task: str) -> Any:
    try:
        return import_reasoning_gym().get_score_answer_fn(task)
    except ValueError as error:
        raise UnusableLabelError(f"reasoning-gym has no task {task!r}: {error}") from error
