"""Tells how far a step's sampling is, a few times a second at most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict

from openrlhf_ada.core.scheduling import Progress

REPORT_EVERY_S = 0.5


def sampling_progress(
    report: Callable[..., object], clock: Callable[[], float] = time.monotonic
) -> Callable[[Callable[[], Progress]], None]:
    """To be called with a scheduler's `progress` whenever engines have answered. `report` gets its fields, and the
    seconds since the sampling began: at the first call, and then every REPORT_EVERY_S.

    Fresh prompts that replace others have a scheduler of their own, and are a sampling of their own.
    """
    current: Callable[[], Progress] | None = None
    began = reported_at = 0.0

    def look(read_progress: Callable[[], Progress]) -> None:
        nonlocal current, began, reported_at
        now = clock()
        if read_progress is not current:
            current, began, reported_at = read_progress, now, -math.inf
        # To look at thousands of pools takes longer than to read an answer.
        if now - reported_at >= REPORT_EVERY_S:
            reported_at = now
            report(**asdict(read_progress()), seconds=now - began)

    return look
