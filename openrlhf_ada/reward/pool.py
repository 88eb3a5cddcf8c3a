"""Graders in processes of their own: an answer that hangs or crashes its grader costs its time limit, never the run.

Why not an existing pool: `concurrent.futures` gives up all its work when one process dies. pebble does so when an idle
one dies, and its processes share two pipes and their locks. `multiprocessing` runs the parent's main module in each
process (here Ray's worker). A process with a socket of its own can be killed at any moment, and ends with its parent.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

from openrlhf_ada.config.flags import imports_of
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.reward.grade import CodeRules, TimedGrade
from openrlhf_ada.reward.worker import COSTLY, MAY_TAKE

START_S = 120.0
"""Seconds that a process has to import its grader. Many start at once when a run begins, some from slow disks."""

END_S = 1.0
"""Seconds that a process has to end after it has closed its socket."""

MOST_WORKERS = 8

AT_ONCE, ASIDE = 0.02, 0.08
"""Shares of the time limit, as processor time, of an answer whose grader may be interrupted: first in any process; if
that is not enough, again in the one that is for such answers, so that no other waits for them."""
TOO_COSTLY = "answer too costly"
AFTER_OTHERS = 5  # niceness

LONGEST_REPLY = 1 << 20
"""Bytes. Replies are short; a longer one comes from a broken process."""


class GraderError(RuntimeError):
    """A grader cannot be loaded, or its process does not start, so no answer could get a score."""


def default_workers() -> int:
    """2, so that one answer that hangs does not block the others; more on machines with more than 16 cores."""
    return min(max(2, (os.cpu_count() or 1) // 8), MOST_WORKERS)


@dataclass(frozen=True, slots=True)
class GradingLimits:
    """What grading one answer may take, and what programs may do. `seconds`: by the clock, for its label and then for
    the answer; a program with many tests may take longer (`code_time`). `memory_mib`: beyond what a process has when
    it is ready.
    """

    seconds: float = AdaConfig.reward_timeout
    memory_mib: int = AdaConfig.reward_memory
    code: CodeRules = field(default_factory=CodeRules)


def limits_of(config: Any) -> GradingLimits:
    """`config`: an AdaConfig, or another object with these flags as attributes."""
    rules = CodeRules(imports_of(config.code_imports), config.code_partial)
    return GradingLimits(config.reward_timeout, config.reward_memory, rules)


class GraderPool:
    """`workers` processes (None: `default_workers()`) with one grader: `package.module:function` or
    `path/to/file.py:function` (see `grade.Grader`). Any thread may call `grade`, which takes the next idle process.
    One more process starts with the first costly answer (`grade.may_be_interrupted`)."""

    def __init__(self, grader: str, limits: GradingLimits | None = None, workers: int | None = None) -> None:
        self.limits = limits or GradingLimits()
        self.num_workers = workers or default_workers()
        self._grader = grader
        self._idle: _Idle = queue.SimpleQueue()
        self._aside: _Idle = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._closed = False
        for _ in range(self.num_workers):
            self._add(self._idle)
        self._add(self._aside, AFTER_OTHERS)
        # Nobody closes a reward function's pool: it ends with its last reference or with this process.
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def grade(self, response: str, label: Any, prompt: str = "") -> TimedGrade:
        """Wait for an idle process, then for its grade, which takes the time limit at most. `label` must be JSON-able.

        Raises GraderError where the grader cannot be loaded, or the pool is closed; TypeError for another label.
        """
        start = time.perf_counter()
        asked = response, label, prompt
        grade = self._ask(self._idle, asked, AT_ONCE) or self._ask(self._aside, asked, ASIDE)
        return grade or TimedGrade(0.0, TOO_COSTLY, time.perf_counter() - start)

    def _ask(self, idle: _Idle, asked: tuple[str, Any, str], share: float) -> TimedGrade | None:
        """None where the answer is too costly for this share of the limit."""
        message = json.dumps([share * self.limits.seconds, *asked]).encode()
        worker = idle.get()
        try:
            if self._closed:
                raise GraderError("the grader's pool is closed")
            worker.make_ready()
            grade = worker.ask(message, self.limits.seconds)
        except BaseException:
            # GraderError, or an interrupt while it works: its next reply would belong to this call.
            self._replace(worker, idle)
            raise
        if worker.is_lost:
            self._replace(worker, idle)
        else:
            idle.put(worker)
        return grade

    def close(self) -> None:
        """End all processes, busy ones too. A waiting `grade` returns a grade without a score, or raises
        GraderError."""
        with self._lock:
            self._closed = True
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _add(self, idle: _Idle, niceness: int = 0) -> None:
        """Start one more process at once. If it cannot start now, its first answer tries again: one that works after
        others starts then."""
        worker = _Worker(self._grader, self.limits, niceness)
        with self._lock:
            if not self._closed:
                self._workers.add(worker)
                if not niceness:
                    worker.try_to_start()
        idle.put(worker)

    def _replace(self, worker: _Worker, idle: _Idle) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)
        self._add(idle, worker.niceness)


class _Worker:
    """One grading process and the socket to it."""

    def __init__(self, grader: str, limits: GradingLimits, niceness: int = 0) -> None:
        self._grader = grader
        self._limits = limits
        self.niceness = niceness
        self._channel: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._label_is_readable = False
        self._seconds = limits.seconds
        self.is_lost = False

    def try_to_start(self) -> str:
        """Returns why it could not be started; empty if it was."""
        if self._process is not None:
            return ""
        ours, theirs = socket.socketpair()
        # For a process that is stopped while it takes a message, or sends one.
        limit = struct.pack("ll", int(self._limits.seconds), int(self._limits.seconds % 1 * 1e6) + 1)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        arguments = [
            str(theirs.fileno()),
            self._grader,
            json.dumps(asdict(self._limits) | {"niceness": self.niceness}),
        ]
        # The grader also finds modules in paths that were added to this process's sys.path.
        path = os.pathsep.join(part for part in sys.path if part)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "openrlhf_ada.reward.worker", *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                # Processes that a grader starts are killed with it.
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            return f"its process cannot be started ({error.strerror})"
        finally:
            theirs.close()
        self._channel = Connection(ours.detach())
        return ""

    def make_ready(self) -> None:
        """Raises GraderError where the grader cannot be loaded."""
        if self._ready or self.try_to_start():
            return
        reply = self._exchange(None, START_S)
        problem = reply["error"] if isinstance(reply, dict) else reply
        if problem:
            raise GraderError(f"the grader {self._grader} cannot be used: {problem}")
        self._ready = True

    def ask(self, message: bytes, seconds: float) -> TimedGrade | None:
        """None where the answer is too costly for now."""
        start = time.perf_counter()
        self._label_is_readable = False
        reply = self._exchange(message, seconds)
        if isinstance(reply, dict):
            return None if COSTLY in reply else TimedGrade(**reply)
        self.is_lost = True
        too_slow = self._label_is_readable and reply == _too_slow(self._seconds)
        return TimedGrade(0.0 if too_slow else None, reply, time.perf_counter() - start)

    def _exchange(self, message: bytes | None, seconds: float) -> Any:
        """The reply (to a message); or, as text, why there is none."""
        problem = self.try_to_start()
        if problem or self._channel is None:
            return problem
        start, self._seconds = time.monotonic(), seconds
        try:
            if message is not None:
                self._channel.send_bytes(message)
            while self._channel.poll(max(start + self._seconds - time.monotonic(), 0.001)):
                reply = json.loads(self._channel.recv_bytes(LONGEST_REPLY))
                if not isinstance(reply, dict) or MAY_TAKE not in reply:
                    return reply
                if reply[MAY_TAKE] is not None:
                    self._seconds = float(reply[MAY_TAKE])
                    continue
                # The answer has the whole limit, however long its label took: a busy machine must not make it wrong.
                self._label_is_readable, start = True, time.monotonic()
        except ValueError:
            return "its process sent something that is no grade"
        except BlockingIOError:
            pass
        except (EOFError, OSError):
            return self._exit_reason()
        return _too_slow(self._seconds)

    def _exit_reason(self) -> str:
        if self._process is None:
            return "it has no process"
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "its process has closed its socket"
        return f"its process was killed ({signal.Signals(-code).name})" if code < 0 else f"its process ended ({code})"

    def kill(self) -> None:
        """Kill it and all processes that it has started. Whoever waits for its reply sees its end."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


_Idle = queue.SimpleQueue[_Worker]


def _too_slow(seconds: float) -> str:
    return f"time limit ({seconds:g} s)"


def _kill_all(workers: set[_Worker]) -> None:
    for worker in list(workers):
        worker.kill()
    workers.clear()
