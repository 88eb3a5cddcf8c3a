"""Tells how far a step's sampling is, a few times a second at most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict

from openrlhf_ada.core.scheduling import Progress

TELL_EVERY_S = 0.5


class SamplingProgress:
    """Called with a scheduler's `progress` whenever engines have answered. `tell` gets its fields, and the seconds
    since the sampling began: at the first call, and then every TELL_EVERY_S.

    Fresh prompts that replace others have a scheduler of their own, and are a sampling of their own.
    """

    def __init__(self, tell: Callable[..., object], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._look: Callable[[], Progress] | None = None
        self._began = self._told = 0.0

    def __call__(self, look: Callable[[], Progress]) -> None:
        now = self._clock()
        if look is not self._look:
            self._look, self._began, self._told = look, now, -math.inf
        # To look at thousands of pools takes longer than to read an answer.
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._tell(**asdict(look()), seconds=now - self._began)
