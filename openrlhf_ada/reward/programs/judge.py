"""Runs asserts in one process and the program that they test in another, so that the program sees no expected value.

Both are sandboxed. This process carries requests of the tests to the program and its replies back, one line each, and
keeps the time (`inside/judging.py`, `inside/answering.py`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from openrlhf_ada.reward.programs.asserts import Asserts
from openrlhf_ada.reward.programs.limits import ProgramLimits, TestTime
from openrlhf_ada.reward.programs.sandbox import Run, Sandbox, reply_of

MOST_CALLS = 10_000
"""Calls of the program by the tests of one answer. More are a loop that waits for the program."""

_SECONDS_TO_END = 1.0
"""For the tests, when the time of the program is over: with partial credit, they still count what passed."""

_ENDED = b'{"ended": true}\n'


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many tests passed and failed. `cause`: of the first failure. `forgeable`: the program has decided something.
    `not_turned`: why the tests cannot be run like this; then nothing else has a meaning."""

    passed: int = 0
    failed: int = 1
    cause: str = ""
    forgeable: bool = False
    not_turned: str = ""


class _EndedError(Exception):
    """The verdict is known before the tests have ended."""


def judge(
    sandbox: Sandbox, program: str, asserts: Asserts, limits: ProgramLimits, clock: TestTime, *, partial: bool
) -> Verdict:
    """What the tests say of the program: up to the first failure, or with `partial` all of them.

    Raises SandboxError.
    """
    job = {
        "kind": "judge",
        "tests": asserts.parts,
        "given": asserts.given,
        "remote": asserts.remote,
        "operators": asserts.has_operators,
        "reads_arguments": asserts.reads_arguments,
        "partial": partial,
    }
    # The clock of this process counts for both; a limit on CPU time could not grow with the number of tests.
    limits = replace(limits, cpu_seconds=int(limits.cpu_seconds * 1000))
    with contextlib.ExitStack() as stack:
        served = {"kind": "serve", "code": program, "before": asserts.given, "imports": asserts.imports}

        def serve() -> Run:
            return stack.enter_context(sandbox.start(served, limits, closes_stdin=False))

        answering = _Answering(serve, clock, partial=partial)
        tests = stack.enter_context(sandbox.start(job, limits, closes_stdin=False))
        try:
            return _relay(tests, answering, clock)
        except _EndedError as end:
            return Verdict(cause=str(end))


def _relay(tests: Run, answering: _Answering, clock: TestTime) -> Verdict:
    while True:
        line = tests.line(max(clock.limit(), _SECONDS_TO_END))
        if line is None:
            tests.check_ready()
            return Verdict(cause=tests.failure() or "ended early")
        message = reply_of(line)
        if message is None:
            return Verdict(cause="unreadable reply")
        if "ask" in message:
            tests.send(answering.reply_to(message["ask"]))
            continue
        verdict = Verdict(**message)
        if answering.cause and not verdict.not_turned:
            return replace(verdict, cause=answering.cause, failed=max(verdict.failed, 1))
        return verdict


class _Answering:
    """The program's process. With partial credit, one that ends is followed by another."""

    def __init__(self, start: Callable[[], Run], clock: TestTime, *, partial: bool) -> None:
        self._start, self._clock, self._partial = start, clock, partial
        self._names: list[dict[str, Any]] = []
        self._calls = 0
        self._is_loaded = False
        self.cause = ""
        self._run: Run | None = start()

    def reply_to(self, request: dict[str, Any]) -> bytes:
        """The line to send back. Raises _EndedError where the program has failed for good."""
        if "call" in request:
            self._calls += 1
            self._clock.add()
            if self._calls > MOST_CALLS:
                raise _EndedError("too many calls")
        if self._clock.is_over:
            return self._end("time limit of all tests")
        if self._run is None:
            self._run, self._is_loaded = self._start(), False
        if not self._is_loaded:
            self._load(self._run)
        if "name" in request:
            self._names.append(request)
        reply = self._ask(self._run, request)
        return self._end(self._cause_of(self._run)) if reply is None else reply

    def _load(self, run: Run) -> None:
        """Wait until the program is loaded; ask for its names again, so that its objects have their old numbers."""
        if run.line(self._clock.limit()) != b'{"loaded": true}\n':
            raise _EndedError(self._cause_of(run))
        self._is_loaded = True
        for request in self._names:
            if self._ask(run, request) is None:
                raise _EndedError(self._cause_of(run))

    def _ask(self, run: Run, request: dict[str, Any]) -> bytes | None:
        run.send(json.dumps(request).encode() + b"\n")
        return run.line(self._clock.limit())

    def _cause_of(self, run: Run) -> str:
        """Why it says nothing more, in the words of a run that has ended."""
        run.advance(self._clock.limit())
        return run.result().cause or "ended early"

    def _end(self, cause: str) -> bytes:
        self._clock.count(cause)
        self.cause = self.cause or cause
        self._run = None
        if not self._partial:
            raise _EndedError(cause)
        return _ENDED
