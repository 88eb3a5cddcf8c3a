"""Time limits of the tests of one answer: one for each test, and one for all that grows with their number."""

from __future__ import annotations

import time

from openrlhf_ada.reward.grade import may_take
from openrlhf_ada.reward.programs.limits import ProgramLimits

TESTS_IN_ALL = 10
"""So many tests share `seconds_in_all`. More tests have as much more time."""

MOST_TESTS = 1000
"""From so many on, the time for all does not grow any more."""

_MARGIN = 0.25
"""For what the grader does itself, as a share of the time for all tests."""

TIME_LIMITS = ("time limit", "time limit of all tests")


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
