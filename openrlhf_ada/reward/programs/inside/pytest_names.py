"""What tests use of pytest, which need not be installed: `raises`, `approx`, `fail` and `mark.parametrize`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class raises:
    """A context that fails where nothing of this kind is raised."""

    def __init__(self, kind: Any, match: str = "") -> None:
        self.type, self.match, self.value = kind, match, None

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: Any, error: Any, trace: object) -> bool:
        assert kind is not None, f"nothing of {self.type} was raised"
        self.value = error
        # `judging` has exceptions of its own for those that end an iteration.
        is_expected = issubclass(getattr(kind, "kind", kind), self.type)
        assert not is_expected or re.search(self.match, str(error)), "another text"
        return is_expected


class approx:
    """Equal within a tolerance: a number, or the numbers in a list or dict."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other: Any) -> bool:
        expected = self.expected
        if isinstance(expected, dict | list | tuple):
            keys = list(expected) if isinstance(expected, dict) else range(len(expected))
            is_alike = isinstance(other, dict) == isinstance(expected, dict) and len(other) == len(expected)
            return is_alike and all(other[key] == approx(expected[key], self.rel, self.abs) for key in keys)
        if isinstance(expected, bool) or not (isinstance(expected, int | float) and isinstance(other, int | float)):
            return expected == other
        rel = (1e-6 if self.abs is None else 0.0) if self.rel is None else self.rel
        return math.isclose(expected, other, rel_tol=rel, abs_tol=1e-12 if self.abs is None else self.abs)


def fail(reason: str = "") -> None:
    raise AssertionError(reason)


def _parametrize(names: Any, values: Any) -> Callable[[Any], Any]:
    split = names.replace(" ", "").split(",") if isinstance(names, str) else names

    def decorate(test: Any) -> Any:
        def run(*of: Any, **given: Any) -> None:
            for value in values:
                test(*of, **given, **dict(zip(split, value if len(split) > 1 else [value], strict=True)))

        return run

    return decorate


mark = SimpleNamespace(parametrize=_parametrize)
