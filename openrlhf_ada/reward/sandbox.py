"""Runs an untrusted program in a process of its own that can do little harm.

Each run is a fresh `python -I -S` (standard library only) in a new session and an empty folder that is deleted
afterwards, with an empty environment. Before the program starts, the child has given up, for good: network, new
processes, signals to others, capabilities, the system calls that change the machine (seccomp), and memory, CPU time
and file sizes beyond its limits (`sandbox_child.py`). Where that cannot be set up, a run raises SandboxError: no
program is ever run with less.

Files: where the kernel has Landlock, the program reads the interpreter and its libraries and writes its own folder.
Without Landlock, it can read and write whatever the grader's user can. Keep no secrets where rewards are computed.

Only the time limit bounds how many files a program writes to its folder, and how many threads it starts.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).with_name("sandbox_child.py")
_READY = b"ready\n"
_CHUNK_BYTES = 1 << 16
_START_SECONDS = 60.0
"""An interpreter that has not started by then never will: there is no score."""
_EXCEPTIONS = {
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
}
_CHILD_CAUSES = {
    "memory limit",
    "no such function",
    "result is not JSON",
    *(f"raised {name}" for name in _EXCEPTIONS),
}
"""The causes that a child may report. Causes are counted in the log, so a program must not invent new ones."""


class SandboxError(RuntimeError):
    """The sandbox could not be set up: nothing was run, and nothing is known of the program."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one run may use; `seconds_in_all` is for all runs that grade one answer.

    `seconds` is wall-clock time from when the program starts. `output_kib` holds for stdout and for a result,
    `file_mib` for each file. `memory_mib` is address space, which a thread takes by 8 MiB and more.
    """

    seconds: float = 6.0
    seconds_in_all: float = 8.0
    cpu_seconds: int = 6
    memory_mib: int = 1024
    output_kib: int = 1024
    file_mib: int = 16
    open_files: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"the limit {name} is {value}, expected more than 0")


DEFAULT_LIMITS = ProgramLimits()


def limits_within(seconds: float) -> ProgramLimits:
    """Limits that fit into `seconds` for grading one answer: a program that is too slow then gets a score of 0, and
    the grading process is not killed, which would give no score.
    """
    return ProgramLimits(seconds=0.6 * seconds, seconds_in_all=0.8 * seconds, cpu_seconds=math.ceil(0.6 * seconds))


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `cause` is "" if nothing went wrong; only then the other fields have a meaning."""

    cause: str
    stdout: bytes = b""
    reply: dict[str, Any] = field(default_factory=dict)


def run_program(code: str, stdin: str, limits: ProgramLimits = DEFAULT_LIMITS) -> RunResult:
    """Run `code` as a main program; `stdout` is what it wrote. A program that exits with another code than 0 failed.

    Raises SandboxError, as all runs do, where the sandbox cannot be set up.
    """
    return _run({"kind": "program", "code": code}, stdin.encode("utf-8", "surrogatepass"), limits)


def run_call(code: str, name: str, arguments: list[Any], limits: ProgramLimits = DEFAULT_LIMITS) -> RunResult:
    """Call the function `name` of `code`, or of its class Solution: `reply["result"]` is what it returned, as JSON."""
    result = _run({"kind": "call", "code": code, "name": name, "arguments": arguments}, b"", limits)
    return result if result.cause or "result" in result.reply else RunResult("ended early")


def run_tests(code: str, tests: str, limits: ProgramLimits = DEFAULT_LIMITS) -> RunResult:
    """Run `code` and then `tests` in one process: `cause` is "" only if the last test was reached.

    The child proves it by a random token. A program that inspects its own process can find the token, and one that
    returns objects equal to everything passes every `assert ==`: this is no proof against a program that cheats.
    """
    token = secrets.token_hex(16)
    result = _run({"kind": "tests", "code": code, "tests": tests, "token": token}, b"", limits)
    return result if result.cause or result.reply == {"token": token} else RunResult("ended early")


def _run(job: dict[str, Any], stdin: bytes, limits: ProgramLimits) -> RunResult:
    body = json.dumps({**job, "limits": asdict(limits), "parent": os.getpid()}).encode()
    to_send = len(body).to_bytes(8, "big") + body + stdin
    with tempfile.TemporaryDirectory(prefix="answer-") as folder, _child_in(folder) as child:
        exchange = _Exchange(child, to_send)
        exchange.run(limits)
    return _result_of(exchange, child.process.returncode)


@dataclass(frozen=True, slots=True)
class _Child:
    """A process that waits for its job, and our ends of its pipes; `ending` is readable once it has result."""

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    status: int
    ending: int


@contextlib.contextmanager
def _child_in(folder: str) -> Iterator[_Child]:
    """A child with its working folder. It and whatever is in its process group are dead when the block is left."""
    status, its_status = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, status)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_CHILD), str(its_status)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                pass_fds=(its_status,),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"the sandbox cannot start {sys.executable}: {error}") from error
        finally:
            os.close(its_status)
        stack.enter_context(process)  # closes its pipes and waits for it
        stack.callback(os.killpg, process.pid, signal.SIGKILL)  # before it is waited for: the number is still its own
        ending = os.pidfd_open(process.pid)
        stack.callback(os.close, ending)
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        yield _Child(process, process.stdin.fileno(), process.stdout.fileno(), status, ending)


class _Exchange:
    """Feeds and reads a child until it has ended, or has used up its time or its output."""

    def __init__(self, child: _Child, to_send: bytes) -> None:
        self.child = child
        self.unsent = memoryview(to_send)
        self.received = {child.stdout: bytearray(), child.status: bytearray()}
        self.stopped = ""

    @property
    def ready(self) -> bool:
        return self.received[self.child.status].startswith(_READY)

    def run(self, limits: ProgramLimits) -> None:
        """The time of the program counts from when it starts: a machine that is slow to start children is no cause."""
        child = self.child
        deadline, was_ready = time.monotonic() + _START_SECONDS, False
        waited_for = {child.stdout, child.status, child.ending}
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdin, selectors.EVENT_WRITE)
            for descriptor in waited_for:
                selector.register(descriptor, selectors.EVENT_READ)
            while waited_for and not self.stopped:
                for key, _ in selector.select(max(deadline - time.monotonic(), 0)):
                    if self._is_done(key.fd):
                        selector.unregister(key.fd)
                        waited_for.discard(key.fd)
                        if key.fd == child.stdin and child.process.stdin is not None:
                            child.process.stdin.close()
                if self.ready and not was_ready:
                    deadline, was_ready = time.monotonic() + limits.seconds, True
                if waited_for and time.monotonic() >= deadline:
                    self.stopped = "time limit"
                if max(map(len, self.received.values())) > limits.output_kib * 1024:
                    self.stopped = "output limit"

    def _is_done(self, descriptor: int) -> bool:
        """Move what there is through a descriptor that is ready; true where nothing more will come or go."""
        if descriptor == self.child.ending:
            return True
        if descriptor == self.child.stdin:
            try:
                self.unsent = self.unsent[os.write(descriptor, self.unsent[:_CHUNK_BYTES]) :]
            except BrokenPipeError:  # a program need not read its stdin
                return True
            return not self.unsent
        data = os.read(descriptor, _CHUNK_BYTES)
        self.received[descriptor] += data
        return not data


def _result_of(exchange: _Exchange, exit_code: int) -> RunResult:
    stdout, status = (bytes(exchange.received[pipe]) for pipe in (exchange.child.stdout, exchange.child.status))
    if not exchange.ready:
        said = status.decode(errors="replace").strip() or exchange.stopped or f"it ended with exit code {exit_code}"
        raise SandboxError(f"the sandbox cannot be set up, and nothing was run: {said}")
    if exchange.stopped:
        return RunResult(exchange.stopped)
    if exit_code == -signal.SIGXCPU:
        return RunResult("time limit")
    if exit_code < 0:
        return RunResult(f"killed by signal {-exit_code}")
    try:
        reply = json.loads(status[len(_READY) :] or b"{}")
    except (ValueError, RecursionError):
        return RunResult("unreadable reply")
    if not isinstance(reply, dict):
        return RunResult("unreadable reply")
    if "cause" in reply:
        return RunResult(str(reply["cause"]) if str(reply["cause"]) in _CHILD_CAUSES else "unreadable reply")
    return RunResult("exit code not 0") if exit_code else RunResult("", stdout, reply)
