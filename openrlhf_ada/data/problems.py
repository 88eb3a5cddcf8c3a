"""Problems with a stable identity, from a hub id, a local file or a task of reasoning-gym."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from openrlhf_ada.data.checks import DataError
from openrlhf_ada.reward.reasoning import import_reasoning_gym, to_label

HUB_S = 5.0
"""Seconds in which a reachable hub answers."""

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}

QUESTION_KEYS = ("problem", "question", "prompt", "input", "Problem", "Question")
LABEL_KEYS = (
    *("answer", "label", "reward_model.ground_truth", "final_answer", "expected_answer", "ground_truth"),
    *("solution", "Answer", "tests"),
)

Question = str | Sequence[Mapping[str, Any]]
"""Text, or chat messages."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`id` depends on question and label only: the same in every file, at every time. `row`: where it stands in its
    source, from 1."""

    id: str
    question: Question
    label: Any
    source: str
    row: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Source:
    """Where problems come from. `path`: a hub id (with `@config`), a file or pattern, or `reasoning_gym:<task>`;
    `split` of a hub id; `question_key`, `label_key`: columns, dots for nested ones, None to recognise them;
    `size`, `seed`: of a task."""

    name: str
    path: str
    split: str = "train"
    question_key: str | None = None
    label_key: str | None = None
    size: int = 200
    seed: int = 0


def load_problems(source: Source, limit: int | None = None, unfit: list[str] | None = None) -> list[Problem]:
    """The first `limit` problems of a source, in its order.

    Args:
        unfit: where given, rows without a question or a label are left out, and what is wrong is added to it.

    Raises:
        DataError: it cannot be reached, has no such columns, or (without `unfit`) a row is unfit.
    """
    if source.path.startswith("reasoning_gym:"):
        return _reasoning_problems(source, limit)
    rows = _rows(source)
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    question_key, label_key = _keys(source, rows)
    problems: list[Problem] = []
    for number, row in enumerate(rows, start=1):
        try:
            problems.append(_problem(source, number, _value(row, question_key), _value(row, label_key)))
        except DataError as error:
            if unfit is None:
                raise
            unfit.append(str(error))
    return problems


def problem_id(question: Question, label: Any) -> str:
    """16 hexadecimal digits."""
    content = json.dumps([question, label], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _problem(source: Source, number: int, question: Any, label: Any) -> Problem:
    if not question or (isinstance(question, str) and not question.strip()):
        raise DataError(f"{source.path}: row {number} has no question: remove the row, or name another column")
    if label is None or label == "":
        raise DataError(f"{source.path}: row {number} has no label: remove the row, or name another column")
    label = _final_part(label)
    return Problem(problem_id(question, label), question, label, source.name, number)


def _final_part(label: Any) -> Any:
    """GSM8K's labels are solutions that end in `#### answer`."""
    return label.rpartition("####")[2].strip() if isinstance(label, str) and "\n#### " in label else label


def _hub_is_unreachable() -> bool:
    """Is there no connection within HUB_S? The libraries would retry for half a minute, with a message each time."""
    if getproxies():
        # Whether a proxy reaches the hub is not known without a request.
        return False
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=HUB_S).close()
    except OSError:
        return True
    return False


def _rows(source: Source) -> Any:
    is_local = os.path.splitext(source.path.partition("@")[0])[1] in FORMATS or os.path.isdir(source.path)
    if not is_local and _hub_is_unreachable():
        # Read when the libraries are imported: cached data then loads at once, and all else fails at once.
        os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    path, _, config = source.path.partition("@")
    extension = os.path.splitext(path)[1]
    try:
        if extension in FORMATS:
            if not glob.glob(path):
                raise DataError(f"{source.path}: there is no such file (looked for {os.path.abspath(path)})")
            return datasets.load_dataset(FORMATS[extension], data_files=path, split="train")
        if os.path.isdir(path):
            loaded = datasets.load_from_disk(path)
            return loaded if isinstance(loaded, datasets.Dataset) else loaded[source.split]
        return datasets.load_dataset(path, config or None, split=source.split)
    except DataError:
        raise
    except (OSError, ValueError, ConnectionError, RuntimeError) as error:
        raise DataError(
            f"{source.name}: {source.path} cannot be loaded ({type(error).__name__}: {_first_line(error)}). Without a "
            f"hub, give a local copy: {source.name}=/path/to/file.jsonl (or .parquet)"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]


def _keys(source: Source, rows: Any) -> tuple[str, str]:
    row = rows[0] if len(rows) else {}
    keys: list[str] = []
    for given, known, flag in (
        (source.question_key, QUESTION_KEYS, "--input_key"),
        (source.label_key, LABEL_KEYS, "--label_key"),
    ):
        found = next((key for key in ((given,) if given else known) if _has(row, key)), None)
        if found is None:
            wanted = f"no column {given!r}" if given else "none of the columns is known"
            raise DataError(f"{source.path}: {wanted}; there are {', '.join(row) or 'no rows'}: set {flag}")
        keys.append(found)
    return keys[0], keys[1]


def _has(row: Mapping[str, Any], key: str) -> bool:
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _value(row: Mapping[str, Any], key: str) -> Any:
    value: Any = row
    for part in key.split("."):
        value = value[part]
    return value


def _reasoning_problems(source: Source, limit: int | None) -> list[Problem]:
    task = source.path.partition(":")[2]
    gym = import_reasoning_gym()
    try:
        entries: Iterable[Any] = gym.create_dataset(
            task, size=min(limit or source.size, source.size), seed=source.seed
        )
    except ValueError as error:
        raise DataError(f"{source.path}: reasoning-gym has no task {task!r} ({error})") from error
    return [
        _problem(source, number, entry["question"], to_label(entry)) for number, entry in enumerate(entries, start=1)
    ]


_SPACE = re.compile(r"\s+")


def normalised(question: Question) -> str:
    """The question without differences in white space or a final full stop."""
    text = question if isinstance(question, str) else "\n".join(str(message["content"]) for message in question)
    return _SPACE.sub(" ", text).strip(" .")


Same = Callable[[Any, Any], bool]


def deduplicated(problems: Sequence[Problem], same: Same) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """(the first of each question, its copies, those with contradicting labels).

    A question with different labels is left out, because nobody knows which label is right. `same`: are two labels
    that are written differently the same answer?
    """
    by_question: dict[str, list[Problem]] = {}
    for problem in problems:
        by_question.setdefault(normalised(problem.question), []).append(problem)
    kept: list[Problem] = []
    copies: list[Problem] = []
    contradictory: list[Problem] = []
    for first, *others in by_question.values():
        if all(other.label == first.label or same(first.label, other.label) for other in others):
            kept.append(first)
            copies += others
        else:
            contradictory += [first, *others]
    return kept, copies, contradictory
