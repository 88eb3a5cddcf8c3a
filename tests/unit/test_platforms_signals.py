"""Signals end a block, and what it meets afterwards is their doing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from openrlhf_ada.platforms.signals import (
    TerminatedError,
    interrupt_main,
    status_after_loss,
    status_of,
    take_signals,
    undisturbed,
    unwound_by_signals,
)


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    """`nohup` may have ignored SIGHUP for the tests."""
    before = {which: signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    signal.signal(signal.SIGHUP, before[signal.SIGHUP])


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_unwinds_nested_blocks(sent: signal.Signals, status: int) -> None:
    with pytest.raises(TerminatedError) as error, unwound_by_signals(), unwound_by_signals():
        os.kill(os.getpid(), sent)
        time.sleep(10)
    assert status_of(error.value) == status == status_after_loss()


def test_nohup_goes_on() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with unwound_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)


def test_a_process_lost_after_a_signal_is_not_the_cause() -> None:
    """Slurm sends SIGTERM to all processes: some end before this one has heard of it."""
    with pytest.raises(TerminatedError), unwound_by_signals():
        try:
            raise ConnectionError("Ray's GCS takes no connections any more")
        finally:
            with undisturbed():
                for sent in (signal.SIGTERM, signal.SIGINT):
                    os.kill(os.getpid(), sent)
                time.sleep(0.01)


def test_a_watch_interrupts_without_a_signal() -> None:
    with pytest.raises(KeyboardInterrupt) as error, unwound_by_signals():
        interrupt_main()
        time.sleep(0.01)
    assert status_of(error.value) == 130 and status_after_loss() == 1


def test_a_handler_that_somebody_has_replaced_is_taken_back() -> None:
    with pytest.raises(TerminatedError), unwound_by_signals():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
