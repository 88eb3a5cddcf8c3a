"""Runs an untrusted program in a process of its own that can do little harm.

Each run is a fork of a template (`template.py`), with the standard library and the modules that are allowed,
in a new session and an empty folder that is deleted afterwards, with an empty environment. Before the program starts,
the child has given up, for good: network, new processes, signals to others, capabilities, the system calls that change
the machine (seccomp), and memory, CPU time and file sizes beyond its limits (`child.py`). Where that cannot be
set up, a run raises SandboxError: no program is ever run with less.

Files: where the kernel has Landlock, or bubblewrap is installed, the program reads the interpreter and its libraries
and writes its own folder. Without both, it can read and write whatever the grader's user can, which a warning says:
keep no secrets where rewards are computed. The template looks every 20 ms at what is in the folder, and ends a program
that writes too much.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import secrets
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from openrlhf_ada.reward.programs import template
from openrlhf_ada.reward.programs.limits import ProgramLimits
from openrlhf_ada.reward.programs.template import START_SECONDS, Child, SandboxError

_READY = b"ready\n"
_CHUNK_BYTES = 1 << 16
_CHILD_CAUSES = {"memory limit", "no such function", "result is not JSON"} | {
    f"raised {name}"
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
"""The causes that a child may report. Causes are counted in the log, so a program must not invent new ones."""
_DEFAULT_LIMITS = ProgramLimits()


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `cause` is "" if nothing went wrong; only then the other fields have a meaning."""

    cause: str
    stdout: bytes = b""
    reply: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Runs programs that may import the standard library and `imports`. Every method raises SandboxError where the
    sandbox cannot be set up.
    """

    imports: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Start what runs programs, if it does not run yet."""
        template.template_of(self.imports)

    def run_program(self, code: str, stdin: str, limits: ProgramLimits = _DEFAULT_LIMITS) -> RunResult:
        """Run `code` as a main program; `stdout` is what it wrote. One that exits with another code than 0 failed."""
        return self._run({"kind": "program", "code": code}, stdin.encode("utf-8", "surrogatepass"), limits)

    def run_call(
        self, code: str, name: str, arguments: list[Any], limits: ProgramLimits = _DEFAULT_LIMITS
    ) -> RunResult:
        """Call the function `name` of `code`, or of its class Solution: `reply["result"]` is what it returned, as
        JSON."""
        result = self._run({"kind": "call", "code": code, "name": name, "arguments": arguments}, b"", limits)
        return result if result.cause or "result" in result.reply else RunResult("ended early")

    def run_tests(
        self, code: str, tests: str, limits: ProgramLimits = _DEFAULT_LIMITS, before: list[str] | None = None
    ) -> RunResult:
        """Run `code` and then `tests` in one process: `cause` is "" only if the last test was reached, which the child
        proves by a random token. A program that cheats can find the token, or equal everything: see `judge.judge`."""
        token = secrets.token_hex(16)
        job = {"kind": "tests", "code": code, "tests": tests, "token": token, "before": before or []}
        result = self._run(job, b"", limits)
        return result if result.cause or result.reply == {"token": token} else RunResult("ended early")

    def _run(self, job: dict[str, Any], stdin: bytes, limits: ProgramLimits) -> RunResult:
        with self.start(job, limits, stdin) as run:
            run.advance(limits.seconds)
        return run.result()

    @contextlib.contextmanager
    def start(
        self, job: dict[str, Any], limits: ProgramLimits, stdin: bytes = b"", *, closes_stdin: bool = True
    ) -> Iterator[Run]:
        """A run of `job`. Its process has ended and its folder is gone when the block is left."""
        child = template.fork(self.imports, limits)
        body = json.dumps(job).encode()
        run = Run(child, len(body).to_bytes(8, "big") + body + stdin, limits, closes_stdin=closes_stdin)
        try:
            yield run
        finally:
            run.end()


class Run:
    """Feeds and reads a child until it has ended, or has used up its time or its output."""

    def __init__(self, child: Child, to_send: bytes, limits: ProgramLimits, *, closes_stdin: bool = True) -> None:
        self.child = child
        self.limits = limits
        self.unsent = memoryview(to_send)
        self.received = {child.stdout: bytearray(), child.status: bytearray()}
        self.stopped = ""
        self.ready = False
        self.exit_code = 0
        self.has_ended = False
        self.closes_stdin = closes_stdin
        self._waited_for = {child.stdout, child.status, child.events.fileno()}
        self._selector = selectors.DefaultSelector()
        for descriptor in self._waited_for:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._sends = False

    def advance(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Go on until `until` holds or the run has ended; a run that takes longer is stopped.

        The time of the program counts from when it starts: a machine that is slow to start children is no cause.
        """
        was_ready = self.ready
        deadline = time.monotonic() + (seconds if was_ready else START_SECONDS)
        while self._waited_for and not self.stopped and not until():
            self._register_stdin()
            for key, _ in self._selector.select(max(deadline - time.monotonic(), 0)):
                if self._is_done(key.fd):
                    self._selector.unregister(key.fd)
                    self._waited_for.discard(key.fd)
            if self.ready and not was_ready:
                deadline, was_ready = time.monotonic() + seconds, True
            if self._waited_for and time.monotonic() >= deadline and not until():
                self.stopped = "time limit"
            if max(map(len, self.received.values())) > self.limits.output_kib * 1024:
                self.stopped = "output limit"

    def _register_stdin(self) -> None:
        if self.child.stdin < 0 or self._sends:
            return
        if self.unsent:
            self._selector.register(self.child.stdin, selectors.EVENT_WRITE)
            self._sends = True
        elif self.closes_stdin:
            os.close(self.child.stdin)
            self.child.stdin = -1

    def _is_done(self, descriptor: int) -> bool:
        """Move what there is through a descriptor that is ready; true where nothing more will come or go."""
        if descriptor == self.child.stdin:
            return self._send()
        if descriptor == self.child.events.fileno():
            self._read_end()
            return True
        data = os.read(descriptor, _CHUNK_BYTES)
        received = self.received[descriptor]
        received += data
        if descriptor == self.child.status and not self.ready and received.startswith(_READY):
            del received[: len(_READY)]
            self.ready = True
        return not data

    def send(self, data: bytes) -> None:
        """More for its stdin, with the next `advance`."""
        self.unsent = memoryview(bytes(self.unsent) + data)

    def line(self, seconds: float) -> bytes | None:
        """The next line of its status; None where it has ended or was stopped before."""
        status = self.received[self.child.status]
        self.advance(seconds, lambda: self.ready and b"\n" in status)
        end = status.find(b"\n") + 1 if self.ready else 0
        line = bytes(status[:end])
        del status[:end]
        return line or None

    def _send(self) -> bool:
        try:
            self.unsent = self.unsent[os.write(self.child.stdin, self.unsent[:_CHUNK_BYTES]) :]
        except BrokenPipeError:  # a program need not read its stdin
            self.unsent, self.closes_stdin = memoryview(b""), True
        self._sends = bool(self.unsent)
        return not self._sends

    def end(self) -> None:
        """Kill the child and wait until its folder is gone."""
        self.child.kill()
        self._selector.close()
        self.child.events.settimeout(START_SECONDS)
        if not self.has_ended:
            self._read_end()
        self.child.close()

    def _read_end(self) -> None:
        message = self.child.events.recv(_CHUNK_BYTES)
        ended = json.loads(message) if message else {"exit": None, "stopped": ""}
        self.exit_code, self.has_ended = ended["exit"], True
        self.stopped = self.stopped or ended["stopped"]

    def check_ready(self) -> None:
        """Raises SandboxError if the child could not be confined."""
        if not self.ready:
            status = bytes(self.received[self.child.status])
            said = status.decode(errors="replace").strip() or self.stopped or f"exit code {self.exit_code}"
            raise SandboxError(f"the sandbox cannot be set up, and nothing was run: {said}")
        if self.has_ended and self.exit_code is None:
            raise SandboxError("the sandbox's template has ended")

    def failure(self) -> str:
        """Why it has ended; empty for one that exited by itself, with code 0 or with a cause."""
        self.check_ready()
        if self.stopped:
            return self.stopped
        if self.exit_code == -signal.SIGXCPU:
            return "time limit"
        return f"killed by signal {-self.exit_code}" if self.exit_code < 0 else ""

    def result(self) -> RunResult:
        """Of a run that has ended."""
        cause = self.failure()
        if cause:
            return RunResult(cause)
        stdout, status = (bytes(self.received[pipe]) for pipe in (self.child.stdout, self.child.status))
        reply = reply_of(status)
        if reply is None:
            return RunResult("unreadable reply")
        if "cause" in reply:
            return RunResult(str(reply["cause"]) if str(reply["cause"]) in _CHILD_CAUSES else "unreadable reply")
        return RunResult("exit code not 0") if self.exit_code else RunResult("", stdout, reply)


def reply_of(status: bytes) -> dict[str, Any] | None:
    """What a child has reported; None for what is no JSON object."""
    try:
        reply = json.loads(status or b"{}")
    except (ValueError, RecursionError):
        return None
    return reply if isinstance(reply, dict) else None


run_program = Sandbox().run_program
