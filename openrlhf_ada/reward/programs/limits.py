"""What a program may use that the sandbox runs, and how long the tests of one answer may take."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from openrlhf_ada.reward.grade import may_take

SECONDS = 10.0
"""For grading one answer, where nobody says otherwise: the default of --ada_reward_timeout."""

_OF_ONE_RUN, _OF_ALL_RUNS = 0.6, 0.8
"""Shares of the time for grading one answer."""

TESTS_IN_ALL = 10
"""So many tests share `seconds_in_all`. More tests have as much more time."""

MOST_TESTS = 1000
"""From so many on, the time for all does not grow any more."""

_MARGIN = 0.25
"""For what the grader does itself, as a share of the time for all tests."""

TIME_LIMITS = ("time limit", "time limit of all tests")


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one run may use; `seconds_in_all` is for the runs that grade one answer (see `TestTime`).

    `seconds` is wall-clock time from when the program starts. `output_kib` holds for stdout and for a result,
    `file_mib` for each file, `folder_mib` and `files` for all of them. `memory_mib` is address space beyond what a
    child has when it starts, of which a thread takes 8 MiB and more.
    """

    seconds: float = _OF_ONE_RUN * SECONDS
    seconds_in_all: float = _OF_ALL_RUNS * SECONDS
    cpu_seconds: int = math.ceil(_OF_ONE_RUN * SECONDS)
    memory_mib: int = 1024
    output_kib: int = 1024
    file_mib: int = 16
    folder_mib: int = 64
    files: int = 1000
    open_files: int = 64


def limits_within(seconds: float) -> ProgramLimits:
    """Limits that fit into `seconds` for grading one answer: a program that is too slow then gets a score of 0, and
    the grading process is not killed, which would give no score.
    """
    of_one_run = _OF_ONE_RUN * seconds
    return ProgramLimits(seconds=of_one_run, seconds_in_all=_OF_ALL_RUNS * seconds, cpu_seconds=math.ceil(of_one_run))


class TestTime:
    """Counts from when it is made. Tells the grading process, which has a limit of its own, when there is more time.

    Every test that exceeds its limit halves the limit of those after it: with partial credit, a program that never
    ends takes the time of two such tests, and not of all."""

    __test__ = False  # for pytest

    def __init__(self, limits: ProgramLimits, tests: int) -> None:
        self._limits = limits
        self._start = time.monotonic()
        self._tests = 0
        self._announced_s = limits.seconds_in_all
        self._timeouts = 0
        self.add(tests)

    @property
    def seconds_in_all(self) -> float:
        return self._limits.seconds_in_all * max(1.0, min(self._tests, MOST_TESTS) / TESTS_IN_ALL)

    def add(self, tests: int = 1) -> None:
        self._tests += tests
        # Told in steps, so that a test costs no message.
        if self.seconds_in_all > self._announced_s:
            self._announced_s = 1.5 * self.seconds_in_all
            may_take(self._announced_s * (1 + _MARGIN))

    def left(self) -> float:
        """Seconds for all tests that are left; not above 0 where there is none."""
        return self._start + self.seconds_in_all - time.monotonic()

    def limit(self) -> float:
        """Seconds for the next test."""
        return max(min(self._limits.seconds / 2**self._timeouts, self.left()), 0.0)

    def count(self, cause: str) -> None:
        """Of a test that has ended with `cause`."""
        self._timeouts += cause in TIME_LIMITS

    @property
    def is_over(self) -> bool:
        return self.left() <= 0
