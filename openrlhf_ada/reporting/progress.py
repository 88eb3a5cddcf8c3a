"""Shows a training run in the driver's terminal, from events that another thread feeds.

On a terminal: one live line (phase, bar, time left) under one line per finished step. Elsewhere: plain lines, no
control characters, at most one line per step and one per evaluation.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger(__name__)

RECENT_STEPS = 8
"""The time left is the mean of this many latest steps, times the steps to go: early steps are slower (warm-up)."""


class Display(Protocol):
    """Where progress is shown. `is_live`: it has a line that `status` changes in place."""

    is_live: bool

    def line(self, text: str) -> None: ...
    def status(self, text: str, left: str, done: int, total: int | None) -> None: ...
    def close(self) -> None: ...


class _PlainDisplay:
    """Lines only; the live status is not shown."""

    is_live = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def status(self, text: str, left: str, done: int, total: int | None) -> None:
        pass

    def close(self) -> None:
        pass


class _LiveDisplay:
    """A rich progress bar, which also keeps the output of others (`print`, stderr) above itself."""

    is_live = True

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        # Highlighting would colour every number of a step's line.
        console = Console(file=stream, force_terminal=True, highlight=False, soft_wrap=True)
        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[left]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self._task: TaskID = self._progress.add_task("starting", total=None, left="")
        self._progress.start()

    def line(self, text: str) -> None:
        self._progress.console.print(text, markup=False)

    def status(self, text: str, left: str, done: int, total: int | None) -> None:
        self._progress.update(self._task, description=text, completed=done, total=total, left=left)

    def close(self) -> None:
        self._progress.stop()


def open_display(stream: TextIO) -> Display:
    """Live on a terminal, plain lines elsewhere."""
    # Not rich's own test: it honours FORCE_COLOR, and would write control characters into a log file.
    live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return _LiveDisplay(stream) if live else _PlainDisplay(stream)


class ProgressView:
    """A context manager that shows the events given to `handle`; leaves the terminal as it was, errors included.

    Events are dicts: {"type": "phase", "text"}, {"type": "sampling", "done", "total"}, {"type": "step", "step",
    "max_steps", "metrics"}, {"type": "eval", "step", "accuracy", "ci95"} (ci95 may be None) and {"type": "done",
    "run_dir"}.

    Args:
        stream: where to write; standard error if None.
        clock: seconds, monotonic; for steps whose metrics have no "ada/step_s".
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        # Reentrant: a signal handler may run in the thread that is just showing an event.
        self._lock = threading.RLock()
        self._display: Display | None = None
        self._phase = "starting"
        self._step = 0
        self._max_steps: int | None = None
        self._sampling = False
        self._last_time = 0.0
        self._durations: deque[float] = deque(maxlen=RECENT_STEPS)

    def __enter__(self) -> ProgressView:
        self._display = open_display(self._stream)
        self._last_time = self._clock()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            display, self._display = self._display, None
            if display is not None:
                display.close()

    def handle(self, event: Mapping[str, Any]) -> None:
        """Show one event; callable from any thread. Events after the end are left out: a feeding thread may be late.

        Raises:
            ValueError: an unknown type of event.
            KeyError: an event without one of its entries.
        """
        with self._lock:
            if self._display is None:
                logger.debug("event after the end of the view: %s", event)
                return
            match event["type"]:
                case "phase":
                    self._on_phase(self._display, event["text"])
                case "sampling":
                    self._sampling = True
                    self._phase = f"sampling {event['done']}/{event['total']}"
                case "step":
                    self._on_step(self._display, event["step"], event["max_steps"], event["metrics"])
                case "eval":
                    self._display.line(evaluation_line(event["step"], event["accuracy"], event["ci95"]))
                case "note":
                    self._display.line(event["text"])
                case "done":
                    self._display.line(f"record and report: {event['run_dir']}")
                case other:
                    raise ValueError(
                        f"event type {other!r} is unknown: expected phase, sampling, step, eval, note or done"
                    )
            self._show_status(self._display)

    def _on_phase(self, display: Display, text: str) -> None:
        """A phase is a line of its own before the first step and after the last; in between it would repeat."""
        between = (self._sampling or self._step > 0) and self._step != self._max_steps
        if text != self._phase and not between:
            display.line(text)
        self._phase = text

    def _on_step(self, display: Display, step: int, max_steps: int, metrics: Mapping[str, Any]) -> None:
        now = self._clock()
        seconds = metrics.get("ada/step_s")
        self._durations.append(now - self._last_time if seconds is None else seconds)
        self._last_time = now
        self._step, self._max_steps = step, max_steps
        display.line(step_line(step, max_steps, metrics, self._durations[-1]))

    def _show_status(self, display: Display) -> None:
        if self._max_steps is None:
            display.status(self._phase, "", 0, None)
            return
        mean_s = sum(self._durations) / len(self._durations)
        if self._step >= self._max_steps:
            # No total: a full bar would stop the clock while the model is saved and evaluated.
            display.status(self._phase, "", 0, None)
            return
        left = time_left(mean_s * (self._max_steps - self._step))
        display.status(f"step {self._step + 1}/{self._max_steps}: {self._phase}", left, self._step, self._max_steps)


def step_line(step: int, max_steps: int, metrics: Mapping[str, Any], seconds: float) -> str:
    """The line of a finished step. Metrics that it lacks (with adaptive sampling off) are left out."""
    width = len(str(max_steps))
    parts = [f"step {step:>{width}}/{max_steps}"]
    if (right := metrics.get("ada/first_wave_metric_mean")) is not None:
        parts.append(f"right {right:>4.0%}")
    if (signal := metrics.get("ada/signal_share")) is not None:
        uniform = metrics.get("ada/signal_share_uniform")
        parts.append(f"signal {signal:>4.0%}" + ("" if uniform is None else f" (uniform {uniform:>4.0%})"))
    if (rollouts := metrics.get("ada/rollouts_per_prompt")) is not None:
        parts.append(f"{rollouts:>5.1f} rollouts/prompt")
    parts.append(f"{seconds:>6.1f} s")
    return "   ".join(parts)


def evaluation_line(step: int, accuracy: float, ci95: float | None) -> str:
    """The line of an evaluation."""
    when = "before training" if step == 0 else f"after step {step}"
    interval = "" if ci95 is None else f" ± {100 * ci95:.1f}"
    return f"evaluation {when}: {100 * accuracy:.1f}{interval}% right"


def time_left(seconds: float) -> str:
    """Rounded: the estimate is not exact."""
    if seconds < 90:
        return "about a minute left" if seconds > 30 else "seconds left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"
