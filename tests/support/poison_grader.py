"""A grader that does whatever a response asks for: every way in which one can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from openrlhf_ada.reward.grade import Grade, TooCostlyError, UnusableLabelError, label_is_readable, may_be_interrupted


def _spin() -> None:
    while True:
        pass


def _eat() -> None:
    pieces: list[bytes] = []
    while True:
        pieces.append(bytes(1 << 16))


def _recurse() -> None:
    _recurse()


def _raise(error: BaseException) -> None:
    raise error


def _spin_on() -> None:
    """As in a library that goes on after any exception."""
    try:
        _spin()
    except BaseException:  # noqa: BLE001 - what some libraries do
        _spin()


READABLE, SLOW_LABEL, COSTLY = "readable: ", "slow label: ", "costly: "

SLOW_S = 0.35

POISONS: dict[str, Callable[[], Any]] = {
    "spin": _spin,
    "spin on": _spin_on,
    # Costly at first, and where it is put aside it does not end.
    "put off": lambda: time.sleep(1000) if os.nice(0) else _raise(TooCostlyError()),
    "sleep": lambda: time.sleep(1000),
    "one long C call": lambda: 9 ** (9**9),
    "memory": lambda: bytes(1 << 40),
    "many small pieces of memory": _eat,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "recursion": _recurse,
    "raise": lambda: _raise(KeyError("x")),
    "bad label": lambda: _raise(UnusableLabelError("nothing to compare with")),
    "not a number": lambda: Grade(float("nan")),
    "above one": lambda: Grade(2.0),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "half a message": lambda: (os.write(int(sys.argv[1]), b"\0\0"), time.sleep(1000)),
    "no message": lambda: os.write(int(sys.argv[1]), b"\0\0\0\3abc"),
    "a child": lambda: Grade(1.0, str(subprocess.Popen(["sleep", "100"]).pid)),
    "pid": lambda: Grade(1.0, str(os.getpid())),
}


def grade(response: str, label: Any) -> Grade:
    """`readable: ` before a poison: the label has been read before the response does its worst. `slow label: ` before
    an answer: its label takes SLOW_S, and the answer as long."""
    if response.startswith(SLOW_LABEL):
        response = response.removeprefix(SLOW_LABEL)
        time.sleep(SLOW_S)
        label_is_readable()
        time.sleep(SLOW_S)
    if response.startswith(READABLE):
        response = response.removeprefix(READABLE)
        label_is_readable()
    if response.startswith(COSTLY):
        response = response.removeprefix(COSTLY)
        may_be_interrupted()
    if response in POISONS:
        return POISONS[response]()
    return Grade(float(response == label), "" if response == label else "wrong answer")
