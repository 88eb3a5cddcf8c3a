"""Tells how far a step's sampling is, a few times a second at most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict

from openrlhf_ada.core.scheduling import Progress

REPORT_EVERY_S = 0.5


class SamplingProgress:
    """Called with a scheduler's `progress` whenever engines have answered. `report` gets its fields, and the seconds
    since the sampling began: at the first call, and then every REPORT_EVERY_S.

    Fresh prompts that replace others have a scheduler of their own, and are a sampling of their own.
    """

    def __init__(self, report: Callable[..., object], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._read_progress: Callable[[], Progress] | None = None
        self._began = self._reported_at = 0.0

    def __call__(self, read_progress: Callable[[], Progress]) -> None:
        now = self._clock()
        if read_progress is not self._read_progress:
            self._read_progress, self._began, self._reported_at = read_progress, now, -math.inf
        # To look at thousands of pools takes longer than to read an answer.
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._report(**asdict(read_progress()), seconds=now - self._began)
