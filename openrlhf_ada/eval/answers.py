"""Sampled answers on disk, one JSON object a line. A run that is resumed samples only the missing ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.reporting.jsonl import encode, finite, read_rows, write_atomically

ANSWERS_FILE = "answers.jsonl"
SETTINGS_FILE = "sampling.json"


def as_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """Of messages what they say, one after the other."""
    return prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)


class OtherSettingsError(ValueError):
    """The folder holds answers that were sampled in another way; the message says what differs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to sample: the `index`-th to `problem`, whose `prompt` the model gets (text, or chat messages for a
    server). `problem_set`: the set that the problem is from; another set may have the same problem. `label`: what the
    grader gets."""

    problem_set: str
    problem: str
    index: int
    prompt: Any
    label: Any

    @property
    def request(self) -> Request:
        identity = hashlib.sha256(f"{self.problem_set}/{self.problem}".encode()).digest()
        return Request(int.from_bytes(identity[:8], "big"), self.index)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A response and its score. If `score` is None, `cause` says why. `tokens`: None where a server does not say.
    `surprise`: mean negative log-probability per token at the sampling temperature, in nats (its mean estimates the
    entropy); None where it is not known."""

    response: str
    tokens: int | None
    truncated: bool
    score: float | None
    cause: str = ""
    scoring_s: float | None = None
    surprise: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerRow(Sampled):
    """One line of the file. `answer`: what was found in the response; "" for none, None with a reward that is not
    ours."""

    problem: str = ""
    index: int = 0
    question: Any = None
    prompt: Any = None
    label: Any = None
    answer: str | None = None


class AnswerFile:
    """The answers of one model to one set of problems, until `close`.

    Args:
        folder: created if it does not exist; if it holds answers of the same settings, these are kept.
        settings: everything that the answers depend on, as JSON-able values.

    Raises OtherSettingsError: the folder's settings differ.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._check(settings)
        path = folder / ANSWERS_FILE
        rows = [row for _, row in read_rows(path)] if path.exists() else []
        if any(row.keys() != {field.name for field in fields(AnswerRow)} for row in rows):
            raise OtherSettingsError(f"{path} was written by another version of openrlhf_ada: name another folder")
        # Answers without a score are sampled again: the cause may be gone.
        self.rows = [AnswerRow(**row) for row in rows if row["score"] is not None]
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

    def _check(self, settings: Mapping[str, Any]) -> None:
        path = self.folder / SETTINGS_FILE
        now = json.loads(encode(settings))
        if not path.exists():
            write_atomically(path, encode(now, indent=1))
            return
        before = json.loads(path.read_bytes())
        different = sorted(name for name in now | before if now.get(name) != before.get(name))
        if different:
            name = different[0]
            held = f"{name} {before.get(name)!r}, not {now.get(name)!r}"
            raise OtherSettingsError(
                f"{self.folder} holds answers with {held}: name another folder, or the same settings"
            )


def _line(row: AnswerRow) -> bytes:
    # What tells answers apart comes first, for those who read the file.
    first = ("problem", "index", "score", "answer")
    values = asdict(row)
    ordered = {name: values[name] for name in (*first, *(name for name in values if name not in first))}
    return encode(finite(ordered))


def answered(
    rows: Iterable[AnswerRow],
    problems: Iterable[str],
    right_above: float,
    same: Callable[[str], str] | None = None,
) -> tuple[list[Answered], int]:
    """The answers by problem, in the order of `problems` (ids), and the number of answers without a score, which are
    left out. An answer is right if its score is greater than `right_above`; `same`: from an extracted answer to a name
    that the same answers share, None where they are not compared."""
    groups: dict[str, list[AnswerRow]] = {problem: [] for problem in problems}
    rows = [row for row in rows if row.problem in groups]
    for row in sorted(rows, key=lambda row: row.index):
        if row.score is not None:
            groups[row.problem].append(row)
    found = [
        Answered(
            [row.score or 0.0 for row in group],
            [math.nan if row.tokens is None else row.tokens for row in group],
            [row.truncated for row in group],
            [(row.score or 0.0) > right_above for row in group],
            problem,
            None if same is None else [same(row.answer or "") for row in group],
            [math.nan if row.surprise is None else row.surprise for row in group],
        )
        for problem, group in groups.items()
        if group
    ]
    return found, sum(row.score is None for row in rows)
