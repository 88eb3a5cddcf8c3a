"""docs/gpu.md says which tests rehearse each path: they exist, and `make gpu-rehearsal` runs them."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT, section, spans, tables

MARKER = "pytest.mark.rehearsal"
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
PATHS = next(tables(section(PAGE, "Paths")))
REHEARSED_BY = PATHS[0].index("Rehearsed by")
NAMED = sorted({name for row in PATHS[1:] for name in spans(row[REHEARSED_BY])})


@cache
def rehearsals() -> dict[str, bool]:
    """Every test of this project by name, and whether it carries the marker: its own, or its module's."""
    found: dict[str, bool] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and marks(node.value)
            for node in tree.body
        )
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = of_module or any(map(marks, node.decorator_list)) or found.get(node.name, False)
    return found


def marks(node: ast.AST) -> bool:
    return any(ast.unparse(part) == MARKER for part in ast.walk(node) if isinstance(part, ast.Attribute))


@pytest.mark.parametrize("name", NAMED)
def test_a_named_rehearsal_exists_and_is_run(name: str) -> None:
    assert name in rehearsals(), f"there is no test {name}"
    assert rehearsals()[name], f"{name} lacks the marker `rehearsal`"


def test_every_path_is_rehearsed_or_says_that_it_is_not() -> None:
    empty = [row[0] for row in PATHS[1:] if not spans(row[REHEARSED_BY]) and row[REHEARSED_BY] != "nothing"]
    assert not empty


def test_the_marker_is_seen_where_it_stands() -> None:
    assert rehearsals()["test_a_named_rehearsal_exists_and_is_run"] is False
    assert rehearsals()["test_the_driver_is_read_and_let_go"] is True, "by its module"
    assert rehearsals()["test_an_actor_whose_constructor_fails_after_a_death_is_not_tried_again"] is True, "by itself"


def test_make_runs_all_that_carry_it() -> None:
    recipe = Path(ROOT / "Makefile").read_text(encoding="utf-8").partition("\ngpu-rehearsal:")[2].partition("\n\n")[0]
    selections = [words.partition('"')[0] for words in recipe.split('-m "')[1:]]
    assert selections == ["rehearsal and not e2e", "rehearsal and e2e"], "together: all"
    assert "tests/gpu/first_run.sh" in recipe


def test_microseconds_of_a_token_are_as_measured() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "engine_host.json").read_text())["figures"]
    table = next(rows for rows in tables(PAGE) if rows[0][0] == "vLLM's output processor")
    measured = [
        [f"{figures[name + end]:.1f}" for end in ("_host", "")] for name in ("us_per_token", "us_per_token_logprobs")
    ]
    assert [row[1:] for row in table[1:]] == measured, "python benchmarks/engine_host.py"
    assert f"read its log-probabilities: {figures['reading_us_per_token_logprobs']:.1f} µs per token" in PAGE
