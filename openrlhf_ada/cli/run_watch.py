"""Watches the processes of a run: says who is waited for, gives up a run in which nothing happens, and explains a
process that was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ray.exceptions import RayError

from openrlhf_ada.cli.lost_processes import LostProcess, explain
from openrlhf_ada.cli.run_actors import RunActors
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.platforms.exits import Exits, kernel_kills
from openrlhf_ada.platforms.signals import interrupt_main
from openrlhf_ada.reporting.silence import Silence, Verdict

LOOK_S = 5.0
"""Seconds between two looks, and at most a third of --ada_silence."""

ENGINE_S = 120.0
"""How much longer than --ada_timeout an engine has: its own limits, which do not end the run, come first."""

STOP_S = 30.0


class RunWatch(threading.Thread):
    """Looks at the run's processes; `note` gets the lines for the user.

    At the end of its patience it interrupts the main thread, and `verdict` says why.
    """

    def __init__(
        self,
        settings: Settings,
        log_dir: str,
        note: Callable[[str], None],
    ) -> None:
        import ray

        super().__init__(daemon=True, name="ada-watch")
        self._look_s = min(LOOK_S, settings.silence / 3)
        engine_s = settings.timeout + ENGINE_S
        self._silence = Silence(settings.silence, settings.dead_after, engine_s)
        self._log_dir, self._note = log_dir, note
        self._node_id = ray.get_runtime_context().get_node_id()
        self._actors = RunActors(self._node_id, Path(log_dir))
        self._exits, self._kills = Exits(), kernel_kills()
        self._ended = threading.Event()
        self.verdict = ""

    def note_progress(self) -> None:
        """The trainer has told something."""
        self._silence.note_progress()

    def run(self) -> None:
        while not self._ended.wait(self._look_s):
            try:
                processes, here = self._actors.look()
            except RayError:
                # Ray ends, and the main thread says why.
                return
            self._exits.follow(here)
            verdict = self._silence.judge(processes)
            if verdict is not None and self._say(verdict):
                return

    def _say(self, verdict: Verdict) -> bool:
        if not verdict.is_end:
            self._note(verdict.text)
            return False
        self.verdict = verdict.text
        interrupt_main()
        return True

    def lost(self) -> list[LostProcess]:
        """Processes of this run whose death nobody asked for, the first one first. Ray must still be there."""
        return explain(self._node_id, self._log_dir, self._exits, self._kills)

    def stop(self, *, waits: bool) -> None:
        """A call into Ray after its shutdown would end the whole process. `waits`: False where Ray does not answer."""
        self._ended.set()
        if not waits:
            return
        self.join(STOP_S)
        self._exits.close()
