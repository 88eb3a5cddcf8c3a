"""A process that grades: `python -m openrlhf_ada.reward.worker <descriptor> <grader> <limits as JSON>`.

It reads (response, label) as JSON and answers with a grade as JSON, one at a time, until its parent closes the socket
or dies. Before the grade it may send LABEL_IS_READABLE, and {"may_take": seconds}. Nothing is pickled.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import pkgutil
import resource
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from openrlhf_ada.reward.channel import Channel, ChannelError
from openrlhf_ada.reward.grade import (
    CODE_RULES_VARIABLE,
    SECONDS_VARIABLE,
    Grade,
    Grader,
    UnusableLabelError,
    ask_for_time_with,
    prepare,
    tell_when_label_is_readable,
)

LABEL_IS_READABLE = b'"readable"'
"""What the parent is told as soon as the grader has read the label."""

MAY_TAKE = "may_take"
"""The key of a message to the parent: seconds that this answer may take in all."""

LONGEST_CAUSE = 500
"""Characters."""


def load_grader(name: str) -> Grader:
    """`package.module:function`, or `path/to/file.py:function`. Raises ImportError, AttributeError or OSError."""
    place, _, function = name.rpartition(":")
    if not place.endswith(".py"):
        return pkgutil.resolve_name(name)
    spec = importlib.util.spec_from_file_location("grader", place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def main(arguments: list[str]) -> int:
    descriptor, name, limits = arguments[0], arguments[1], json.loads(arguments[2])
    os.environ[SECONDS_VARIABLE] = str(limits["seconds"])
    os.environ[CODE_RULES_VARIABLE] = json.dumps(limits["code"])
    channel = Channel(socket.socket(fileno=int(descriptor)))
    # Ctrl-C reaches the whole terminal; this process ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        grader = load_grader(name)
        prepare()
    except Exception as error:  # noqa: BLE001 - the parent raises it
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return 1
    limit_memory(limits["memory_mib"])
    progress = Progress(channel)
    tell_when_label_is_readable(progress.report_readable_label)
    ask_for_time_with(progress.ask_for)
    channel.send(b'{"error": ""}')
    while True:
        try:
            message = channel.receive()
        except ChannelError:
            return 0
        # As long for the label.
        limit_cpu(2 * limits["seconds"])
        progress.label_is_readable = False
        try:
            channel.send(json.dumps(answer(grader, message, progress)).encode())
        except ChannelError:
            # Nobody is there to be told.
            return 0


@dataclass(slots=True)
class Progress:
    """What the grader has said of the label of the answer that it grades now."""

    channel: Channel
    label_is_readable: bool = False

    def report_readable_label(self) -> None:
        self.label_is_readable = True
        self.channel.send(LABEL_IS_READABLE)

    def ask_for(self, seconds: float) -> None:
        limit_cpu(seconds)
        self.channel.send(json.dumps({MAY_TAKE: seconds}).encode())


def answer(grader: Grader, message: bytes, progress: Progress) -> dict[str, Any]:
    """A grade as plain values. An exception of the grader becomes the cause of having no score; but an answer that
    exceeds a limit is wrong where the label was readable."""
    start = time.perf_counter()
    score, cause, forgeable = None, "", False
    try:
        response, label = json.loads(message)
        grade = grader(response, label)
        score, cause, forgeable = valid_score(grade), grade.cause[:LONGEST_CAUSE], grade.forgeable
    except UnusableLabelError as error:
        cause = f"unusable label: {error}"
    except (MemoryError, RecursionError) as error:
        score = 0.0 if progress.label_is_readable else None
        cause = "memory limit" if isinstance(error, MemoryError) else "recursion limit"
    except Exception as error:  # noqa: BLE001 - the parent reports it as the cause
        cause = f"{type(error).__name__}: {error}"[:LONGEST_CAUSE]
    return {"score": score, "cause": cause, "seconds": time.perf_counter() - start, "forgeable": forgeable}


def valid_score(grade: Grade) -> float:
    """Raises TypeError for what is no grade, and ValueError for a score that is no number in [0, 1]."""
    if not hasattr(grade, "score"):
        raise TypeError(f"the grader returned a {type(grade).__name__}, expected Grade(score)")
    score = float(grade.score)
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"the grader gave the score {grade.score!r}, which is not in [0, 1]")
    return score


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
