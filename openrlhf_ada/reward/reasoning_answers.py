"""Grades answers to reasoning-gym's tasks with the verifier of each task."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import lru_cache
from types import ModuleType
from typing import Any, NoReturn

from openrlhf_ada.reward.grade import Grade, UnusableLabelError, label_is_readable
from openrlhf_ada.reward.mathematics.text import TAGGED, boxes, final_part
from openrlhf_ada.reward.reasoning_checks import could_run, score_of

SOLVER = "pycosat"

_TUPLE = "__tuple__"

LONGEST = 20_000
"""Characters. Grids and proofs are long, but not longer; verifiers may take for ever on longer text."""

_EMPTY = ("", '""', "''")
"""How an empty text may be written."""


def grade(response: str, label: Any) -> Grade:
    """What the task's own verifier gives, in [0, 1], where none of our rules stands before it (`reasoning_checks`).

    The answer is the last `<answer>...</answer>` after any thinking; else the last box; else all of it. Raises
    UnusableLabelError for a label that is no entry of reasoning-gym (JSON or a dict), or of a task that is not there.
    """
    entry = _entry(label)
    task = _task(entry)
    verifier = _verifier(task)
    _check_own_answer(label if isinstance(label, str) else to_label(label))
    label_is_readable()
    answer = find_answer(response)
    # polynomial_equations asks for an empty text where there is no solution.
    if entry["answer"] == "" and (answer or TAGGED.search(response)):
        return Grade(1.0) if answer in _EMPTY else Grade(0.0, "wrong answer")
    if not answer:
        return Grade(0.0, "no answer")
    if len(answer) > LONGEST:
        return Grade(0.0, "answer too long")
    if could_run(task, answer):
        return Grade(0.0, "answer that calls functions")
    try:
        score = score_of(task, answer, entry, verifier)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - the verifier works on the task's own answer, so this one is at fault
        return Grade(0.0, "unreadable answer")
    return Grade(score, "" if score == 1.0 else "wrong answer")


# Rollouts of one prompt have one label.
@lru_cache(maxsize=4096)
def _check_own_answer(label: str) -> None:
    """Raises what the verifier raises on the task's own answer. Some tasks have none."""
    entry = from_label(label)
    if entry["answer"] is not None:
        _verifier(_task(entry))(str(entry["answer"]), entry)


def find_answer(response: str) -> str:
    """The answer in a response, without white space around it; empty if there is none."""
    text = final_part(response)[-2 * LONGEST :]
    tagged = TAGGED.findall(text)
    if tagged:
        return tagged[-1].strip()
    return (boxes(text) or [text])[-1].strip()


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


def import_reasoning_gym() -> Any:
    """The package. Its zebra puzzles need a SAT solver, which is published as C source: where that is not installed, a
    stub takes its place, which fails when it is used."""
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
