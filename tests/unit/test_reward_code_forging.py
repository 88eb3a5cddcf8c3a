"""Programs that want a pass without the right answer: whatever they do to their own process, they get none.

Every trick is played against every form of label whose expected values must stay hidden. None may gain anything, with
partial credit neither.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from forgeries import LIARS, PROCESS

from openrlhf_ada.reward.grade import CodeRules, Grade
from openrlhf_ada.reward.programs.answers import grade
from openrlhf_ada.reward.programs.limits import ProgramLimits

WHOLE, PARTIAL = CodeRules(), CodeRules(partial=True)
LIMITS = ProgramLimits(seconds=2, seconds_in_all=20)
SHORT = ProgramLimits(seconds=1, seconds_in_all=20)
"""Of tricks, some of which never end."""
# 4217, 8434 and 12651 are nowhere but in the label.
LABELS: dict[str, Any] = {
    "asserts": {"tests": ["assert add(1, 2) == 4217", "assert add(40, 2) == 8434"]},
    "test_list": {"test_list": ["assert add(1, 2) == 4217"], "test_setup_code": "import math"},
    "check": {"tests": "def check(candidate):\n    assert candidate(1, 2) == 4217\n", "entry_point": "add"},
    "check in a loop": {
        "test": "def check(candidate):\n    for given, wanted in [((1, 2), 4217), ((3, 4), 8434)]:\n"
        "        assert abs(candidate(*given) - wanted) < 1e-6, wanted\n",
        "entry_point": "add",
    },
    "zip": {"tests": "for got, wanted in zip(map(add, [1, 40], [2, 2]), [4217, 8434]):\n    assert got == wanted"},
    "method": {"tests": ["assert Solution().add(1, 2) == 4217"]},
    "calls": {"fn_name": "add", "inputs": [[1, 2], [40, 2]], "outputs": [4217, 8434]},
    "livecodebench": {
        "public_test_cases": json.dumps([{"input": "1\n2", "output": "4217", "testtype": "functional"}]),
        "metadata": json.dumps({"func_name": "add"}),
    },
    "stdin": {"inputs": ["1 2\n", "40 2"], "outputs": ["4217\n", "8434"]},
}
SOLUTION = "\nclass Solution:\n    def add(self, a, b): return add(a, b)\n"


def programs() -> list[Any]:
    liars = [pytest.param(f"{code}def add(a, b): return X()\n", id=name) for name, code in LIARS.items()]
    return liars + [pytest.param(code, id=name) for name, code in PROCESS.items()]


def graded(program: str, label: Any, rules: CodeRules = WHOLE, limits: ProgramLimits = LIMITS) -> Grade:
    main = "if __name__ == '__main__': print(add(*map(int, input().split())))\n"
    return grade(f"```python\n{program}{SOLUTION}{main}```", label, limits, rules)


def test_there_are_more_than_fifteen_tricks() -> None:
    assert len(programs()) > 40


@pytest.mark.parametrize("name", LABELS)
def test_a_right_program_passes_and_is_not_marked(name: str) -> None:
    right = "def add(a, b): return {(1, 2): 4217, (40, 2): 8434, (3, 4): 8434}[a, b]\n"
    for rules in (WHOLE, PARTIAL):
        assert graded(right, LABELS[name], rules) == Grade(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("program", programs())
def test_no_trick_gains_anything(program: str) -> None:
    played = [(name, WHOLE) for name in LABELS] + [("asserts", PARTIAL), ("calls", PARTIAL)]
    for name, rules in played:
        found = graded(program, LABELS[name], rules, SHORT)
        assert (found.score, found.forgeable) == (0.0, False), name
        assert found.cause


def test_a_marked_label_is_one_that_a_trick_passes() -> None:
    """The tests look at more than results, so that they run beside the program."""
    label = {
        "tests": "import io, sys\nsys.stdout = io.StringIO()\nhello()\nassert sys.stdout.getvalue() == 'Hello\\n'"
    }
    assert graded("def hello(): print('Hello')\n", label) == Grade(1.0, forgeable=True)
    forged = "class X:\n    __eq__ = lambda s, o: True\ndef hello():\n    import sys\n    sys.stdout.getvalue = X\n"
    assert graded(forged, label) == Grade(1.0, forgeable=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "IndexError"])
def test_no_exception_of_a_program_is_the_end_of_an_iteration(kind: str) -> None:
    for test in (
        "assert all(map(add, [1], [2]))",
        "assert not any(map(lambda x: add(x, 2) != 4217, [1]))",
        "assert not list(filter(functools.partial(add, 1), [2]))",
        "for got in iter(lambda: add(1, 2), None): assert got == 4217",
        "assert heapq.merge([4217], key=lambda x: add(x, 2)).__next__() == 4217",
        "def each():\n    try: yield 1\n    finally: assert add(1, 2) == 4217\none = each(); next(one); one.close()",
    ):
        label = {"tests": test, "test_imports": ["import functools, heapq"]}
        for rules in (WHOLE, PARTIAL):
            assert graded(f"def add(a, b): raise {kind}\n", label, rules) == Grade(0.0, f"raised {kind}"), test


@pytest.mark.parametrize(
    "test",
    [
        "try: add(1, 2)\nexcept StopIteration: pass\nelse: assert False",
        "try: add(1, 2)\nexcept (ValueError, StopIteration): pass\nelse: assert False",
        "with contextlib.suppress(StopIteration):\n    add(1, 2)\n    assert False",
        "unittest.TestCase().assertRaises(StopIteration, add, 1, 2)\nassert True",
        "assert next(iter(Solution().add, None), 4217) == 4217\nassert False",
    ][:4],
)
def test_tests_that_await_the_end_see_it(test: str) -> None:
    label = {"tests": test, "test_imports": ["import contextlib, unittest"]}
    assert graded("def add(a, b): raise StopIteration\n", label) == Grade(1.0)
    assert graded("def add(a, b): return 1\n", label).score == 0.0


LENGTHS = [
    ("list(range(n))", "", 1.0),
    ("dict.fromkeys(range(n)).keys()", "", 1.0),
    ("X(n)", "__len__ = lambda s: s.n\n    __iter__ = lambda s: iter(range(s.n))", 1.0),
    ("X(n)", "__len__ = lambda s: s.n\n    __iter__ = lambda s: iter(())", 0.0),
    ("X(n)", "__len__ = lambda s: s.n\n    __iter__ = lambda s: s\n    def __next__(s): raise StopIteration", 0.0),
    ("X(n)", "__len__ = lambda s: s.__dict__.pop('n', 0)\n    __getitem__ = lambda s, i: 1 / 0", 0.0),
]


@pytest.mark.parametrize(("value", "members", "score"), LENGTHS)
def test_a_result_has_one_length(value: str, members: str, score: float) -> None:
    tests = [
        "xs = add(1, 3)\nassert len(xs) == 3 and all(x == i for i, x in zip(range(3), xs))",
        "xs = add(1, 3)\nassert len(xs) == 3\nfor i, x in enumerate(xs): assert x == i",
    ]
    if "pop" in members:
        tests = ["xs = add(1, 3)\nassert len(xs) == 3\nfor i in range(len(xs)): assert xs[i] == i"]
    program = f"class X:\n    def __init__(s, n): s.n = n\n    {members}\ndef add(a, n): return {value}\n"
    for test in tests:
        assert graded(program, {"tests": test}).score == score, test
