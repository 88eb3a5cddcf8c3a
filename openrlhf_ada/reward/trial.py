"""Rewards of the user are tried once before any engine starts, each in a process of its own.

An engine would find what is wrong with one only after it has loaded its model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.reward_function import MIXED, NAMED, file_and_function, is_url, name_of

LIMIT_S = 60.0
"""For loading and trying all. A file that loads a large model may take longer; the engine then waits for it."""

ROWS = 3
"""That a reward grades, with their labels for answers."""


class Row(NamedTuple):
    """What a reward is asked about. `label`: JSON-able."""

    prompt: str
    answer: str
    label: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a trial. `broken`: why the file cannot be loaded. `grades`: of the rows that were asked, without
    seconds. `is_late`: nothing more is known after LIMIT_S."""

    flag: str
    name: str
    broken: str = ""
    grades: Sequence[TimedGrade] = ()
    is_late: bool = False

    def error(self, *, unit: bool = False) -> ConfigError | None:
        """Why no training can use it. `unit`: scores must lie in [0, 1]."""
        if self.broken:
            return ConfigError(self.flag, self.name, self.broken, "Fix the file, or install what it needs")
        scores = [grade.score for grade in self.grades if grade.score is not None]
        if self.grades and not scores:
            rule = f"it gives no score to the first {len(self.grades)} rows, with their labels as answers: "
            return ConfigError(self.flag, self.name, rule + self.grades[0].cause, self._remedy())
        outside = next((score for score in scores if not 0.0 <= score <= 1.0), None)
        if unit and outside is not None:
            return ConfigError(
                self.flag,
                self.name,
                f"it gives the score {outside:g}, and scores lie in [0, 1]",
                "Return 'scores' in [0, 1] beside 'rewards', or give --ada_scores raw and --ada_positive_threshold",
            )
        return None

    def note(self) -> str:
        """What is not sure; "" if all is well."""
        if self.is_late:
            return f"{self.flag}: {self.name} was not tried to its end, which takes more than {LIMIT_S:g} s"
        causes = [grade.cause for grade in self.grades if grade.score is None]
        if not causes:
            return ""
        count = f"{len(causes)} of the first {len(self.grades)} rows"
        return f"{self.flag}: {self.name} gives no score to {count}, with their labels as answers: {causes[0]}"

    def _remedy(self) -> str:
        if self.name in (*NAMED, MIXED):
            return "Correct the labels (--data.label_key), or name another reward"
        if file_and_function(self.name):
            return "Return Grade(score) with a score in [0, 1] (openrlhf_ada.reward.grade)"
        answer = "Answer with JSON" if is_url(self.name) else "For one query, return"
        return f"{answer} {{'rewards': [1.0], 'scores': [1.0], 'extra_logs': {{}}}} (docs/rewards.md)"


class _Trial(NamedTuple):
    flag: str
    name: str
    process: subprocess.Popen[bytes]
    rows: IO[bytes]
    result: IO[bytes]
    output: IO[bytes]


class Trials(ExitStack):
    """Trials that run beside what the block does, and end with it."""

    def __init__(self, flag: str, names: Iterable[str]) -> None:
        """`flag`: which names rewards. Of these, the user's own begin to load at once."""
        super().__init__()
        self._flag = flag
        self._trials: list[_Trial] = []
        for name in names:
            self.start(flag, name)

    def start(self, flag: str, name: str) -> None:
        """One more file that is there, FILE.py:NAME or URL. Ours are tested, and are left out."""
        grader = file_and_function(name)
        file = grader[0] if grader else name
        is_own_file = file.endswith(".py") and Path(file).is_file() and name_of(name) not in NAMED
        if not (is_own_file or is_url(name)):
            return
        files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - closed with the block
        rows, result, output = map(self.enter_context, files)
        process = subprocess.Popen(
            # Not buffered: what the file has printed is read although it ends the process.
            [sys.executable, "-u", "-m", "openrlhf_ada.reward.trial_child", name, str(rows.fileno())],
            stdin=subprocess.PIPE,
            stdout=result,
            stderr=output,
            pass_fds=[rows.fileno()],
            # A grader's process sees no GPU either (`pool`).
            env=os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if grader else {}),
            # With what the file itself has started.
            start_new_session=True,
        )
        self.callback(_end, process)
        self._trials.append(_Trial(flag, name, process, rows, result, output))

    def verdicts(self, rows: Mapping[str, Sequence[Row]]) -> list[Verdict]:
        """Asks each about its rows, by name (none: it is only loaded), and waits for LIMIT_S at most."""
        for name in rows.keys() - {trial.name for trial in self._trials}:
            self.start(self._flag, name)
        end = time.monotonic() + LIMIT_S
        for trial in self._trials:
            trial.rows.write(json.dumps(rows.get(trial.name, ()), default=str).encode())
            trial.rows.seek(0)
            assert trial.process.stdin is not None
            trial.process.stdin.close()
        return [_verdict(trial, len(rows.get(trial.name, ())), end) for trial in self._trials]


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rows_for(names: Sequence[str], asked: Sequence[tuple[str, Any]], end: str = "") -> dict[str, list[Row]]:
    """The first rows for each of the rewards `names`, and for each that a label of `mixed` names.

    `asked`: prompts and labels. `end`: the text of the token that ends an answer, which OpenRLHF leaves in it.
    """
    found: dict[str, list[Row]] = {}
    for prompt, label in asked:
        named = named_label(label)
        own = named[1] if named else label
        for name in (*(name for name in names if name != MIXED), *(named[:1] if named else ())):
            if len(found.setdefault(name, [])) < ROWS:
                found[name].append(Row(prompt, f"{own}{'' if file_and_function(name) else end}", own))
    return found


def _verdict(trial: _Trial, count: int, end: float) -> Verdict:
    about = trial.flag, trial.name
    try:
        status = trial.process.wait(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return Verdict(*about, is_late=True)
    lines = [json.loads(line) for line in _text(trial.result).splitlines()]
    last = "; ".join([f"ends the process (status {status})", *_text(trial.output).strip().splitlines()[-1:]])
    if not lines:
        return Verdict(*about, broken=f"its import {last}")
    if "raised" in lines[0]:
        return Verdict(*about, broken=f"it raises when it is imported ({lines[0]['raised']})")
    grades = [TimedGrade(line["score"], line["cause"], 0.0) for line in lines[1:]]
    return Verdict(*about, grades=grades if len(grades) == count else [*grades, TimedGrade(None, f"it {last}", 0.0)])


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
