"""Sampled answers on disk, one JSON object a line. A run that is resumed samples only the missing ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.reporting.jsonl import encode, read_rows, to_json_value, write_atomically

ANSWERS_FILE = "answers.jsonl"
SETTINGS_FILE = "sampling.json"


class OtherSettingsError(ValueError):
    """The folder holds answers that were sampled in another way; the message says what differs."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One answer. If `score` is None, `cause` says why. `surprise`: mean negative
    log-probability per token at the sampling temperature, in nats (its mean estimates the entropy)."""

    problem: str
    index: int
    text: str
    tokens: int
    truncated: bool
    score: float | None
    cause: str = ""
    scoring_s: float | None = None
    surprise: float | None = None


def _row(path: Path, row: Mapping[str, Any]) -> AnswerRow:
    if row.keys() != {field.name for field in fields(AnswerRow)}:
        raise OtherSettingsError(f"{path} was written by another version of openrlhf_ada: name another folder")
    return AnswerRow(**row)


class AnswerFile:
    """The answers of one model to one set of problems; a context manager.

    Args:
        folder: created if it does not exist; if it holds answers of the same settings, these are kept.
        settings: everything that the answers depend on, as JSON-able values.

    Raises:
        OtherSettingsError: the folder's settings differ.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._check(settings)
        path = folder / ANSWERS_FILE
        rows = [_row(path, row) for _, row in read_rows(path)] if path.exists() else []
        # Answers without a score are sampled again: the cause may be gone.
        self.rows = [row for row in rows if row.score is not None]
        if path.exists():
            # This also removes the torn last line of a killed writer.
            write_atomically(path, b"".join(_line(row) for row in self.rows))
        self._stream = path.open("ab")

    def missing(self, problems: Iterable[str], n: int) -> list[tuple[str, int]]:
        """(problem, index) of the answers that are not there yet."""
        known = {(row.problem, row.index) for row in self.rows}
        return [(problem, i) for problem in problems for i in range(n) if (problem, i) not in known]

    def add(self, row: AnswerRow) -> None:
        """Write the row to disk at once."""
        self._stream.write(_line(row))
        self._stream.flush()
        self.rows.append(row)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self, settings: Mapping[str, Any]) -> None:
        path = self.folder / SETTINGS_FILE
        now = json.loads(encode(to_json_value("settings", settings, "raise")))
        if not path.exists():
            write_atomically(path, encode(now, indent=1))
            return
        before = json.loads(path.read_bytes())
        different = sorted(name for name in now | before if now.get(name) != before.get(name))
        if different:
            name = different[0]
            raise OtherSettingsError(
                f"{self.folder} holds answers with {name} {before.get(name)!r}, not {now.get(name)!r}: name another "
                f"folder, or resume with the same settings"
            )


def _line(row: AnswerRow) -> bytes:
    return encode(to_json_value("answer", asdict(row), "raise"))


def answered(
    rows: Iterable[AnswerRow], problems: Sequence[str], *, positive_above: float, same: Any = None
) -> tuple[list[Answered], int]:
    """The answers by problem, in the order of `problems`, and the number of answers without a score, which are left
    out.

    Args:
        positive_above: an answer is right if its score is greater.
        same: text -> a name for its answer; answers of the same name are the same. None: answers are not compared.
    """
    by_problem: dict[str, list[AnswerRow]] = {problem: [] for problem in problems}
    without = 0
    for row in rows:
        if row.problem not in by_problem:
            continue
        if row.score is None:
            without += 1
        else:
            by_problem[row.problem].append(row)
    found = [
        _describe(problem, sorted(group, key=lambda row: row.index), positive_above, same)
        for problem, group in by_problem.items()
        if group
    ]
    return found, without


def _describe(problem: str, rows: Sequence[AnswerRow], positive_above: float, same: Any) -> Answered:
    return Answered(
        problem,
        [row.score is not None and row.score > positive_above for row in rows],
        None if same is None else [same(row.text) for row in rows],
        [row.tokens for row in rows],
        [row.truncated for row in rows],
        [float("nan") if row.surprise is None else row.surprise for row in rows],
    )
