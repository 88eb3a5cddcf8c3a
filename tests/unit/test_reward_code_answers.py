"""Python answers: which block is the program, what a label may be, and that only right programs pass."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from openrlhf_ada.reward.grade import Grade, UnusableLabelError
from openrlhf_ada.reward.programs import sandbox
from openrlhf_ada.reward.programs.answers import find_program, grade, same_output, same_result
from openrlhf_ada.reward.programs.limits import ProgramLimits
from openrlhf_ada.reward.programs.sandbox import SandboxError

PASSED = Grade(1.0)
SUMS = {"inputs": ["1 2\n", "40 2"], "outputs": ["3\n", "42"]}
CALLS = {"fn_name": "add", "inputs": [[1, 2], [40, 2]], "outputs": [3, 42]}
ASSERTS = {"tests": ["assert add(1, 2) == 3", "assert add(40, 2) == 42"]}
CHECK = {"tests": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}
ADD = "def add(a, b):\n    return a + b\n"


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nThat is all."


def graded(program: str, label: Any) -> Grade:
    return grade(fenced(program), label)


# The program of a response.


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("```python\nx\n```", "x"),
        ("```\nx\n```", "x"),
        ("```Python3 \r\nx\n``` ", "x"),
        ("```py\nx\n```\n```python\ny\nz\n```", "y\nz"),
        ("```python\nx\n```\nIt prints:\n```\n42\n```", "x"),
        ("```text\nx\n```\n```\ny\n```\n```json\n{}\n```", "y"),
        ("1. So:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y"),
        ("```python\nunfinished\n```python\nx\n```", "x"),
        ("```python\n```", ""),
        ("<think>```python\nx\n```</think>\n```python\ny\n```", "y"),
        ("~~~python\nx\n~~~", "x"),
        ("def f():\n    return 7\n```", "def f():\n    return 7"),
        ("import math\nprint(7)", "import math\nprint(7)"),
        ("Here it is:\n\n<answer>\ndef f():\n    return 7\n</answer>", "def f():\n    return 7\n"),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(response: str, expected: str) -> None:
    assert find_program(response) == expected


@pytest.mark.parametrize(
    "response",
    [
        "",
        "So x = 1.",
        "```python\nx",
        "~~~c\nx\n~~~",
        "```c\nx\n```",
        "`x`",
        "<think>\n```python\nx\n```\n</think> So it is.",
        "```x```",
    ],
)
def test_without_a_closed_block_there_is_no_program(response: str) -> None:
    assert grade(response, SUMS) == Grade(0.0, "no code block")


# The three forms.


def test_programs_are_scored_by_output() -> None:
    assert graded("print(sum(map(int, input().split())))", SUMS) == PASSED
    assert graded("print(3)", SUMS) == Grade(0.0, "wrong output")
    assert graded("print(int(input()))", SUMS) == Grade(0.0, "raised ValueError")
    assert graded("import sys; print(sum(map(int, input().split()))); sys.exit(1)", SUMS).cause == "exit code not 0"


def test_a_right_program_may_exit_as_it_likes() -> None:
    for end in ("exit()", "raise SystemExit", "import os; sys.stdout.flush(); os._exit(0)", "sys.stdout.close()"):
        assert graded(f"import sys; print(sum(map(int, input().split())))\n{end}", SUMS) == PASSED


def test_functions_are_scored_by_result() -> None:
    assert graded(ADD, CALLS) == PASSED
    assert graded("class Solution:\n    def add(self, a: int, b: int) -> List[int]: return a + b", CALLS) == PASSED
    assert graded("def add(a, b): return a * b", CALLS) == Grade(0.0, "wrong output")
    assert graded("def sub(a, b): return a - b", CALLS) == Grade(0.0, "no such function")
    assert graded("def add(a): return a", CALLS) == Grade(0.0, "raised TypeError")


@pytest.mark.parametrize(
    ("body", "result"), [("(1, [2])", [1, [2]]), ("{1: 'x'}", {1: "x"}), ("None", None), ("0.1 + 0.2", 0.3)]
)
def test_results_are_compared_as_json(body: str, result: Any) -> None:
    assert graded(f"def f(): return {body}", {"fn_name": "f", "inputs": [[]], "outputs": [result]}) == PASSED


def test_result_that_equals_everything_is_wrong() -> None:
    code = "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()"
    assert graded(code, CALLS) == Grade(0.0, "result is not JSON")
    assert graded("def add(a, b): return {a}", CALLS) == Grade(0.0, "result is not JSON")


def test_inputs_as_text_have_outputs_as_text() -> None:
    label = {"fn_name": "f", "inputs": ['["a", 2]'], "outputs": ['"aa"']}
    assert graded("def f(a, n): return a * n", label) == PASSED
    assert graded("def f(a, n): return '\"aa\"'", label) == Grade(0.0, "wrong output")


def test_single_results_may_drop_their_list() -> None:
    wrapped = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}
    assert graded("def f(x): return x", wrapped) == PASSED
    assert graded("def f(x): return [x]", wrapped) == PASSED
    assert graded("def f(x): return x", wrapped | {"outputs": [[1], [2, 2]]}) == Grade(0.0, "wrong output")


def test_asserts_run_after_the_program() -> None:
    assert graded(ADD, ASSERTS) == PASSED
    assert graded(ADD, {"tests": "\n".join(ASSERTS["tests"])}) == PASSED
    assert graded("def add(a, b): return 3", ASSERTS) == Grade(0.0, "raised AssertionError")
    assert graded("def sub(a, b): return 3", ASSERTS) == Grade(0.0, "raised NameError")


def test_an_entry_point_is_given_to_check() -> None:
    assert graded(ADD, CHECK) == PASSED
    assert graded("def add(a, b): return 4", CHECK) == Grade(0.0, "raised AssertionError")
    solution = "class Solution:\n    def add(self, a, b): return a + b"
    assert graded(solution, CHECK | {"entry_point": "Solution().add"}) == PASSED


def test_main_block_runs_for_programs_only() -> None:
    program = ADD + "if __name__ == '__main__':\n    print(add(*map(int, input().split())))"
    assert [graded(program, label) for label in (SUMS, CALLS, ASSERTS, CHECK)] == [PASSED] * 4


# Programs that would pass without being right.


FOR_ALL_PIPES = "import os\nfor fd in range(20):\n    try: {}\n    except OSError: pass\nos._exit(0)"


@pytest.mark.parametrize("label", [CALLS, ASSERTS, CHECK], ids=["call", "asserts", "check"])
@pytest.mark.parametrize(
    "trick",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "exit()",
        "print('passed'); print(3); print(True)",
        "import atexit, os; atexit.register(os._exit, 0)",
        "def add(a, b):\n    import os; os._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        FOR_ALL_PIPES.format("""os.write(fd, b'{"token": 1, "result": 3}')"""),
        FOR_ALL_PIPES.format("os.close(fd)"),
    ],
)
def test_tricks_do_not_pass(trick: str, label: dict[str, Any]) -> None:
    assert graded(trick, label).score == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("label", [SUMS, CALLS, ASSERTS], ids=["program", "call", "asserts"])
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("while True: pass", "time limit"),
        ("while True: print('x' * 999)", "output limit"),
        ("x = bytearray(1 << 40)", "memory limit"),
        ("def f(:", "raised SyntaxError"),
        ("x = '\ud800'", "raised UnicodeEncodeError"),
        ("import ctypes; ctypes.string_at(0)", "killed by signal 11"),
    ],
)
def test_failed_program_names_its_cause(program: str, cause: str, label: dict[str, Any]) -> None:
    seconds = 0.5 if cause == "time limit" else 20
    assert grade(fenced(program), label, ProgramLimits(seconds=seconds)) == Grade(0.0, cause)


@pytest.mark.parametrize(
    ("label", "kinds"),
    [
        ({"inputs": ["1 2\n"], "outputs": ["4217"]}, ["program"]),
        ({"fn_name": "add", "inputs": [[1, 2]], "outputs": [4217]}, ["call"]),
        ({"tests": "assert add(1, 2) == 4217"}, ["serve", "judge"]),
        (CHECK | {"tests": CHECK["tests"].replace("3", "4217")}, ["serve", "judge"]),
    ],
    ids=["program", "call", "asserts", "check"],
)
def test_expected_outputs_never_enter_the_programs_process(
    monkeypatch: pytest.MonkeyPatch, label: dict[str, Any], kinds: list[str]
) -> None:
    sent: dict[str, bytes] = {}
    write = sandbox.Run._send

    def recorded(run: sandbox.Run) -> bool:
        head = bytes(run.unsent)
        kind = next((kind for kind in ("program", "call", "serve", "judge") if b'"%s"' % kind.encode() in head), "")
        run_kinds.setdefault(id(run), kind)
        sent[run_kinds[id(run)]] = sent.get(run_kinds[id(run)], b"") + head
        return write(run)

    run_kinds: dict[int, str] = {}
    monkeypatch.setattr(sandbox.Run, "_send", recorded)
    assert graded(ADD + "print(add(1, 2))", label).score == 0.0
    assert sorted(sent) == sorted(kinds)
    for kind, data in sent.items():
        assert b"add" in data and (b"4217" in data) is (kind == "judge"), kind


# Many tests.


def test_the_first_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = sandbox.Sandbox.run_program
    monkeypatch.setattr(
        sandbox.Sandbox, "run_program", lambda self, code, *rest: ran.append(rest[0]) or run(self, code, *rest)
    )
    label = {"inputs": ["1", "2", "3"], "outputs": ["1", "x", "3"]}
    assert graded("print(input())", label) == Grade(0.0, "wrong output")
    assert ran == ["1", "2"]


@pytest.mark.slow
def test_all_tests_together_have_a_limit() -> None:
    label = {"inputs": ["1"] * 100, "outputs": ["1"] * 100}
    slow = fenced("import time; time.sleep(0.3); print(1)")
    start = time.monotonic()
    result = grade(slow, label, ProgramLimits(seconds=1, seconds_in_all=0.2))
    assert result.score == 0.0 and result.cause.startswith("time limit")
    sleeping = fenced("import time; time.sleep(99)")
    assert grade(sleeping, label, ProgramLimits(seconds=60, seconds_in_all=0.2)).score == 0.0
    assert time.monotonic() - start < 20, "100 tests of 0.3 s would take 30 s, and one of 60 s more"


def test_runs_are_isolated() -> None:
    counting = "calls = []\ndef f():\n    calls.append(1)\n    open('seen', 'a').write('x')\n    "
    counting += "return len(calls) + len(open('seen').read())"
    assert graded(counting, {"fn_name": "f", "inputs": [[], []], "outputs": [2, 2]}) == PASSED


def test_a_sandbox_that_cannot_be_set_up_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(SandboxError):
        graded(ADD, CALLS)


# Labels.


def test_labels_may_be_json_with_empty_keys() -> None:
    assert graded(ADD, json.dumps(CALLS)) == PASSED
    assert graded(ADD, CALLS | {"tests": None, "difficulty": "easy"}) == PASSED


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("42", r"type int\b"),
        ("assert 1", "no name of the program"),
        ("[" * 100_000, "JSON text"),
        (None, r"type NoneType\b"),
        ({}, "'inputs'.*no keys"),
        ({"inputs": ["1"], "answer": "1"}, "'outputs'.*'inputs', 'answer'"),
        ({"inputs": "1", "outputs": ["1"]}, "'inputs'"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, "no tests"),
        ({"inputs": [[1]], "outputs": ["1"]}, "'fn_name'"),
        (CALLS | {"fn_name": ""}, "fn_name is ''"),
        (CALLS | {"inputs": [[1, 2], 3]}, "input 1 .*type int"),
        (CALLS | {"inputs": [[1, 2], "x"]}, "input 1 .*JSON text"),
        (CALLS | {"inputs": [[1, 2], "[40, 2]"]}, "output 1 .*JSON text"),
        (CALLS | {"outputs": [3, {42}]}, "output 1 .*as JSON"),
        (CALLS | ASSERTS, "'tests' and 'inputs'"),
        ({"tests": ""}, "no tests: .*'tests'"),
        ({"tests": "print(add(1, 2))"}, "no tests: .*'tests'"),
        ({"tests": CHECK["tests"]}, "no tests: .*entry_point"),
        ({"tests": "if __name__ == '__main__':\n    assert 0"}, "no tests: .*entry_point"),
        ({"tests": 7}, "^'tests' "),
        ({"tests": "assert ("}, "Python"),
        ({"tests": "assert 1\x00"}, "Python"),
        ({"tests": "assert 1", "entry_point": "add"}, "entry_point.*'check'"),
        (CHECK | {"entry_point": 7}, "entry_point is 7"),
    ],
)
def test_label_without_tests_is_refused(label: Any, message: str) -> None:
    with pytest.raises(UnusableLabelError, match=message):
        grade("no code", label)


# Equality.


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("1 2 \r\n3\n\n", "1 2\n3", True),
        ("1\n2 3", "1 2\n3", True),
        ("", " \n", True),
        ("1 2", "1 2 3", False),
        ("0.30000000000000004", "0.3", True),
        ("0.3", "3e-1", True),
        ("2", "2.0", True),
        ("89.600000", "89.599998", True),
        ("0.3333333333", "0.333333", True),
        ("0.3001", "0.3", False),
        ("3.1415", "3.14", False),
        ("0.000002", "0.000001", False),
        ("2e-9", "1e-9", False),
        ("1000000006", "1000000007", False),
        ("2.0", "2", True),
        ("2.5", "2", False),
        ("2.0", "3", False),
        ("2.0x", "2", False),
        ("011", "11", False),
        ("nan", "1.0", False),
        ("\udcff", "\ufffd", False),
    ],
)
def test_outputs_are_the_same_word_by_word(actual: str, expected: str, same: bool) -> None:
    assert same_output(actual, expected) is same


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ([1, [2.0000000000001]], [1, [2.0]], True),
        ([1, 2], [1], False),
        ({"a": 0.30000000000000004}, {"a": 0.3}, True),
        (1000000006, 1000000007, False),
        (1000000006.0, 1000000007, False),
        ("2", 2, False),
        (10**400, 1.0, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (float("inf"), 1e308, False),
        (None, 0, False),
    ],
)
def test_results_are_the_same_within_the_error_of_floats(actual: Any, expected: Any, same: bool) -> None:
    assert same_result(actual, expected) is same
