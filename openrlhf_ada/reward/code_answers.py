"""Grades answers that are Python programs by running them against the tests of their label.

An answer is the last closed ```python block of the response (a plain ``` block where there is none), after the last
</think>. A label is a dict, or JSON text of one, in one of the forms of public data sets (keys that hold None are as
good as absent):

- {"inputs": [text, ...], "outputs": [text, ...]}: the program gets each input as stdin, its stdout is compared.
- {"fn_name": name, "inputs": [[argument, ...], ...], "outputs": [result, ...]}: the function is called, or the method
  of that name of a class Solution. A test whose input is text has input and output as JSON text. Where every output
  is a list of one element, that element is right too: APPS and TACO wrap their results so.
- {"tests": "assert ..." or ["assert ...", ...]}: run after the program in the same process. With "entry_point" the
  tests define `check(candidate)`, which is called with it.

It is all or nothing: 1 where every test passes, else 0 with the cause of the first failure. Programs run in the
sandbox of `sandbox.py`, without site-packages. In the first two forms the expected outputs never enter the sandbox, so
that a program has to compute them. In the third they do, and a program that inspects its own process can forge a pass.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from openrlhf_ada.reward.grade import SECONDS_VARIABLE, Grade, UnusableLabelError
from openrlhf_ada.reward.sandbox import ProgramLimits, limits_within, run_call, run_program, run_tests

Check = Callable[[str, ProgramLimits], str]
"""(program, limits) -> "" if it passes, else the cause."""

_FENCE = re.compile(r"\s*`{3,}([^`]*)")
_PYTHON = {"python", "python3", "py"}
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,4})?")
_RELATIVE_TOLERANCE = 1e-9
_WRONG = "wrong output"
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
)


def grade(response: str, label: Any, limits: ProgramLimits | None = None) -> Grade:
    """Return 1 where the program in `response` passes every test of `label`, else 0 with the cause.

    `limits`: None for what fits into the time that one answer may take in this process.

    Raises UnusableLabelError where the label has no tests in one of the forms above, and SandboxError where nothing
    can be run.
    """
    checks = read_label(label)
    program = find_program(response)
    if program is None:
        return Grade(0.0, "no code block")
    limits = limits or _limits_here()
    deadline = time.monotonic() + limits.seconds_in_all
    for check in checks:
        left = deadline - time.monotonic()
        if left <= 0:
            return Grade(0.0, "time limit of all tests")
        cause = check(program, replace(limits, seconds=min(limits.seconds, left)))
        if cause:
            return Grade(0.0, cause)
    return Grade(1.0)


def _limits_here() -> ProgramLimits:
    seconds = os.environ.get(SECONDS_VARIABLE)
    return ProgramLimits() if seconds is None else limits_within(float(seconds))


def find_program(response: str) -> str | None:
    """The last closed block of Python, or else the last plain one, after the last </think>; None without one."""
    programs: dict[bool, str] = {}
    for language, text in _blocks(response.rpartition("</think>")[2]):
        if not language or language in _PYTHON:
            programs[bool(language)] = textwrap.dedent(text)
    return programs.get(True, programs.get(False))


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each closed block. A fence with a language opens one even where another is still open."""
    language, lines = "", None
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if lines is not None:
                lines.append(line)
        elif lines is None or fence[1].strip():
            language, lines = fence[1].strip().lower().partition(" ")[0], []
        else:
            yield language, "\n".join(lines)
            lines = None


def read_label(label: Any) -> list[Check]:
    """The checks that a label asks for, at least one. Raises UnusableLabelError."""
    fields = _from_json(label, "the label") if isinstance(label, str) else label
    if not isinstance(fields, dict):
        raise UnusableLabelError(f"the label is of type {type(fields).__name__}, expected a dict or JSON text of one")
    fields = {key: value for key, value in fields.items() if value is not None}
    if "tests" in fields:
        if "inputs" in fields or "outputs" in fields:
            raise UnusableLabelError("the label has both 'tests' and 'inputs' or 'outputs', expected one form")
        return [partial(_check_tests, _read_tests(fields["tests"], fields.get("entry_point")))]
    for key in ("inputs", "outputs"):
        if not isinstance(fields.get(key), list):
            raise UnusableLabelError(
                f"the label has no list {key!r}, expected 'inputs' and 'outputs', or 'tests'; it has {_keys(fields)}"
            )
    inputs, outputs = fields["inputs"], fields["outputs"]
    if len(inputs) != len(outputs):
        raise UnusableLabelError(f"the label has {len(inputs)} inputs and {len(outputs)} outputs, expected as many")
    if not inputs:
        raise UnusableLabelError("the label has no tests: its lists are empty")
    if "fn_name" in fields:
        return _read_calls(fields["fn_name"], inputs, outputs)
    if not all(isinstance(text, str) for text in inputs + outputs):
        raise UnusableLabelError("inputs and outputs must be text, or the label needs 'fn_name'")
    return [partial(_check_program, *test) for test in zip(inputs, outputs, strict=True)]


def _read_calls(name: Any, inputs: list[Any], outputs: list[Any]) -> list[Check]:
    if not isinstance(name, str) or not name.isidentifier():
        raise UnusableLabelError(f"fn_name is {name!r}, expected the name of a function")
    tests: list[tuple[list[Any], Any]] = []
    for at, (arguments, result) in enumerate(zip(inputs, outputs, strict=True)):
        if isinstance(arguments, str):
            arguments, result = _from_json(arguments, f"input {at}"), _from_json(result, f"output {at}")
        if not isinstance(arguments, list | tuple):
            raise UnusableLabelError(
                f"input {at} is of type {type(arguments).__name__}, expected the list of arguments"
            )
        tests.append((_as_json(arguments, f"input {at}"), _as_json(result, f"output {at}")))
    wrapped = all(isinstance(result, list) and len(result) == 1 for _, result in tests)
    return [
        partial(_check_call, name, arguments, [result, *result] if wrapped else [result])
        for arguments, result in tests
    ]


def _read_tests(tests: Any, entry_point: Any) -> str:
    parts = [tests] if isinstance(tests, str) else tests
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UnusableLabelError("'tests' must be text or a list of texts")
    if not isinstance(entry_point, str | None):
        raise UnusableLabelError(f"entry_point is {entry_point!r}, expected the name of a function")
    source = "\n".join([*parts, f"check({entry_point})"] if entry_point else parts)
    try:
        steps = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnusableLabelError(f"the tests are not Python: {error}") from error
    if entry_point and not any(isinstance(step, ast.FunctionDef) and step.name == "check" for step in steps):
        raise UnusableLabelError("the label has an entry_point, but its tests define no function 'check'")
    if not any(isinstance(node, ast.Assert | ast.Raise) for step in steps for node in ast.walk(step)):
        raise UnusableLabelError("the label has no tests: nothing in 'tests' is asserted")
    if all(map(_runs_nothing, steps)):
        raise UnusableLabelError("the label has no tests: nothing in 'tests' is run (is there an entry_point?)")
    return source


def _runs_nothing(step: ast.stmt) -> bool:
    """Definitions, text, and what is for a main program only, which tests are not."""
    if isinstance(step, ast.If):
        return "__name__" in ast.unparse(step.test)
    return isinstance(step, _DEFINITIONS) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))


def _keys(fields: dict[Any, Any]) -> str:
    return ", ".join(repr(key)[:40] for key in list(fields)[:10]) or "no keys"


def _from_json(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableLabelError(f"{what} is not JSON text: {error}") from error


def _as_json(value: Any, what: str) -> Any:
    """As it comes out of the sandbox: lists for tuples, keys as text."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableLabelError(f"{what} cannot be written as JSON: {error}") from error


def _check_program(stdin: str, expected: str, program: str, limits: ProgramLimits) -> str:
    result = run_program(program, stdin, limits)
    if result.cause:
        return result.cause
    return "" if same_output(result.stdout.decode(errors="surrogateescape"), expected) else _WRONG


def _check_call(name: str, arguments: list[Any], accepted: list[Any], program: str, limits: ProgramLimits) -> str:
    result = run_call(program, name, arguments, limits)
    if result.cause:
        return result.cause
    try:
        return "" if any(same_result(result.reply["result"], expected) for expected in accepted) else _WRONG
    except RecursionError:  # nested as deep as no label is
        return _WRONG


def _check_tests(tests: str, program: str, limits: ProgramLimits) -> str:
    return run_tests(program, tests, limits).cause


def same_output(actual: str, expected: str) -> bool:
    """Whether two texts have the same words, whatever space is between them.

    A word that stands in `expected` as a number with a point or an exponent is equal within 1e-9, relative to the
    larger; every other word is compared as text, since two large integers may differ by less than that.
    """
    given, wanted = actual.split(), expected.split()
    return len(given) == len(wanted) and all(map(_same_word, given, wanted))


def _same_word(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    number = _NUMBER.fullmatch(expected)
    if number is None or not (number[1] or number[2]) or not _NUMBER.fullmatch(actual):
        return False
    return math.isclose(float(actual), float(expected), rel_tol=_RELATIVE_TOLERANCE)


def same_result(actual: Any, expected: Any) -> bool:
    """Equality of two JSON values, as Python's `==`, but within 1e-9 where a float is expected."""
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(same_result, actual, expected))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(same_result(actual[key], expected[key]) for key in expected)
    if isinstance(expected, float) and isinstance(actual, float | int):
        if math.isnan(expected):
            return actual != actual
        if abs(actual) <= sys.float_info.max:
            return math.isclose(actual, expected, rel_tol=_RELATIVE_TOLERANCE)
    return actual == expected
