"""The core is light, layers are small, and no code guesses group identity from positions (R1, R18)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from private_access import nodes, parsed

import openrlhf_ada

PACKAGE = Path(openrlhf_ada.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 50

HEAVY = ("ray", "vllm", "torch", "transformers", "openrlhf", "deepspeed", "datasets", "matplotlib", "rich")

IMPORT_WITHOUT = """
import importlib, importlib.abc, pkgutil, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {heavy!r}:
            raise ImportError(f"{{name}} is blocked in this test")

sys.meta_path.insert(0, Blocked())
names = {names!r}
for name in list(names):
    module = importlib.import_module(name)
    names += [m.name for m in pkgutil.walk_packages(getattr(module, "__path__", []), name + ".")]
for name in names:
    importlib.import_module(name)
print(len(names), *sorted(n for n in sys.modules if n.startswith("openrlhf_ada")))
"""


def import_without_heavy(*names: str) -> list[str]:
    """Import modules and all their submodules with the heavy packages blocked; our modules that were loaded."""
    script = IMPORT_WITHOUT.format(heavy=HEAVY, names=list(names))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1:]


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


LIGHT = {"core": (), "config": ("core",), "simulation": ("config", "core", "reporting", "reward")}
"""Packages that need numpy only, each with those of ours that it needs."""


@pytest.mark.parametrize("package", LIGHT)
def test_light_packages_import_without_heavy_ones(package: str) -> None:
    loaded = import_without_heavy(f"openrlhf_ada.{package}")
    submodules = {f"openrlhf_ada.{package}.{path.stem}" for path in (PACKAGE / package).glob("[!_]*.py")}
    assert submodules and submodules <= set(loaded)
    parts = {name.split(".")[1] for name in loaded if "." in name}
    assert parts <= {package, *LIGHT[package]}, "nothing from above was needed"


def test_command_line_is_checked_without_heavy_imports() -> None:
    """Flags, data and paths are checked before Ray, torch or vLLM are even imported."""
    loaded = import_without_heavy("openrlhf_ada.cli.train_ppo_ray")
    assert "openrlhf_ada.trainer.preflight" in loaded


def test_core_needs_numpy_and_the_standard_library_only() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "openrlhf_ada"}
    for path in (path for name in LIGHT for path in (PACKAGE / name).rglob("*.py")):
        for node in nodes(parsed(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{relative(path)}: relative import"
                names = [node.module or ""]
            for name in names:
                if path.name == "yaml_file.py" and name == "yaml":
                    continue  # a declared dependency, imported where a file is read
                assert name.partition(".")[0] in allowed, f"{relative(path)} imports {name}"


def test_core_has_no_clock_files_or_global_randomness() -> None:
    forbidden = {"time", "datetime", "os", "pathlib", "random", "io", "logging", "threading"}
    for path in (PACKAGE / "core").rglob("*.py"):
        text = path.read_text()
        imported = {
            name.partition(".")[0]
            for node in nodes(parsed(path))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        assert not imported & forbidden, f"{relative(path)} imports {sorted(imported & forbidden)}"
        assert "np.random.default_rng(" not in text, f"{relative(path)}: randomness comes in as a generator"
        assert "np.random.seed" not in text


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions and for types count as well."""
    modules = {str(path.relative_to(PACKAGE.parent).with_suffix("")).replace("/", "."): path for path in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    imports: dict[str, set[str]] = {}
    for name, path in modules.items():
        found: set[str] = set()
        for node in nodes(parsed(path)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
                found.add(node.module or "")
        packages = {name.rsplit(".", end)[0] for end in range(1, name.count(".") + 1)}
        imports[name] = (found & set(modules)) - {name} - packages
    TopologicalSorter(imports).prepare()


def test_files_and_functions_are_small() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) <= MAX_FILE_LINES, relative(path)
        for function in functions(parsed(path)):
            length = (function.end_lineno or 0) - function.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{relative(path)}: {function.name} has {length} lines"


def test_no_group_is_found_by_reshaping() -> None:
    """R1: `reshape(-1, n)` makes a group of whatever n samples stand next to each other."""
    for path in FILES:
        if path.parent.name in ("weights", "inside"):
            continue  # bytes of weights, and values of programs: no samples
        for node in nodes(parsed(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in ("reshape", "view", "unflatten", "chunk"):
                raise AssertionError(f"{relative(path)}:{node.lineno}: {ast.unparse(node)}")


def test_no_flag_of_the_host_is_declared_here() -> None:
    """`add_argument` stands only where our own commands are, where our flags become arguments, and where the name of
    a preset is looked for."""
    for path in FILES:
        if path.name not in ("flags.py", "preset_flags.py") and path.parent.name != "cli":
            assert ".add_argument(" not in path.read_text(), relative(path)
