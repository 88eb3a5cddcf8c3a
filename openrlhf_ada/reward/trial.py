"""Rewards of the user are tried once before any engine starts, each in a process of its own.

An engine would find what is wrong with one only after it has loaded its model.

The process is `python -m openrlhf_ada.reward.trial FILE|FILE:NAME|URL <rows>`. It loads the file, waits for the end of
its input, reads rows ([prompt, answer, label], as JSON) from the descriptor `rows` and asks the reward as OpenRLHF or
a grading process would. Its output has one object of JSON in a line: how loading went ("raised", with the cause, or
nothing), then for each row a score and a cause.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.visible import as_told
from openrlhf_ada.reward.forms import as_grader
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.returned import reward_and_score
from openrlhf_ada.reward.reward_function import MIXED, NAMED, file_and_function, in_openrlhf_form, is_url, name_of
from openrlhf_ada.reward.worker import load_file

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
    seconds; `empty`: of an empty answer. `is_late`: nothing more is known after LIMIT_S."""

    flag: str
    name: str
    broken: str = ""
    grades: Sequence[TimedGrade] = ()
    empty: TimedGrade | None = None
    is_late: bool = False

    def error(self, *, unit: bool = False) -> ConfigError | None:
        """Why no training can use it. `unit`: scores must lie in [0, 1]."""
        if self.broken:
            return ConfigError(self.flag, self.name, self.broken, "Fix the file, or install what it needs")
        scores = [grade.score for grade in self.grades if grade.score is not None]
        if self.grades and not scores:
            rule = f"it gives no score to the first {len(self.grades)} rows, with their labels as answers: "
            return ConfigError(self.flag, self.name, rule + self.grades[0].cause, self._remedy())
        scores += [grade.score for grade in (self.empty,) if grade and grade.score is not None]
        outside = next((score for score in scores if not 0.0 <= score <= 1.0), None)
        if outside is not None and file_and_function(self.name):
            return ConfigError(self.flag, self.name, f"it gives the score {outside:g}, not in [0, 1]", self._remedy())
        if unit and outside is not None:
            remedy = (
                "Return 'scores' in [0, 1] beside 'rewards', or give --ada_scores raw and --ada_positive_threshold"
            )
            return ConfigError(
                self.flag, self.name, f"it gives the score {outside:g}, and scores lie in [0, 1]", remedy
            )
        return None

    def note(self) -> str:
        """What is not sure; "" if all is well."""
        if self.is_late:
            return f"{self.flag}: {self.name} was not tried to its end, which takes more than {LIMIT_S:g} s"
        causes = [grade.cause for grade in self.grades if grade.score is None]
        if not causes and self.empty and self.empty.score is None:
            return f"{self.flag}: {self.name} gives no score to an empty answer: {self.empty.cause}"
        if not causes:
            return ""
        count = f"{len(causes)} of the first {len(self.grades)} rows"
        return f"{self.flag}: {self.name} gives no score to {count}, with their labels as answers: {causes[0]}"

    def _remedy(self) -> str:
        if self.name in (*NAMED, MIXED):
            return "Correct the labels (--data.label_key), or name another reward"
        if file_and_function(self.name):
            return "Return a number in [0, 1], or {'reward': -1.0, 'score': 0.0}, and take what docs/rewards.md says"
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
            [sys.executable, "-u", "-m", "openrlhf_ada.reward.trial", name, str(rows.fileno())],
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
            asked = rows.get(trial.name, ())
            # A policy's answers may be of no use, which labels are not. Servers may charge for each.
            asked = [*asked, *(() if is_url(trial.name) else (Row(row.prompt, "", row.label) for row in asked[:1]))]
            trial.rows.write(json.dumps(asked, default=str).encode())
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
    if len(grades) < count + (count > 0 and not is_url(trial.name)):
        grades.append(TimedGrade(None, f"it {last}", 0.0))
    return Verdict(*about, grades=grades[:count], empty=next(iter(grades[count:]), None))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


Ask = Callable[[str, str, Any], float]
"""(prompt, answer, label) -> the score; it raises why there is none."""


def run_child(name: str, rows: int) -> None:
    go, result = os.dup(0), os.dup(1)
    # What the file prints goes to stderr, and it reads nothing.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(line: dict[str, Any]) -> None:
        os.write(result, json.dumps(line).encode() + b"\n")

    try:
        ask = asked_at(name) if is_url(name) else asked_of(name)
    except BaseException as error:  # noqa: BLE001 - a file may raise anything, also SystemExit
        say({"raised": told(error, name)})
    else:
        say({})
        while os.read(go, 1 << 16):
            pass
        for row in json.loads(os.fdopen(rows).read() or "[]"):
            try:
                score, cause = float(ask(*row)), ""
            except BaseException as error:  # noqa: BLE001 - as above
                score, cause = None, told(error, name)
            say({"score": score, "cause": cause})
    # Threads that the file has started delay nothing.
    os._exit(0)


def told(error: BaseException, name: str) -> str:
    """In one line, with the last line of the user's file that it passed."""
    file = os.path.abspath((file_and_function(name) or (name,))[0])
    stack = traceback.TracebackException.from_exception(error).stack
    lines = [frame.lineno for frame in stack if frame.filename == file]
    place = f", line {lines[-1]}" if lines else ""
    return as_told(f"{' '.join(f'{type(error).__name__}: {error}'.split())}{place}")


def asked_of(name: str) -> Ask:
    """A file with `reward_func`, or a grader in one; raises what the file raises."""
    named = file_and_function(name)
    module = load_file(named[0] if named else name)
    if named is None:
        function = in_openrlhf_form(module.reward_func)
        return lambda prompt, answer, label: reward_and_score(function([prompt + answer], [prompt], [label]))[1]
    grade = as_grader(getattr(module, named[1]))
    return lambda prompt, answer, label: grade(answer, label, prompt).score


def asked_at(url: str) -> Ask:
    """A server, with OpenRLHF's request, once."""
    import aiohttp

    async def post(prompt: str, answer: str, label: Any) -> Any:
        body = {"query": [prompt + answer], "prompts": [prompt], "labels": [label]}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            response.raise_for_status()
            return await response.json()

    return lambda prompt, answer, label: reward_and_score(asyncio.run(post(prompt, answer, label)))[1]


if __name__ == "__main__":
    run_child(sys.argv[1], int(sys.argv[2]))
