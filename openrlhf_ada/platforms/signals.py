"""Signals that end a command: SIGTERM and SIGHUP from outside, and one of our own by which a watch ends the run.

`kill -- -PGID`, Slurm and systemd send SIGTERM to many processes at once. So whatever a run meets after a signal, such
as a lost process, is the signal's doing.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

OURS = signal.SIGRTMAX
"""No process sends it: `interrupt_main` lets this one believe so."""

_PR_SET_PDEATHSIG = 1

_received: list[int] = []
"""Signals from outside, in the order of their handling."""

_undisturbed = False


class TerminatedError(BaseException):
    """A signal arrived, and everything was ended. A BaseException, so that `except Exception` cannot swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.strsignal(signum))
        self.signum = signum


def status_of(error: KeyboardInterrupt | TerminatedError) -> int:
    """The exit status of a command that was interrupted."""
    return 128 + (error.signum if isinstance(error, TerminatedError) else signal.SIGINT)


def status_after_loss() -> int:
    """The exit status where this process must end at once: a signal's, if one has come, else 1."""
    return 128 + _received[0] if _received else 1


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Raise TerminatedError for whatever the block raises after SIGTERM or SIGHUP, which a closed terminal sends and
    `nohup` ignores. Blocks may be nested."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, OURS)}
    if before[signal.SIGTERM] is not _on_signal:
        _received.clear()
    take_signals()
    try:
        yield
    except BaseException:
        if _received:
            raise TerminatedError(_received[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def take_signals() -> None:
    """Within `unwound_by_signals`: once more, after Ray's core has put a handler of its own there, or none."""
    for number in (signal.SIGTERM, signal.SIGHUP, OURS):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def _on_signal(number: int, _frame: object) -> None:
    if number != OURS:
        _received.append(number)
    if number == signal.SIGHUP:
        _leave_terminal()
    if not _undisturbed:
        # A blocked ray.get lets nothing through but KeyboardInterrupt.
        raise KeyboardInterrupt


def interrupt_main() -> None:
    """Raise KeyboardInterrupt in the main thread, within `unwound_by_signals`. SIGINT may be ignored, as in the
    background of a shell."""
    _thread.interrupt_main(OURS)


@contextmanager
def undisturbed() -> Iterator[None]:
    """While everything is ended: Ctrl-C is ignored, other signals are noted."""
    global _undisturbed
    before, _undisturbed = (signal.signal(signal.SIGINT, signal.SIG_IGN), _undisturbed), True
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        _undisturbed = before[1]


def _leave_terminal() -> None:
    """It is closed: writing to it would fail."""
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            if os.isatty(descriptor):
                os.dup2(nowhere.fileno(), descriptor)


def end_with_parent(number: int) -> None:
    """Linux sends this process the signal when its parent ends. One that has ended before is for the caller to see."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
