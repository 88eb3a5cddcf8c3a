"""Shows a training run in the driver's terminal, from events that another thread feeds.

On a terminal: one live line under one line per finished step. Elsewhere: plain lines without control characters, one
per step and evaluation, and one a minute while a step's sampling takes longer than that.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from openrlhf_ada.config.visible import as_told
from openrlhf_ada.reporting.display import Display

RECENT_STEPS = 8
"""The time left is the mean of this many latest steps, times the steps to go: early steps are slower (warm-up)."""

LINES_EVERY_S = 60.0
"""Without a terminal: seconds after the last line until another one tells how far sampling is."""


class ProgressView:
    """A context manager that shows the events given to `handle`; leaves the terminal as it was, errors included.

    Events are dicts with a "type":

    - "phase" (text): what happens from now on; a line of its own, but for phases between steps.
    - "doing" (text): the same for a part of a step, which is shown in the live line only.
    - "begin" (step, max_steps): training starts after this step.
    - "sampling" (seconds and the fields of `core.scheduling.Progress`): where a step's sampling is.
    - "step" (step, max_steps, metrics), "eval" (step, accuracy, ci95, which may be None), "note" (text).
    - "done" (run_dir, conclusion): the run is over.

    `stream`: where to write, standard error if None; `clock`: monotonic seconds.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        # Reentrant: a signal handler may run in the thread that is just showing an event.
        self._lock = threading.RLock()
        self._display: Display | None = None
        self._phase, self._phase_began = "starting", 0.0
        self._sampling: Mapping[str, Any] | None = None
        self._in_step = False
        self._step = 0
        self._max_steps: int | None = None
        self._evaluations: list[tuple[float, float]] = []
        self._started = self._last_step = self._last_line = 0.0
        self._durations: deque[float] = deque(maxlen=RECENT_STEPS)

    def __enter__(self) -> ProgressView:
        self._started = self._phase_began = self._last_step = self._last_line = self._clock()
        # It asks for the status from a thread that holds a lock of its own, so `status` takes none.
        self._display = Display(self._stream, self.status)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            display, self._display = self._display, None
            if display is not None:
                display.close()

    def handle(self, event: Mapping[str, Any]) -> None:
        """Show one event; callable from any thread. Those after the end are left out: a feeding thread may be late."""
        with self._lock:
            if self._display is not None:
                content = dict(event)
                getattr(self, f"_on_{content.pop('type')}")(**content)

    def status(self) -> str:
        """The live line; what matters most comes first, for a narrow terminal cuts the end off."""
        now = self._clock()
        sampling, seconds = self._sampling, now - self._phase_began
        timed = f"{self._phase} ({seconds:.0f} s)" if seconds >= 1 else self._phase
        if self._max_steps is None or self._step >= self._max_steps or not self._in_step:
            return timed
        what, *figures = [timed] if sampling is None else sampling_parts(sampling)
        parts = (f"step {self._step + 1}/{self._max_steps}: {what}", self._time_left(now), *figures)
        return "  ".join(filter(None, parts))

    def _time_left(self, now: float) -> str:
        if not self._durations or self._max_steps is None:
            return ""
        mean_s = sum(self._durations) / len(self._durations)
        # Of this step at most all: it may take longer than those before.
        of_this = min(now - self._last_step, mean_s)
        return time_left(mean_s * (self._max_steps - self._step) - of_this)

    def _line(self, text: str) -> None:
        assert self._display is not None
        self._last_line = self._clock()
        self._display.line(as_told(text))

    def _begin(self, text: str, *, in_step: bool = False) -> None:
        self._sampling, self._in_step = None, in_step
        self._phase, self._phase_began = text, self._clock()

    def _on_begin(self, step: int, max_steps: int) -> None:
        self._step, self._max_steps = step, max_steps

    def _on_doing(self, text: str) -> None:
        self._begin(text, in_step=True)

    def _on_note(self, text: str) -> None:
        self._line(text)

    def _on_eval(self, step: int, accuracy: float, ci95: float | None) -> None:
        self._evaluations += [] if ci95 is None else [(accuracy, ci95)]
        self._line(evaluation_line(step, accuracy, ci95))
        self._begin("going on")

    def _on_done(self, run_dir: str, conclusion: str = "") -> None:
        for line in filter(None, (conclusion, fall_line(self._evaluations))):
            self._line(line)
        self._line(f"report: {run_dir}/report.html (the record is beside it)")
        self._begin("ending")

    def _on_phase(self, text: str) -> None:
        """A phase is a line of its own before the first step and after the last; in between it would repeat."""
        between = self._max_steps is not None and 0 < self._step < self._max_steps
        if text != self._phase and not between:
            seconds = self._clock() - self._started
            self._line(text if seconds < 1 or self._step else f"{text}, {seconds:.0f} s after the start")
        self._begin(text)

    def _on_sampling(self, **progress: Any) -> None:
        if self._sampling is None:
            self._begin("sampling", in_step=True)
        self._sampling = progress
        assert self._display is not None
        if not self._display.is_live and self._clock() - self._last_line >= LINES_EVERY_S:
            self._line(self.status())

    def _on_step(self, step: int, max_steps: int, metrics: Mapping[str, Any]) -> None:
        now = self._clock()
        self._durations.append(metrics.get("ada/step_s", now - self._last_step))
        self._last_step = now
        self._on_begin(step, max_steps)
        self._line(step_line(step, max_steps, metrics, self._durations[-1]))
        self._begin("sampling", in_step=True)


def sampling_parts(event: Mapping[str, Any]) -> list[str]:
    """Where a step's sampling is, in order of importance: prompts by state, score, signal, rollouts, tokens."""
    parts = [f"{event['open']} open, {event['unresolved']} unresolved, {event['done']} done"]
    for name in ("right", "signal"):
        if event[name] is not None:
            parts.append(f"{name} {event[name]:.0%}")
    parts += [f"{event['rollouts']:,} rollouts", f"{short(event['tokens'])} tokens"]
    if event["seconds"] > 0:
        parts.append(f"{short(event['tokens'] / event['seconds'])} tokens/s")
    return parts


def short(number: float) -> str:
    """A count in few characters: 950, 9,500, 41k, 1.2M."""
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:.0f}k" if number < 999_500 else f"{number / 1e6:.1f}M"


def step_line(step: int, max_steps: int, metrics: Mapping[str, Any], seconds: float) -> str:
    """The line of a finished step. Metrics that it lacks are left out; in mode off it has the reward."""
    width = len(str(max_steps))
    parts = [f"step {step:>{width}}/{max_steps}"]
    if (right := metrics.get("ada/first_wave_metric_mean")) is not None:
        parts.append(f"right {right:>4.0%}")
    if (signal := metrics.get("ada/signal_share")) is not None:
        uniform = metrics.get("ada/signal_share_uniform")
        parts.append(f"signal {signal:>4.0%}" + ("" if uniform is None else f" (uniform {uniform:>4.0%})"))
    if (rollouts := metrics.get("ada/rollouts_per_prompt")) is not None:
        parts.append(f"{rollouts:>5.1f} rollouts/prompt")
    elif (reward := metrics.get("rollout/reward_mean")) is not None:
        parts.append(f"reward {reward:>6.3f}")
    parts.append(f"{seconds:>6.1f} s")
    return "   ".join(parts)


def evaluation_line(step: int, accuracy: float, ci95: float | None) -> str:
    """The line of an evaluation."""
    when = "before training" if step == 0 else f"after step {step}"
    interval = "" if ci95 is None else f" ± {100 * ci95:.1f}"
    return f"evaluation {when}: {100 * accuracy:.1f}{interval}% right"


def fall_line(evaluations: Sequence[tuple[float, float]]) -> str:
    """Of (accuracy, half of its 95 % interval), where the last is significantly below the first; else empty."""
    if not evaluations:
        return ""
    (before, first), (after, last) = evaluations[0], evaluations[-1]
    if before - after <= math.hypot(first, last):
        return ""
    fall = f"held-out accuracy fell from {before:.1%} to {after:.1%}: the exported model is worse than the first"
    return f"{fall}. Lower --actor.adam.lr, or take an earlier checkpoint"


def time_left(seconds: float) -> str:
    """Rounded: the estimate is not exact."""
    if seconds < 90:
        return "about a minute left" if seconds > 30 else "seconds left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"
