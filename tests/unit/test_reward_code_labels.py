"""Labels of programs in the forms of public data sets, and labels that nobody could mean."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from openrlhf_ada.reward.grade import CodeRules, Grade, UnusableLabelError
from openrlhf_ada.reward.programs.answers import grade
from openrlhf_ada.reward.programs.asserts import Asserts
from openrlhf_ada.reward.programs.labels import read_label

PASSED, WRONG = Grade(1.0), Grade(0.0, "wrong output")
ADD = "def add(a, b):\n    return a + b\n"
STDIN = "print(sum(map(int, input().split())))"


def graded(program: str, label: Any, rules: CodeRules | None = None) -> Grade:
    return grade(f"```python\n{program}\n```", label, None, rules)


def packed(cases: Any) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


CASE = {"input": "1 2\n", "output": "3\n"}
FUNCTIONAL = {"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}
EACH = """
class Solution:
    def addTo(self, numbers: List[int], n: int) -> List[int]:
        return [x + n for x in numbers]
"""


@pytest.mark.parametrize(
    "label",
    [
        {"input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
        {"input_output": {"inputs": ["1 2\n"], "outputs": ["3\n"], "fn_name": None}},
        {"ground_truth": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
        {"reward_model": {"ground_truth": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}), "style": "rule"}},
        {"inputs": [["1 2"]], "outputs": [["3"]]},
        {"verification_info": {"language": "python", "test_cases": [CASE | {"type": "stdin_stdout"}]}},
        {"tests": [CASE | {"type": "stdin_stdout"}]},
        {"tests": json.dumps([CASE])},
        {"test_cases": {"inputs": ["1 2"], "outputs": ["3"]}},
        [CASE],
        json.dumps([CASE]),
        str({"verification_info": {"test_cases": [CASE]}}),
        {"verification_info": str({"language": "python", "test_cases": [CASE | {"type": "stdin_stdout"}]})},
        {"unit_tests": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})},
        {"unit_tests": str([CASE])},
        {"examples": [CASE]},
        {"public_test_cases": json.dumps([CASE | {"testtype": "stdin"}]), "private_test_cases": packed([CASE])},
        {"public_tests": {"input": ["1 2"], "output": ["3"]}, "generated_tests": {"input": ["4 5"], "output": ["9"]}},
    ],
)
def test_forms_with_stdin(label: Any) -> None:
    assert graded(STDIN, label) == PASSED
    assert graded("print(7)", label) == WRONG


@pytest.mark.parametrize(
    "label",
    [
        {"public_test_cases": [FUNCTIONAL], "metadata": json.dumps({"func_name": "addTo"})},
        {"public_test_cases": [], "private_test_cases": packed([FUNCTIONAL]), "metadata": {"func_name": "addTo"}},
        {"tests": [{"input": [[1, 2], 3], "output": [4, 5], "type": "function_call", "fn_name": "addTo"}]},
        {"tests": [{"input": [[1, 2], 3], "output": [[4, 5]], "type": "function_call", "fn_name": "addTo"}]},
        {"test_cases": [FUNCTIONAL | {"metadata": {"func_name": "addTo"}}]},
        {"input_output": json.dumps({"inputs": [[[1, 2], 3]], "outputs": [[4, 5]], "fn_name": "addTo"})},
    ],
)
def test_forms_with_a_function(label: Any) -> None:
    assert graded(EACH, label) == PASSED
    assert graded(EACH.replace("x + n", "x"), label) == WRONG


@pytest.mark.parametrize(
    "label",
    [
        ["assert add(1, 2) == 3", "assert add(40, 2) == 42"],
        {"test_list": ["assert add(1, 2) == 3"], "test_setup_code": "", "challenge_test_list": []},
        {"test_list": ["assert math.isclose(add(1, 2), 3)"], "test_imports": ["import math"]},
        {"test_list": ["assert math.isclose(add(1, 2), 3)"]},
        {"test_cases": ["assert add(1, 2) == 3", "assert add(1, 2) in {3}"]},
        {"test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"},
        {"tests": "from solution import add\n\ndef test_small():\n    assert add(1, 2) == 3\n\n"
                  "def test_large():\n    assert add(40, 2) == 42"},
        {"tests": "from solution import add as plus\nassert plus(1, 2) == 3"},
        {"tests": ["for a in range(9):", "    assert add(a, 1) == a + 1"]},
        {"ground_truth": ["assert add(1, 2) == 3"]},
        {"unit_tests": ["assert add(1, 2) == 3"]},
        {"unit_tests": json.dumps(["assert add(1, 2) == 3"])},
        {"assert_case": ["assert add(1, 2) == 3"]},
        {"test_code": "assert add(1, math.floor(2.5)) == 3", "import_prefix": "import math\n"},
        {"test_code": "def check(f):\n    assert f(1, 2) == 3", "import_prefix": "import math", "entry_point": "add"},
        "assert add(1, 2) == 3\nassert add(2, 2) == 4",
        "def test_add():\n    assert add(1, 2) == 3",
        "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)",
        "import unittest\n\nclass Sums(unittest.TestCase):\n    def setUp(self): self.a = 1\n"
        "    def test_add(self): self.assertEqual(add(self.a, 2), 3)\n\nunittest.main()",
        "import pytest\n\nclass TestAdd:\n    def setup_method(self): self.a = 1\n"
        "    def test_add(self): assert add(self.a, 2) == pytest.approx(3)",
        "import pytest\n\n@pytest.mark.parametrize('a, b', [(1, 3), (2, 4)])\n"
        "def test_add(a, b):\n    assert add(a, 2) == b",
    ],
)  # fmt: skip
def test_forms_with_asserts(label: Any) -> None:
    assert graded(ADD, label) == PASSED
    assert graded("def add(a, b): return 7", label) == Grade(0.0, "raised AssertionError")


def test_helpers_of_a_prompt_are_the_labels_own() -> None:
    """As in HumanEval/32: the answer may not bring its own."""
    prompt = (
        "import math\n\ndef poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n\ndef find_zero(xs):\n"
    )
    prompt += '    """ finds a zero """\n'
    tests = "def check(candidate):\n    xs = [2, 1]\n    assert math.fabs(poly(xs, candidate(xs))) < 1e-4\n"
    label = {"prompt": prompt, "test": tests, "entry_point": "find_zero"}
    assert graded("def find_zero(xs):\n    assert poly(xs, -2) == 0\n    return -xs[0] / xs[1]", label) == PASSED
    cheat = "def poly(xs, x): return 0\ndef find_zero(xs): return 7"
    assert graded(cheat, label) == Grade(0.0, "raised AssertionError")
    without = {key: value for key, value in label.items() if key != "prompt"}
    assert graded("import math\n" + cheat, without | {"test": "import math\n" + tests}) == Grade(1.0, forgeable=True)


def test_names_of_built_in_functions_may_be_tested() -> None:
    label = {"test_list": ["assert sum(10, 15) == 20"]}
    assert graded("def sum(a, b): return 20", label) == PASSED
    assert graded("def sum(a, b): return 21", label).score == 0.0


def test_built_in_functions_of_tests_are_pythons_own() -> None:
    label = {"test_list": ["assert set(similar((3, 4), (4,))) == set((4,))"]}
    assert graded("def similar(a, b): return (4,)", label) == PASSED
    assert graded("def set(x): return 0\ndef similar(a, b): return ()", label).score == 0.0


STACK = """
class Stack:
    def __init__(self, of=()): self.items = list(of)
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
"""
STACK_TESTS = """
s = Stack([1])
s.push(2)
assert s.pop() == 2 and len(s) == 1 and s.items == [1]
s.items = []
assert not s
"""


def test_objects_of_the_programs_classes_cross_as_stand_ins() -> None:
    label = {"tests": STACK_TESTS}
    assert graded(STACK, label) == PASSED
    assert graded(STACK.replace("pop()", "pop(0)"), label).score == 0.0
    label = {"tests": "assert largest([Pair(1, 2), Pair(3, 4)]) == 4"}
    pair = "class Pair:\n    def __init__(self, a, b): self.b = b\ndef largest(pairs): return max(p.b for p in pairs)"
    assert graded(pair, label) == PASSED


def test_operators_of_the_programs_classes_are_marked() -> None:
    vector = (
        "class Vector:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return Vector(self.x + o.x)\n"
    )
    vector += "    def __eq__(self, o): return self.x == o.x\n"
    label = {"tests": "assert Vector(1) + Vector(2) == Vector(3)"}
    assert graded(vector, label) == Grade(1.0, forgeable=True)
    assert graded(vector.replace("+ o.x", ""), label).score == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(xs): xs.sort()", "xs = [3, 1]\nf(xs)\nassert xs == [1, 3]"),
        ("def f(d): d['a'] = 1", "d = {}\nf(d)\nassert d == {'a': 1}"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(x): return {(1, 2): {3, 4}, 'b': (None, b'x', 1 + 2j)}",
         "assert f(0) == {(1, 2): {3, 4}, 'b': (None, b'x', 1 + 2j)}"),
        ("def f(x): return 10 ** 5000", "assert f(0) == 10 ** 5000"),
        ("def f(x): return float('nan')", "assert f(0) != f(0)"),
        ("def f(x): return -0.0", "import math\nassert math.copysign(1, f(0)) == -1"),
        ("from collections import Counter, deque\ndef f(x): return Counter(x), deque(x)",
         "from collections import Counter, deque\nassert f('aab') == (Counter(a=2, b=1), deque('aab'))"),
        ("from decimal import Decimal\ndef f(x): return Decimal('1.10')",
         "from decimal import Decimal\nassert f(0) == Decimal('1.1')"),
        ("import datetime\ndef f(x): return datetime.date(2024, 2, x)",
         "import datetime\nassert f(3) == datetime.date(2024, 2, 3)"),
        ("def f(x): return type(x)", "assert f(3) is int"),
        ("def f(x, kind): return isinstance(x, kind)", "assert f(3, int) and not f('3', int)"),
        ("def f(x): raise ValueError('no ' + x)",
         "try:\n    f('way')\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no way'"),
        ("def f(x): return math.floor(x)", "import math\nassert f(2.5) == 2"),
        ("def f(*xs, **named): return [xs, named]", "assert f(1, b=2) == [(1,), {'b': 2}]"),
        ("def f(n):\n    def g(x): return x + n\n    return g", "assert f(2)(3) == 5"),
        ("state = []\ndef f():\n    state.append(1)\n    return len(state)", "assert f() == 1\nassert f() == 2"),
        ("LIMIT = 7\ndef f(): return 7", "assert f() == LIMIT"),
        ("def f(s): return s + '\\ud800é'", "assert f('a') == 'a\\ud800é'"),
    ],
)  # fmt: skip
def test_tests_see_what_they_would_see_in_one_process(program: str, tests: str) -> None:
    found = graded(program, {"tests": tests})
    assert (found.score, found.cause) == (1.0, "")


def test_program_that_changes_its_arguments_does_not_change_what_it_is_compared_with() -> None:
    """`assert f(x) == sorted(x)` is evaluated from left to right."""
    empties = "def f(x):\n    x.clear()\n    return []"
    for tests in ("x = [3, 1]\nassert f(x) == sorted(x)", "for x in [[3, 1], [2, 1]]:\n    assert f(x) == sorted(x)"):
        assert graded(empties, {"tests": tests}) == Grade(0.0, "raised AssertionError")
        assert graded("def f(x):\n    x.sort()\n    return x", {"tests": tests}) == PASSED
    check = {"tests": "def check(g):\n    x = [3, 1]\n    assert g(x) == sorted(x)", "entry_point": "f"}
    assert graded(empties, check) == Grade(0.0, "raised AssertionError")


def test_result_beside_changed_arguments_is_marked() -> None:
    label = {"tests": "xs = [1, 1, 2]\nk = f(xs)\nassert xs[:k] == [1, 2]"}
    assert graded("def f(x):\n    x[:] = [1, 2, 0]\n    return 2", label) == Grade(1.0, forgeable=True)
    assert graded("def f(x):\n    return 2", label) == Grade(0.0, "raised AssertionError")


def test_a_program_that_is_called_has_no_stdin() -> None:
    label = {"tests": "assert f() == 1"}
    assert graded("def f(): return input()", label) == Grade(0.0, "raised EOFError")
    assert graded("import sys\nsys.stdin.read()\ndef f(): return 1", label) == PASSED


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(g): return g(3)", "assert f(lambda x: x + 1) == 4"),
        ("def f(node): return node.value", "class Node:\n    value = 5\nassert f(Node()) == 5"),
        ("def f(): open('a', 'w').write('b')", "f()\nassert open('a').read() == 'b'"),
        ("class Base:\n    def g(self): return 2 * self.h()",
         "class Mine(Base):\n    def h(self): return 4\nassert Mine().g() == 8"),
        ("class Bad(Exception): pass\ndef f(): raise Bad", "try:\n    f()\n    assert False\nexcept Bad:\n    pass"),
        ("def f(): return len(input())", "import builtins\nbuiltins.input = lambda: 'abc'\nassert f() == 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_apart_is_marked(program: str, tests: str) -> None:
    assert graded(program, {"tests": tests}) == Grade(1.0, forgeable=True)
    assert (
        graded("def f(*x): return None\nclass Base: pass\nclass Bad(Exception): pass", {"tests": tests}).score == 0.0
    )


def test_marked_labels_are_known_without_a_program() -> None:
    assert grade("no code", {"tests": "assert f() == open('a').read()"}) == Grade(0.0, "no code block", forgeable=True)
    assert grade("no code", {"tests": "assert f() == 3"}) == Grade(0.0, "no code block")


def test_tests_of_a_label_are_read_as_parts() -> None:
    label = read_label({"test_list": ["import math", "x = 2", "assert f(x) == 4", "assert f(3) == 9", "y = 1"]})
    assert isinstance(label, Asserts)
    assert label.parts == ["import math\nx = 2\nassert f(x) == 4", "assert f(3) == 9\ny = 1"]
    assert (label.remote, label.imports, label.forgeable) == (["f"], "import math", False)


def test_modules_that_tests_need_are_named() -> None:
    label = {"tests": "import numpy as np\nassert f(3) == np.int64(3)"}
    with pytest.raises(UnusableLabelError, match=r"import numpy.*--ada_code_imports"):
        graded("def f(x): return x", label)
    assert graded("def f(x): return x", label, CodeRules(imports=("numpy",))) == PASSED


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"input_output": "{"}, "JSON text"),
        ({"input_output": 7}, "input_output is of type int"),
        ({"ground_truth": DEEP}, "JSON text"),
        ({"tests": [{"input": "1"}]}, "test 0 .*'input' and 'output'"),
        ({"tests": [CASE | {"type": "telepathy"}]}, "test 0 .*'telepathy'"),
        ({"tests": [CASE | {"type": "functional"}]}, "fn_name is 'None'"),
        ({"tests": []}, "no tests"),
        ([], "no tests"),
        ([7], "^'tests' "),
        ({"tests": [CASE, "assert f(1)"]}, "^'tests' "),
        ({"tests": "[{"}, "^'tests' .*JSON text"),
        ({"public_test_cases": "!!"}, "^public_test_cases .*JSON text"),
        (
            {"public_test_cases": base64.b64encode(zlib.compress(pickle.dumps(print))).decode()},
            "^public_test_cases .*print",
        ),
        (
            {"public_test_cases": base64.b64encode(zlib.compress(b"\x80\x04garbage")).decode()},
            "^public_test_cases .*JSON text",
        ),
        (
            {"public_test_cases": base64.b64encode(zlib.compress(pickle.dumps(7))).decode()},
            "^public_test_cases .*type int",
        ),
        ({"public_test_cases": [], "metadata": "{"}, "no tests"),
        ({"public_test_cases": [FUNCTIONAL], "metadata": "{"}, "^metadata .*JSON text"),
        ({"public_test_cases": [FUNCTIONAL], "metadata": "[]"}, "fn_name is 'None'"),
        ({"public_tests": {"input": ["1"], "output": []}}, "^public_tests .*'input' and 'output'"),
        ({"public_tests": 7}, "^public_tests .*type int"),
        ({"private_tests": {"input": [], "output": []}}, "no tests"),
        ({"test_list": ["assert f(1)"], "test_setup_code": 7}, "^test_setup_code "),
        ({"tests": "assert " + "(" * 5000 + ")" * 5000}, "Python"),
        ({"tests": "return 1\nassert f(1)"}, "Python"),
        ({"tests": "assert 1 == 1.0"}, "no name"),
        ({"tests": "assert f(1)", "entry_point": "a b"}, "entry_point is 'a b'"),
        ({"tests": "assert f(1)", "entry_point": ["f"]}, r"entry_point is \['f'\]"),
        ({"inputs": [float("nan")], "outputs": ["1"]}, "'fn_name'"),
        ({"inputs": ["1"], "outputs": [b"1"]}, "'fn_name'"),
        ({b"inputs": ["1"], "outputs": ["1"]}, "'inputs'.*b'inputs'"),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [object()]}, "output 0 .*as JSON"),
        ({"fn_name": ["f"], "inputs": [[1]], "outputs": [1]}, r"fn_name is .*\['f'\]"),
        (float("nan"), r"type float\b"),
        (b"{}", r"type bytes\b"),
        ("\x00", "JSON text"),
        ("NaN", r"type float\b"),
    ],
)
def test_hostile_labels_are_one_clear_error(label: Any, message: str) -> None:
    with pytest.raises(UnusableLabelError, match=message) as error:
        grade("no code", label)
    assert len(str(error.value)) < 500


def test_a_packed_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openrlhf_ada.reward.programs.labels.LARGEST_PACKED", 1 << 20)
    with pytest.raises(UnusableLabelError, match=r"\b1 MiB"):
        grade("no code", {"private_test_cases": packed(["x" * (1 << 22)])})
