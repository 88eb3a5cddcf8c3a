"""Programs that want a pass without the right answer: whatever they do to their own process, they get none.

Every trick is played against every form of label whose expected values must stay hidden. None may gain anything, with
partial credit neither.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from forgeries import LIARS, PROCESS

from openrlhf_ada.reward.code_answers import grade
from openrlhf_ada.reward.grade import CodeRules, Grade
from openrlhf_ada.reward.program_limits import ProgramLimits

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
