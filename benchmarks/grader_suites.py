"""Test suites of other graders, read from their own test files: (label, response, is it right?).

None of them is copied into this repository. `--sources FOLDER` names a folder with any of these, as they unpack:

    math_verify-*/     pip download --no-deps --no-binary :all: math-verify==0.9.0, unpacked      Apache-2.0
    hendrycks-math/    git clone https://github.com/hendrycks/math hendrycks-math                 MIT
    lighteval/         git clone https://github.com/huggingface/lighteval                         MIT
    math_evaluation/   git clone https://github.com/MARIO-Math-Reasoning/math_evaluation          no licence
    NeMo-Skills/       git clone https://github.com/NVIDIA/NeMo-Skills                            Apache-2.0
    tinker-cookbook/   git clone https://github.com/thinking-machines-lab/tinker-cookbook         Apache-2.0
    AReaL/             git clone https://github.com/areal-project/AReaL                           Apache-2.0

Their files are parsed, never run. Left out are cases about an option of a grader (a language, a precision, a
strictness) and cases that name no label.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_ada.reward.mathematics.text import unfenced

DATA = Path(__file__).parents[1] / "tests" / "data"


@dataclass(frozen=True, slots=True)
class Case:
    """`label`: one, or several of which each is right. `right`: does the suite's author say so?"""

    label: str | tuple[str, ...]
    response: str
    right: bool


def own_suites() -> dict[str, list[Case]]:
    """Those of tests/data, by file name."""
    return {path.stem: list(_own(path)) for path in sorted(DATA.glob("math_*.jsonl"))}


def _own(path: Path) -> Iterator[Case]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        label = row["label"]
        yield Case(tuple(label) if isinstance(label, list) else label, row["response"], row["right"])


def outside_suites(folder: Path) -> dict[str, list[Case]]:
    """Those that are found in the folder. Raises FileNotFoundError where there is none."""
    found = {
        f"{name}/{path.stem}": list(reader(ast.parse(path.read_text(encoding="utf-8"))))
        for name, pattern, reader in (
            ("math_verify", "math_verify-*/tests/test_*.py", _parametrised),
            ("lighteval", "lighteval/tests/unit/metrics/test_extractive_match.py", _parametrised),
            ("hendrycks_math", "hendrycks-math/modeling/math_equivalence_test.py", _asserted),
            ("math_evaluation", "math_evaluation/math_evaluation/tests/test_is_equiv.py", _asserted),
            ("nemo_skills", "NeMo-Skills/tests/test_math_equal.py", _both_ways),
            ("tinker_cookbook", "tinker-cookbook/tinker_cookbook/recipes/math_rl/math_env_test.py", _graded),
            ("areal", "AReaL/tests/test_math_verify_reward.py", _rewarded),
        )
        for path in sorted(folder.glob(pattern))
    }
    if not found:
        raise FileNotFoundError(f"{folder} holds none of the suites that benchmarks/grader_suites.py lists")
    return {name: cases for name, cases in found.items() if cases}


_COLUMNS = (["gold", "pred", "expected"], ["gold", "pred", "result"])


def _parametrised(tree: ast.Module) -> Iterator[Case]:
    """Rows of `@pytest.mark.parametrize("gold,pred,expected", [...])`."""
    for _, call in _calls(tree):
        if len(call.args) != 2 or not isinstance(call.args[0], ast.Constant):
            continue
        names = [name.strip() for name in ast.literal_eval(call.args[0]).split(",")]
        if names not in _COLUMNS or not isinstance(call.args[1], ast.List):
            continue
        for row in call.args[1].elts:
            values = _literal(row)
            if values is not None:
                yield Case(values[0], values[1], bool(values[2]))


def _literal(node: ast.expr) -> Any:
    """None for what is computed, such as an f-string."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _calls(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    """Decorators that are calls, with their functions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            yield from ((function, mark) for mark in function.decorator_list if isinstance(mark, ast.Call))


def _asserted(tree: ast.Module) -> Iterator[Case]:
    """`test_in = ...`, `test_out = ...`, or `test_pairs = [...]`, and behind them `assertTrue` or `assertFalse`."""
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef):
            continue
        values: dict[str, Any] = {}
        for statement in method.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _literal(statement.value)
            elif "assert" in (code := ast.unparse(statement)):
                pairs = values["test_pairs"] if isinstance(statement, ast.For) else [_pair(values)]
                for given, expected in pairs:
                    yield Case(expected, _boxed(given), "assertTrue" in code)


def _pair(values: dict[str, Any]) -> tuple[str, str]:
    return values["test_in"], values["test_out"]


def _both_ways(tree: ast.Module) -> Iterator[Case]:
    """`@pytest.mark.parametrize("output_pair", [...])` over `test_correct_...` and `test_incorrect_...`."""
    for function, call in _calls(tree):
        for row in call.args[1].elts if isinstance(call.args[1], ast.List) else ():
            pair = _literal(row)
            if pair is not None and None not in pair:
                for given, expected in (pair, pair[::-1]):
                    yield Case(str(expected), _boxed(str(given)), function.name.startswith("test_correct"))


def _graded(tree: ast.Module) -> Iterator[Case]:
    """`assert grade_answer(given, expected) is True`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare)):
            continue
        call = node.test.left
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "grade_answer":
            given, expected = (_literal(argument) for argument in call.args)
            if given is not None:
                yield Case(expected, _boxed(given), ast.unparse(node.test.comparators[0]) == "True")


def _rewarded(tree: ast.Module) -> Iterator[Case]:
    """`reward = f(completions=..., answer=...)` and `assert reward == 1.0`, one of each in a method."""
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef):
            continue
        calls = [node for node in ast.walk(method) if isinstance(node, ast.Call) and node.keywords]
        given = [{k.arg: _literal(k.value) for k in call.keywords} for call in calls]
        given = [one for one in given if one.get("completions") is not None and one.get("answer") is not None]
        asserted = [ast.unparse(node.test) for node in ast.walk(method) if isinstance(node, ast.Assert)]
        if len(given) == 1 and asserted in (["reward == 1.0"], ["reward == 0.0"]):
            yield Case(given[0]["answer"], given[0]["completions"], asserted == ["reward == 1.0"])


def _boxed(answer: str) -> str:
    return rf"\boxed{{{unfenced(answer)}}}"
