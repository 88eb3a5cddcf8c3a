"""Test suites of other graders, read from their own test files: (label, response, is it right?).

None of them is copied into this repository. `--sources FOLDER` names a folder with any of these, as they unpack:

    math_verify-*/     pip download --no-deps --no-binary :all: math-verify==0.9.0, unpacked      Apache-2.0
    hendrycks-math/    git clone https://github.com/hendrycks/math hendrycks-math                 MIT
    lighteval/         git clone https://github.com/huggingface/lighteval                         MIT

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
        )
        for path in sorted(folder.glob(pattern))
    }
    if not found:
        raise FileNotFoundError(f"{folder} holds none of the suites that benchmarks/grader_suites.py lists")
    return {name: cases for name, cases in found.items() if cases}


_COLUMNS = (["gold", "pred", "expected"], ["gold", "pred", "result"])


def _parametrised(tree: ast.Module) -> Iterator[Case]:
    """Rows of `@pytest.mark.parametrize("gold,pred,expected", [...])`."""
    calls = [
        mark
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for mark in function.decorator_list
        if isinstance(mark, ast.Call) and len(mark.args) == 2 and isinstance(mark.args[0], ast.Constant)
    ]
    for call in calls:
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


def _asserted(tree: ast.Module) -> Iterator[Case]:
    """Methods with `test_in = ...`, `test_out = ...` and `assertTrue` or `assertFalse`. The first is the answer."""
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef):
            continue
        texts = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in method.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        if {"test_in", "test_out"} <= texts.keys():
            response = rf"\boxed{{{texts['test_in']}}}"
            yield Case(texts["test_out"], response, "assertTrue" in ast.unparse(method))
