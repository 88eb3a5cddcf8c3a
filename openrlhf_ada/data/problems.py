"""Problems with a stable identity, from a hub id, a local file or a task of reasoning-gym."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.data.files import DataError, Row
from openrlhf_ada.data.hub import library_rows
from openrlhf_ada.data.left_out import LeftOut
from openrlhf_ada.data.questions import MISSING, Columns, UnfitError, has_image, question_and_label, value_at
from openrlhf_ada.data.row_rewards import RowRewards, UnknownRewardError
from openrlhf_ada.data.rows import text_rows
from openrlhf_ada.eval.answers import as_text
from openrlhf_ada.host.rows import load_blended
from openrlhf_ada.reward.reasoning_answers import import_reasoning_gym, to_label

QUESTION_KEYS = ("problem", "question", "prompt", "input", "Problem", "Question")
LABEL_KEYS = (
    *("answer", "label", "reward_model.ground_truth", "final_answer", "expected_answer", "ground_truth"),
    *("solution", "Answer", "tests"),
)

TASK = "reasoning_gym:"
"""How paths of reasoning-gym's tasks begin."""

IMAGES = "images"
"""The column in which OpenRLHF looks for images by default."""

AS_IT_IS = "{}"
"""Template of data that a user brings: the prompt is the question, as in a training."""

Question = str | Sequence[Mapping[str, Any]]
"""Text, or chat messages."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`id` depends on question and label only: the same in every file, at every time. `place`: where it stands in its
    source ("line 3"). `reward`: its own grader, where problems of several kinds are together. `template`: of its
    source."""

    id: str
    question: Question
    label: Any
    source: str
    place: str = field(default="", compare=False)
    reward: str | None = None
    template: str = AS_IT_IS

    @property
    def prompt(self) -> Question:
        """The question in its template; chat messages are as they should be."""
        # Not str.format: questions and templates are full of braces.
        return self.template.replace("{}", self.question, 1) if isinstance(self.question, str) else self.question


@dataclass(frozen=True, slots=True)
class Source:
    """Where problems come from. `path`: a hub id (with `@config`), a file or pattern, or `reasoning_gym:<task>`;
    `split` of a hub id; `question_key`, `label_key`: columns, dots for nested ones, None to recognise them;
    `template`: the prompt, with {} for the question; `reward`: its grader, None where nobody knows what a user's file
    needs; `size`, `seed`: of a task."""

    name: str
    path: str
    split: str = "train"
    question_key: str | None = None
    label_key: str | None = None
    template: str = AS_IT_IS
    reward: str | None = None
    size: int = 200
    seed: int = 0


def load_problems(
    source: Source,
    limit: int | None = None,
    unfit: list[LeftOut] | None = None,
    *,
    flag: str = "SOURCE",
    rewards: RowRewards | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Problem]:
    """The first `limit` problems of a source, in its order.

    Args:
        unfit: where given, rows without a question or a label are left out, and added to it with the reason.
        flag: what named the source, for messages.
        rewards: where given, each row names its own grader.
        note: is told which columns are read.

    Raises DataError: it cannot be reached, has no rows or no such columns, or (without `unfit`) a row is unfit.
    """
    if source.path.startswith(TASK):
        return list(_task_problems(source, limit, rewards))
    rows = islice(_rows(source, flag), limit)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{flag}: {source.path} holds no rows, expected at least one problem: give a file with data")
    columns = _columns(source, first[1], flag)
    note(f"{source.name}: questions from column {columns.input_key!r}, labels from {columns.label_key!r}")
    problems: list[Problem] = []
    for place, row in chain([first], rows):
        try:
            problems.append(_problem(source, place, row, columns, rewards))
        except UnfitError as error:
            if unfit is None or isinstance(error, UnknownRewardError):
                raise DataError(error.at(f"{flag}: {source.path} {place}")) from error
            kind = "without a usable question or label"
            unfit.append(LeftOut(source.path, place, str(error).strip(": "), row, kind))
    return problems


def problem_id(question: Question, label: Any) -> str:
    """16 hexadecimal digits."""
    content = json.dumps([question, label], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _rows(source: Source, flag: str) -> Iterator[Row]:
    is_here = os.path.lexists(source.path) or glob.has_magic(source.path)
    path, config = (source.path, "") if is_here else source.path.partition("@")[::2]
    rows = text_rows(path, flag)
    if rows is not None:
        # With a pattern, a line needs the name of its file.
        return ((place if file == path else f"({file}) {place}", row) for file, place, row in rows)

    def load() -> Any:
        import datasets

        if is_here:
            return load_blended(path, max_count=sys.maxsize, split=source.split)
        return datasets.load_dataset(path, config or None, split=source.split)

    remedy = f"Without a hub, give a local copy: {source.name}=/path/to/file.jsonl (or .parquet)"
    return library_rows(load, path, f"{flag}: {source.path}", remedy)


def _problem(source: Source, place: str, row: Any, columns: Columns, rewards: RowRewards | None) -> Problem:
    """Raises UnfitError."""
    question, label = question_and_label(row, columns)
    label = final_part(label)
    if row.get(IMAGES) or has_image(question):
        raise UnfitError("has images, which are not read here: remove the row; `train` reads images")
    reward = None
    if rewards is not None:
        reward, label = rewards.split(row, label, source.path)
    return Problem(problem_id(question, label), question, label, source.name, place, reward, source.template)


def final_part(label: Any) -> Any:
    """GSM8K's labels are solutions that end in `#### answer`."""
    return label.rpartition("####")[2].strip() if isinstance(label, str) and "\n#### " in label else label


def _columns(source: Source, row: Any, flag: str) -> Columns:
    """Those that are named, or recognised in the first row; raises DataError."""
    row = row if isinstance(row, dict) else {}
    keys: list[str] = []
    for given, known, key_flag in (
        (source.question_key, QUESTION_KEYS, "--input_key"),
        (source.label_key, LABEL_KEYS, "--label_key"),
    ):
        found = next((key for key in ((given,) if given else known) if value_at(row, key) is not MISSING), None)
        if found is None:
            wanted = f"no column {given!r}" if given else "none of the columns is known"
            raise DataError(f"{flag}: {source.path}: {wanted}; there are {', '.join(row) or 'none'}: set {key_flag}")
        keys.append(found)
    return Columns(keys[0], keys[1], chat=True, needs_label=True, flags="--")


def _task_problems(source: Source, limit: int | None, rewards: RowRewards | None) -> Iterator[Problem]:
    """Of a task of reasoning-gym. Raises DataError where there is none of that name, or its generator fails."""
    task, size = source.path.removeprefix(TASK), min(limit or source.size, source.size)
    gym = import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = nearest(task, DATASETS)
        hint = f"did you mean {TASK}{near}?" if near else f"name one of its {len(DATASETS)} tasks"
        raise DataError(f"{source.path}: reasoning-gym has no task {task!r}: {hint}")
    try:
        entries: Any = gym.create_dataset(task, size=size, seed=source.seed)
        for number, entry in enumerate(entries, start=1):
            question, label = entry["question"], to_label(entry)
            reward = None if rewards is None else "reasoning_gym"
            yield Problem(problem_id(question, label), question, label, source.name, f"row {number}", reward)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise DataError(
            f"{source.path}: reasoning-gym cannot make {size} problems ({type(error).__name__}: {reason}): try "
            f"fewer (--limit), or leave the task out"
        ) from error


_SPACE = re.compile(r"\s+")


def normalised(question: Question) -> str:
    """The question without differences in white space or a final full stop."""
    return _SPACE.sub(" ", as_text(question)).strip(" .")


Same = Callable[[Problem, Problem], bool]


def deduplicated(problems: Iterable[Problem], same: Same) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """(the first of each question, its copies, those with contradicting labels).

    A question with different labels is left out, because nobody knows which label is right. `same`: are the labels of
    two problems, which are written differently, the same answer?
    """
    by_question: dict[str, list[Problem]] = {}
    for problem in problems:
        by_question.setdefault(normalised(problem.question), []).append(problem)
    kept: list[Problem] = []
    copies: list[Problem] = []
    contradictory: list[Problem] = []
    for first, *others in by_question.values():
        if all(_equal(first, other) or same(first, other) for other in others):
            kept.append(first)
            copies += others
        else:
            contradictory += [first, *others]
    return kept, copies, contradictory


def _equal(problem: Problem, other: Problem) -> bool:
    return (problem.label, problem.reward) == (other.label, other.reward)
