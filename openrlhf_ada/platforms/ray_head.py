"""Ray's own processes, where the run has started them: without them no process of the run finds another.

Ray waits a minute for its GCS to come back, and then ends the driver without a word of the run; for one that is
stopped it waits without end.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from openrlhf_ada.platforms.exits import how_it_ended
from openrlhf_ada.platforms.processes import children_named, is_stopped
from openrlhf_ada.platforms.signals import interrupt_main, status_after_loss
from openrlhf_ada.reporting.silence import CONTROLLER, STOPPED, WORKING, Process, Silence

if TYPE_CHECKING:
    # A bare installation has none.
    import psutil

NAMES = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}
LOOK_S = 1.0

GRACE_S = 10.0
"""From the interruption until this process ends at once: a call into Ray may wait without looking at signals."""

REFUSALS = 3
"""Looks in a row at which the GCS takes no connection: then it is lost. After SIGTERM its process stays."""


class RayHeadLostError(RuntimeError):
    """One of them was lost. Nothing can be asked of this Ray any more, not even to end."""


class RayHead(threading.Thread):
    """Watches them; `note` gets lines for the user. At the end of a run it interrupts the main thread, and `verdict`
    says why. In a cluster that was joined there is nothing to watch. `address`: of the GCS.

    `last_words`: what the user should read if this process must be ended at once.
    """

    def __init__(
        self,
        address: str,
        silence_s: float,
        dead_after_s: float,
        note: Callable[[str], None],
        last_words: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(daemon=True, name="ada-ray-head")
        self._silence, self._note = Silence(silence_s, dead_after_s, 0.0), note
        self._last_words = last_words
        self._processes = {child: NAMES[name] for child, name in children_named(NAMES)}
        host, _, port = address.rpartition(":")
        self._address, self._refusals = (host.strip("[]"), int(port)), 0
        self._ended = threading.Event()
        self.verdict = ""

    def run(self) -> None:
        with ExitStack() as after:
            ends = {os.pidfd_open(process.pid): process for process in self._processes}
            for descriptor in ends:
                after.callback(os.close, descriptor)
            while ends and not self._ended.is_set():
                ready, _, _ = select.select(list(ends), [], [], LOOK_S)
                if ready:
                    process = ends[ready[0]]
                    self._lose(f"{self._processes[process]} (pid {process.pid}) died: {_how_it_ended(ready[0])}")
                    return
                if self._is_refused():
                    self._lose(f"Ray's GCS takes no connections any more ({REFUSALS} times in a row)")
                    return
                verdict = self._silence.judge([_state_of(process, name) for process, name in self._processes.items()])
                if verdict is not None and verdict.is_end:
                    self._lose(verdict.text)
                    return
                if verdict is not None:
                    self._note(verdict.text)

    def _is_refused(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=LOOK_S).close()
        except ConnectionError:
            self._refusals += 1
        except TimeoutError:
            # It is stopped, or busy.
            pass
        else:
            self._refusals = 0
        return self._refusals >= REFUSALS

    def _lose(self, verdict: str) -> None:
        if not self._ended.is_set():
            self.verdict = verdict
            interrupt_main()
            if not self._ended.wait(GRACE_S):
                status = status_after_loss()
                self._note(f"{f'the run failed. {verdict}' if status == 1 else 'terminated'}\n{self._last_words()}")
                os._exit(status)

    def stop(self) -> None:
        """Call this before Ray is ended. One that is stopped goes on, since whoever asks it to end would wait."""
        self._ended.set()
        for process in self._processes:
            if is_stopped(process):
                process.resume()


def _state_of(process: psutil.Process, name: str) -> Process:
    does, stopped = (STOPPED, process.pid) if is_stopped(process) else (WORKING, 0)
    return Process(name, CONTROLLER, process.pid, does, stopped=stopped)


def _how_it_ended(descriptor: int) -> str:
    """How the process of a pidfd has ended. Its status stays for Ray, which has started it."""
    try:
        found = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Ray has asked for it already.
        found = None
    if found is None:
        return "its status is not known"
    return how_it_ended(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status, ())
