"""Reads the labels of programs: tests in the forms of public data sets.

A label is a dict, a list, text of one in JSON or as Python prints it, or asserts as text. Keys that hold None are as
good as absent. Its forms:

- `inputs` and `outputs`: stdin and stdout; with `fn_name` arguments and results (APPS, TACO, PRIME)
- `input_output`, `ground_truth`, `verification_info`: one of these forms, as a dict or JSON text (APPS, verl, open-r1)
- `tests`, `test_list`, `test_cases`, `unit_tests`, `assert_case` or `test_code`: asserts, text or a list of texts;
  `test_setup_code`, `import_prefix` (MBPP, AceCode, SandboxFusion)
- `test` (or `tests`) and `entry_point`: Python that defines `check(candidate)`; `prompt` (HumanEval, EvalPlus)
- `tests`, `test_cases` or `examples`: a list of {`input`, `output`, `type`, `fn_name`} (open-r1, DeepCoder)
- `public_test_cases` and `private_test_cases`, `metadata` with `func_name` (LiveCodeBench)
- `public_tests`, `private_tests` and `generated_tests`: {`input`: [...], `output`: [...]} (CodeContests)
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import pickle
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openrlhf_ada.reward.grade import UnusableLabelError
from openrlhf_ada.reward.programs.asserts import Asserts, read_asserts, texts

LARGEST_PACKED = 1 << 28
"""Bytes of packed test cases."""

_WRAPPERS = ("input_output", "ground_truth", "verification_info", "reward_model")
_OF_CONTESTS = ("public_tests", "private_tests", "generated_tests")
_OF_LIVECODEBENCH = ("public_test_cases", "private_test_cases")
_SETUPS = ("test_imports", "test_setup_code", "import_prefix")
# MBPP+ has many tests in `test`, and MBPP's few in `test_list`.
_TESTS = ("tests", "test", "test_list", "test_cases", "unit_tests", "assert_case", "test_code")
_PYTHON_TESTS = re.compile(r"^\s*(?:assert\s|def (?:test|check))", re.MULTILINE)
_CALL_TYPES = {"functional", "function_call"}
_EMPTY = "the label has no tests: its lists are empty"
_STDIN_TYPES = {"stdin", "stdin_stdout", "input_output"}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A test by stdin and stdout."""

    stdin: str
    expected: str


@dataclass(frozen=True, slots=True)
class Call:
    """A test by a function's arguments; one of the results in `accepted` is right."""

    name: str
    arguments: list[Any]
    accepted: list[Any]


Tests = Asserts | list[Dialogue | Call]
"""Of one label; at least one."""


def read_label(label: Any, imports: Sequence[str] = ()) -> Tests:
    """The tests of a label. `imports`: modules that programs may import. Raises UnusableLabelError."""
    is_python = isinstance(label, str) and not label.lstrip().startswith(("{", "[")) and _PYTHON_TESTS.search(label)
    fields = [label] if is_python else _from_json(label, "the label") if isinstance(label, str) else label
    if isinstance(fields, list):
        fields = {"tests": fields}
    if not isinstance(fields, dict):
        raise UnusableLabelError(f"the label is of type {type(fields).__name__}, expected a dict or JSON text of one")
    fields = {key: value for key, value in fields.items() if value is not None}
    for key in _WRAPPERS:
        if key in fields and "inputs" not in fields and "tests" not in fields:
            inner = fields[key]
            return read_label(
                inner if isinstance(inner, str | list) else {**_others(fields), **_dict(inner, key)}, imports
            )
    return _read_form(fields, imports)


def _others(fields: dict[str, Any]) -> dict[str, Any]:
    """What may stand beside a form in another key."""
    return {key: fields[key] for key in ("fn_name", "entry_point") if key in fields}


def _read_form(fields: dict[str, Any], imports: Sequence[str]) -> Tests:
    for key in _TESTS:
        if key in fields:
            if "inputs" in fields or "outputs" in fields:
                raise UnusableLabelError(f"the label has both {key!r} and 'inputs' or 'outputs', expected one form")
            return _read_tests(key, fields, imports)
    if any(key in fields for key in _OF_LIVECODEBENCH):
        cases = [case for key in _OF_LIVECODEBENCH for case in _unpacked(fields.get(key, []), key)]
        return _read_cases(cases, fields)
    if any(key in fields for key in _OF_CONTESTS):
        return _read_contests(fields)
    if "examples" in fields and "inputs" not in fields:
        return _read_tests("examples", fields, imports)
    for key in ("inputs", "outputs"):
        if not isinstance(fields.get(key), list):
            raise UnusableLabelError(
                f"the label has no list {key!r}, expected 'inputs' and 'outputs', or 'tests'; it has {_keys(fields)}"
            )
    return _read_lists(fields["inputs"], fields["outputs"], fields.get("fn_name"))


def _read_tests(key: str, fields: dict[str, Any], imports: Sequence[str]) -> Tests:
    tests = fields[key]
    if isinstance(tests, str) and tests.lstrip().startswith(("[{", '["', "['", "{")):
        tests = _from_json(tests, repr(key))
    if isinstance(tests, dict):
        return _read_form(tests | _others(fields), imports)
    if isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        return _read_cases(tests, fields)
    setup = [line for name in _SETUPS for line in texts(fields.get(name) or [], name) if line.strip()]
    return read_asserts(
        tests, entry_point=fields.get("entry_point"), setup=setup, prompt=fields.get("prompt"), imports=imports
    )


def _read_lists(inputs: list[Any], outputs: list[Any], name: Any) -> Tests:
    if len(inputs) != len(outputs):
        raise UnusableLabelError(f"the label has {len(inputs)} inputs and {len(outputs)} outputs, expected as many")
    if not inputs:
        raise UnusableLabelError(_EMPTY)
    if name is not None:
        return _read_calls(name, inputs, outputs)
    return [Dialogue(_text(given), _text(expected)) for given, expected in zip(inputs, outputs, strict=True)]


def _text(value: Any) -> str:
    """Text, or the list of its lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise UnusableLabelError("inputs and outputs must be text, or the label needs 'fn_name'")
    return value


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise UnusableLabelError(f"fn_name is {str(name)[:80]!r}, expected the name of a function")
    return name


def _read_calls(name: Any, inputs: list[Any], outputs: list[Any]) -> Tests:
    _name(name)
    tests: list[tuple[list[Any], Any]] = []
    for at, (arguments, result) in enumerate(zip(inputs, outputs, strict=True)):
        if isinstance(arguments, str):
            arguments, result = _from_json(arguments, f"input {at}"), _from_json(result, f"output {at}")
        tests.append((_arguments(arguments, at), _as_json(result, f"output {at}")))
    wrapped = all(_is_wrapped(result) for _, result in tests)
    return [Call(name, arguments, [result, *result] if wrapped else [result]) for arguments, result in tests]


def _read_cases(cases: list[Any], fields: dict[str, Any]) -> Tests:
    """Of {input, output, type or testtype, fn_name}, all of one type or not."""
    if not cases:
        raise UnusableLabelError(_EMPTY)
    name = fields.get("fn_name") or _metadata_name(fields.get("metadata"))
    tests = [_read_case(case, at, name) for at, case in enumerate(cases)]
    calls = [test for test in tests if isinstance(test, Call) and _is_wrapped(test.accepted[0])]
    if len(calls) < len(tests):
        return tests
    return [replace(test, accepted=[*test.accepted, *test.accepted[0]]) for test in calls]


def _is_wrapped(result: Any) -> bool:
    """In a list of its own, as APPS and SYNTHETIC-1 have results."""
    return isinstance(result, list) and len(result) == 1


def _read_case(case: Any, at: int, name: Any) -> Dialogue | Call:
    if not isinstance(case, dict) or "input" not in case or "output" not in case:
        raise UnusableLabelError(f"test {at} has no 'input' and 'output'")
    kind = case.get("type") or case.get("testtype") or ("function_call" if case.get("fn_name") else "stdin")
    if kind in _STDIN_TYPES:
        return Dialogue(_text(case["input"]), _text(case["output"]))
    if kind not in _CALL_TYPES:
        raise UnusableLabelError(f"test {at} is of type {str(kind)[:80]!r}, expected 'stdin' or 'functional'")
    function = _name(case.get("fn_name") or _metadata_name(case.get("metadata")) or name)
    arguments, result = case["input"], case["output"]
    if isinstance(arguments, str):  # one argument a line
        arguments = [_from_json(line, f"input {at}") for line in arguments.split("\n") if line.strip()]
        result = _from_json(result, f"output {at}")
    return Call(function, _arguments(arguments, at), [_as_json(result, f"output {at}")])


def _arguments(given: Any, at: int) -> list[Any]:
    if not isinstance(given, list | tuple):
        raise UnusableLabelError(f"input {at} is of type {type(given).__name__}, expected the list of arguments")
    return _as_json(given, f"input {at}")


def _metadata_name(metadata: Any) -> Any:
    if isinstance(metadata, str):
        metadata = _from_json(metadata, "metadata")
    return metadata.get("func_name") if isinstance(metadata, dict) else None


def _read_contests(fields: dict[str, Any]) -> Tests:
    given: list[Any] = []
    expected: list[Any] = []
    for key in _OF_CONTESTS:
        group = _dict(fields.get(key, {}), key)
        pair = group.get("input", []), group.get("output", [])
        if not all(isinstance(one, list) for one in pair) or len(pair[0]) != len(pair[1]):
            raise UnusableLabelError(f"{key} must have lists 'input' and 'output' of the same length")
        given += pair[0]
        expected += pair[1]
    return _read_lists(given, expected, None)


_OF_SPOILT_PICKLES = (AttributeError, TypeError, ImportError, MemoryError)


class _TextOnly(pickle.Unpickler):
    """For pickled text. Whatever is more than that is refused: a pickle can run any code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no text")


def _unpacked(cases: Any, key: str) -> list[Any]:
    """A list, JSON text of one, or that text pickled, compressed and in base 64, as LiveCodeBench has it."""
    if isinstance(cases, str) and not cases.lstrip().startswith("["):
        try:
            stream = zlib.decompressobj()
            packed = stream.decompress(base64.b64decode(cases, validate=True), LARGEST_PACKED)
            cases = _TextOnly(io.BytesIO(packed)).load() if not stream.unconsumed_tail else None
        except (zlib.error, pickle.UnpicklingError, ValueError, LookupError, EOFError, *_OF_SPOILT_PICKLES) as error:
            raise UnusableLabelError(f"{key} is neither JSON text nor packed JSON text: {error}") from error
        if stream.unconsumed_tail:
            raise UnusableLabelError(f"{key} has more than {LARGEST_PACKED >> 20} MiB")
    if isinstance(cases, str):
        cases = _from_json(cases, key)
    if not isinstance(cases, list):
        raise UnusableLabelError(f"{key} is of type {type(cases).__name__}, expected a list of test cases")
    return cases


def _dict(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnusableLabelError(f"{key} is of type {type(value).__name__}, expected a dict or JSON text of one")
    return {name: inner for name, inner in value.items() if inner is not None}


def _keys(fields: dict[Any, Any]) -> str:
    return ", ".join(repr(key)[:40] for key in list(fields)[:10]) or "no keys"


def _from_json(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(text, str) and text.lstrip().startswith(("{", "[", "(")):
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                return ast.literal_eval(text.strip())
        raise UnusableLabelError(f"{what} is not JSON text: {error}") from error


def _as_json(value: Any, what: str) -> Any:
    """As it comes out of the sandbox: lists for tuples, keys as text."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableLabelError(f"{what} cannot be written as JSON: {error}") from error
