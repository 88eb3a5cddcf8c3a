"""A process that grades: `python -m openrlhf_ada.reward.worker <descriptor> <grader> <limits as JSON>`.

It reads (processor seconds, response, label, prompt) as JSON and answers with a grade as JSON, or {"costly": true},
one at a time, until its parent closes the socket or dies. Before that it may send {"may_take": seconds}, null when
the label has been read. Nothing is pickled.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import pkgutil
import resource
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from openrlhf_ada.reward.forms import as_grader
from openrlhf_ada.reward.grade import (
    CODE_RULES_VARIABLE,
    SECONDS_VARIABLE,
    Grader,
    TooCostlyError,
    UnusableLabelError,
    listen,
    prepare,
)

MAY_TAKE = "may_take"
"""The key of a message to the parent: seconds that this answer may take in all; None when its label has been read."""

COSTLY = "costly"
"""The key of a message to the parent, in place of a grade: the answer has used up its processor time."""

LONGEST_CAUSE = 500  # characters
REPEAT_S = 0.1
"""Processor seconds from one interrupt to the next."""


def load_file(path: str) -> ModuleType:
    """As OpenRLHF loads it, without sys.modules. Raises what the file raises."""
    spec = importlib.util.spec_from_file_location("reward_func", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_grader(name: str) -> Grader:
    """`package.module:function` or `path/to/file.py:function`, as `forms.as_grader`. Raises ImportError,
    AttributeError or OSError."""
    place, _, function = name.rpartition(":")
    return as_grader(getattr(load_file(place), function) if place.endswith(".py") else pkgutil.resolve_name(name))


def main(arguments: list[str]) -> int:
    descriptor, name, limits = arguments[0], arguments[1], json.loads(arguments[2])
    os.environ[SECONDS_VARIABLE] = str(limits["seconds"])
    os.environ[CODE_RULES_VARIABLE] = json.dumps(limits["code"])
    parent = Connection(int(descriptor))
    # Ctrl-C reaches the whole terminal; this process ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        grader = load_grader(name)
        prepare()
    except Exception as error:  # noqa: BLE001 - the parent raises it
        parent.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return 1
    limit_memory(limits["memory_mib"])
    os.nice(limits["niceness"])
    progress = Progress(parent)
    listen(progress.tell, progress.limit)
    signal.signal(signal.SIGPROF, progress.interrupt)
    # When the parent is gone, nobody is there to be told.
    with suppress(EOFError, OSError):
        parent.send_bytes(b'{"error": ""}')
        while True:
            message = parent.recv_bytes()
            # As long for the label.
            limit_cpu(2 * limits["seconds"])
            progress.label_is_readable = False
            try:
                reply = answer(grader, message, progress)
            except TooCostlyError:
                progress.end_limit()
                reply = {COSTLY: True}
            parent.send_bytes(json.dumps(reply).encode())
    return 0


@dataclass(slots=True)
class Progress:
    """What the grader has said of the label of the answer that it grades now."""

    parent: Connection
    label_is_readable: bool = False
    processor_s: float = 0.0
    is_interruptible: bool = False

    def limit(self) -> None:
        """Interrupt what takes longer from now on. Again and again, since a library may keep the exception."""
        self.is_interruptible = True
        signal.setitimer(signal.ITIMER_PROF, self.processor_s, REPEAT_S)

    def end_limit(self) -> None:
        self.is_interruptible = False
        signal.setitimer(signal.ITIMER_PROF, 0)

    def interrupt(self, *signal_and_frame: object) -> None:
        if self.is_interruptible:
            raise TooCostlyError

    def tell(self, seconds: float | None) -> None:
        if seconds is None:
            self.label_is_readable = True
        else:
            limit_cpu(seconds)
        self.parent.send_bytes(json.dumps({MAY_TAKE: seconds}).encode())


def answer(grader: Grader, message: bytes, progress: Progress) -> dict[str, Any]:
    """A grade as plain values. An exception of the grader becomes the cause of having no score; but an answer that
    exceeds a limit is wrong where the label was readable."""
    start = time.perf_counter()
    score, cause, others = None, "", {}
    try:
        progress.processor_s, *asked = json.loads(message)
        grade = grader(*asked)
        if not 0.0 <= grade.score <= 1.0:
            raise ValueError(f"the grader gave the score {grade.score!r}, which is not in [0, 1]")
        score, cause = float(grade.score), grade.cause[:LONGEST_CAUSE]
        others = {"forgeable": grade.forgeable, "reward": grade.reward}
    except UnusableLabelError as error:
        cause = f"unusable label: {error}"
    except (MemoryError, RecursionError) as error:
        score = 0.0 if progress.label_is_readable else None
        cause = "memory limit" if isinstance(error, MemoryError) else "recursion limit"
    except Exception as error:  # noqa: BLE001 - the parent reports it as the cause
        cause = f"{type(error).__name__}: {error}"[:LONGEST_CAUSE]
    finally:
        progress.end_limit()
    return {"score": score, "cause": cause, "seconds": time.perf_counter() - start, **others}


def limit_memory(mib: int) -> None:
    """Allow `mib` MiB beyond the current address space. Linux ignores a limit on resident memory."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        now = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + (mib << 20), resource.RLIM_INFINITY))


def limit_cpu(seconds: float) -> None:
    """The parent kills what takes too long by the clock; this limit holds if the parent is gone."""
    used = math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
