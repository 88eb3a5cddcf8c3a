"""Grades answers that are Python programs by running them in a sandbox against the tests of their label (`labels`).

An answer is the last closed ```python block (a plain one where there is none) after the last </think> that has what
the tests ask for, so that an example may follow; without fences, it begins with the first line of code. The score is 1
where every test passes, else 0 with the cause of the first failure; with `CodeRules.partial` it is the share of tests
that pass. Expected values do not enter the program's process: outputs and results are compared here, asserts run in
another process (`judge`). Asserts for which that is impossible are marked as forgeable.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import (
    CODE_RULES_VARIABLE,
    SECONDS_VARIABLE,
    CodeRules,
    Grade,
    before_first_answer,
    label_is_readable,
)
from openrlhf_ada.reward.programs.asserts import Asserts
from openrlhf_ada.reward.programs.judge import judge
from openrlhf_ada.reward.programs.labels import Call, Dialogue, Tests, read_label
from openrlhf_ada.reward.programs.limits import SECONDS, ProgramLimits, TestTime, limits_within
from openrlhf_ada.reward.programs.sandbox import Sandbox

_FENCE = re.compile(r"\s*(?:`{3,}([^`]*)|~{3,}([^~]*))")
_UNFENCED = re.compile(r"^(?:import |from \w+ import |def |class |@\w|print\(|[a-z_][\w, ]* = )", re.MULTILINE)
_READS = r"input\(|stdin|open\("
_PYTHON = {"python", "python3", "py"}
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,4})?")
_RELATIVE_TOLERANCE, _PRINTED_TOLERANCE = 1e-9, 1e-6
_WRONG = "wrong output"


def grade(response: str, label: Any, limits: ProgramLimits | None = None, rules: CodeRules | None = None) -> Grade:
    """Run the program in `response` against the tests of `label`. `limits`, `rules`: None for those of this process.

    Raises UnusableLabelError for a label in none of the forms of `labels`, and SandboxError where nothing can be run.
    """
    rules = rules or _rules_here(os.environ.get(CODE_RULES_VARIABLE))
    tests = read_label(label, rules.imports)
    program = find_program(response, _asked_for(tests))
    is_forgeable = isinstance(tests, Asserts) and bool(tests.forgeable or tests.in_one_process)
    if program is None:
        return Grade(0.0, "no code block", is_forgeable)
    sandbox = Sandbox(rules.imports)
    limits = limits or limits_within(float(os.environ.get(SECONDS_VARIABLE, SECONDS)))
    sandbox.prepare()
    # The sandbox works. Whatever takes too long from here on is the program.
    label_is_readable()
    if isinstance(tests, Asserts):
        return _grade_by_asserts(sandbox, program, tests, limits, partial=rules.partial)
    return _grade_by_runs(sandbox, program, tests, limits, partial=rules.partial)


@before_first_answer
def _start_sandbox() -> None:
    """Of this grading process. Raises SandboxError where no program could be run."""
    Sandbox(_rules_here(os.environ.get(CODE_RULES_VARIABLE)).imports).run_program("pass", "")


@lru_cache
def _rules_here(text: str | None) -> CodeRules:
    fields = json.loads(text or "{}")
    return CodeRules(tuple(fields.get("imports", ())), fields.get("partial", False))


def _grade_by_runs(
    sandbox: Sandbox, program: str, tests: list[Dialogue | Call], limits: ProgramLimits, *, partial: bool
) -> Grade:
    """Each test is a run of its own."""
    clock, causes = TestTime(limits, len(tests)), list[str]()
    for test in tests:
        if clock.is_over:
            cause = "time limit of all tests"
        else:
            cause = _failure(sandbox, test, program, replace(limits, seconds=clock.limit()))
        clock.count(cause)
        causes.append(cause)
        if cause and not partial:
            return Grade(0.0, cause)
    return Grade(causes.count("") / len(causes), next(filter(None, causes), ""))


def _grade_by_asserts(
    sandbox: Sandbox, program: str, tests: Asserts, limits: ProgramLimits, *, partial: bool
) -> Grade:
    if not tests.in_one_process:
        verdict = judge(sandbox, program, tests, limits, TestTime(limits, 1), partial=partial)
        if not verdict.not_turned:
            share = verdict.passed / max(verdict.passed + verdict.failed, 1) if partial else float(not verdict.failed)
            return Grade(share, verdict.cause, tests.forgeable or verdict.forgeable)
    cause = sandbox.run_tests(program, tests.source, limits, tests.given).cause
    return Grade(float(not cause), cause, forgeable=True)


def find_program(response: str, asked_for: str = "") -> str | None:
    """The last closed block of Python, or else the last plain one, after the last </think>: one with the pattern
    `asked_for`, if there is such a one. Without a fence all from the first line of code on; None without one."""
    programs: dict[tuple[bool, bool], str] = {}
    text = response.rpartition("</think>")[2]
    for language, block in _blocks(text):
        if not language or language in _PYTHON:
            programs[re.search(asked_for, block) is not None, bool(language)] = textwrap.dedent(block)
    if programs:
        return programs[max(programs)]
    # Up to a fence that closes what nothing has opened.
    text = "\n".join(itertools.takewhile(lambda line: not _FENCE.fullmatch(line), text.split("\n")))
    start = _UNFENCED.search(text)
    return text[start.start() :].partition("</answer>")[0] if start else None


def _asked_for(tests: Tests) -> str:
    """A pattern of programs that could pass: with a definition of a name that is called, or that read their input."""
    names = tests.remote if isinstance(tests, Asserts) else [test.name for test in tests if isinstance(test, Call)]
    return rf"\b(?:def|class)\s+(?:{'|'.join(map(re.escape, dict.fromkeys(names)))})\b" if names else _READS


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each closed block. A fence with a language opens one even where another is still open."""
    language, lines = "", None
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if lines is not None:
                lines.append(line)
        elif lines is None or (fence[1] or fence[2] or "").strip():
            language, lines = (fence[1] or fence[2] or "").strip().lower().partition(" ")[0], []
        else:
            yield language, "\n".join(lines)
            lines = None


def _failure(sandbox: Sandbox, test: Dialogue | Call, program: str, limits: ProgramLimits) -> str:
    """The cause; empty if the test passes."""
    if isinstance(test, Dialogue):
        result = sandbox.run_program(program, test.stdin, limits)
        is_right = same_output(result.stdout.decode(errors="surrogateescape"), test.expected)
        return result.cause or ("" if is_right else _WRONG)
    result = sandbox.run_call(program, test.name, test.arguments, limits)
    try:
        is_right = any(same_result(result.reply.get("result"), expected) for expected in test.accepted)
    except RecursionError:  # nested as deep as no label is
        is_right = False
    return result.cause or ("" if is_right else _WRONG)


def same_output(actual: str, expected: str) -> bool:
    """Whether two texts have the same words, whatever space is between them.

    A word that stands in `expected` as a number with a point or an exponent is equal within 1e-6 of its size, as
    judges of contests have it, and within 1e-6 or half of its last digit absolutely, whichever is less; every other
    word is compared as text, since two large integers may differ by less than that. 7 may be 7.0.
    """
    given, wanted = actual.split(), expected.split()
    return len(given) == len(wanted) and all(map(_same_word, given, wanted))


def _same_word(actual: str, expected: str) -> bool:
    if actual == expected or (expected.isdecimal() and re.fullmatch(rf"{expected}\.0+", actual)):
        return True
    number = _NUMBER.fullmatch(expected)
    if number is None or not (number[1] or number[2]) or not _NUMBER.fullmatch(actual):
        return False
    half_digit = 0.5 * 10.0 ** -max(len(number[1] or ".") - 1, 0) if number[2] is None else 0.0
    return math.isclose(
        float(actual), float(expected), rel_tol=_PRINTED_TOLERANCE, abs_tol=min(half_digit, _PRINTED_TOLERANCE)
    )


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
