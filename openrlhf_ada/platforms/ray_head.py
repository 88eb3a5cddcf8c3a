"""Ray's own processes, where the run has started them: without them no process of the run finds another.

Ray waits a minute for its GCS to come back, and then ends the driver without a word of the run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from openrlhf_ada.platforms.processes import children_named, how_it_ended
from openrlhf_ada.platforms.signals import interrupt_main, status_after_loss

NAMES = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}
LOOK_S = 0.2

GRACE_S = 10.0
"""From the interruption until this process ends at once: a call into Ray may wait without looking at signals."""


class RayHeadLostError(RuntimeError):
    """One of them was lost. Nothing can be asked of this Ray any more, not even to end."""


class RayHead(threading.Thread):
    """Watches them. When one ends it interrupts the main thread, and `verdict` says why. In a cluster that was joined
    there is nothing to watch.

    `note` gets lines for the user; `last_words`: what to read if this process must be ended at once.
    """

    def __init__(self, note: Callable[[str], None], last_words: Callable[[], str] = lambda: "") -> None:
        super().__init__(daemon=True, name="ada-ray-head")
        self._note, self._last_words = note, last_words
        self._pids = {child.pid: NAMES[name] for child, name in children_named(NAMES)}
        self._ended = threading.Event()
        self.verdict = ""

    def run(self) -> None:
        while self._pids and not self._ended.wait(LOOK_S):
            for pid, name in self._pids.items():
                if how := _end_of(pid):
                    self._lose(f"{name} (pid {pid}) died: {how}")
                    return

    def _lose(self, verdict: str) -> None:
        if self._ended.is_set():
            return
        self.verdict = verdict
        interrupt_main()
        if not self._ended.wait(GRACE_S):
            status = status_after_loss()
            self._note(f"{f'the run failed. {verdict}' if status == 1 else 'terminated'}\n{self._last_words()}")
            os._exit(status)

    def stop(self) -> None:
        """Call this before Ray is ended."""
        self._ended.set()


def _end_of(pid: int) -> str:
    """How a child ended; empty while it runs. Its status stays for Ray, which has started it."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Ray has asked for it already.
        return "its status is not known"
    if found is None:
        return ""
    return how_it_ended(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)
