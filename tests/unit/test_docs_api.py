"""docs/api.md: every public name exists and is documented, every example runs; the package ships its types."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from documents import DOCUMENTS, ROOT, Block, blocks, name_of, spans, tables

import openrlhf_ada
from openrlhf_ada.cli import init, train_function
from openrlhf_ada.core.policies import Policy

TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def public_names() -> list[tuple[str, str]]:
    """(module, name) of all tables."""
    rows = [row for _, *rows in tables(TEXT) for row in rows]
    return [(module.strip("`"), name) for module, names, _ in rows for name in spans(names)]


PUBLIC = public_names()


def test_the_page_has_the_parts_of_the_package() -> None:
    assert len(PUBLIC) == len(set(PUBLIC)) > 70
    parts = {module.split(".")[1] for module, _ in PUBLIC if "." in module}
    assert {
        "core",
        "config",
        "simulation",
        "reward",
        "data",
        "eval",
        "reporting",
        "rollout",
        "trainer",
        "cli",
    } <= parts


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[f"{module}.{name}" for module, name in PUBLIC])
def test_public_names_are_there_and_documented(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    # A dataclass without a docstring gets its signature as one.
    assert own and not own.startswith(f"{name}("), f"{module}.{name} has no docstring"
    assert value.__module__.partition(".")[0] == "openrlhf_ada"
    if inspect.isclass(value):
        check_members(name, value)
    else:
        hints = value.__annotations__
        assert "return" in hints
        assert {p for p in inspect.signature(value).parameters if p not in ("args", "kwargs")} <= set(hints) | {"args"}


def check_members(name: str, value: type) -> None:
    """Methods that a base class or the protocol of policies has are described there."""
    described = {method for base in (*value.__mro__[1:], Policy) for method in vars(base)} | STATE
    for method, function in vars(value).items():
        function = function.fget if isinstance(function, property) else function
        if inspect.isfunction(function) and not method.startswith("_") and method not in described:
            assert function.__doc__ or function.__name__ == "<lambda>", f"{name}.{method} has no docstring"


STATE = {"state_dict", "load_state_dict"}

EXAMPLES = [
    (path, block) for path in DOCUMENTS for block in blocks(path.read_text("utf-8")) if block.language == "python"
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "block"), EXAMPLES, ids=[f"{name_of(path)}:{b.line}" for path, b in EXAMPLES])
def test_examples_run(path: Path, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file, as a reader would; some are files with a name, which their first line says.

    A training's flags and files are checked; other tests train.
    """
    init.main([str(tmp_path)])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").touch()
    monkeypatch.setattr(train_function, "_run", lambda command: (0, []))
    run = SimpleNamespace(evaluations=[{}], steps=[{}], summary={})
    monkeypatch.setattr(train_function, "read_run", lambda run_dir: run)
    rows = [{"input": f"{i}+1=", "label": str(i + 1)} for i in range(128)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    named = re.match(r"# (\w+\.py)\b", block.text)
    file = tmp_path / (named[1] if named else "example.py")
    file.write_text(block.text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), run_name="example")


def test_every_part_has_an_example() -> None:
    parts = re.split(r"^## ", TEXT, flags=re.M)[1:]
    assert all("```python" in part for part in parts), [
        part.split("\n")[0] for part in parts if "```python" not in part
    ]


def test_types_are_shipped() -> None:
    assert (Path(openrlhf_ada.__file__).parent / "py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert "py.typed" in settings["package-data"]["openrlhf_ada"]
