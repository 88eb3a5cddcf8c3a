"""Private names of OpenRLHF, vLLM, Ray and DeepSpeed are read and replaced in `host/` alone, each with its reason.

`platforms/without_gpu/` is the second place: what makes OpenRLHF run without a GPU stands there together. Another
trainer's private names stand in its adapter.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
from private_access import Access, Class, classes_of, parsed, private_accesses

import openrlhf_ada
from openrlhf_ada.host.parser import host_root

PACKAGE = Path(openrlhf_ada.__file__).parent
CONTRACTS = Path(__file__).parents[1] / "contract"
FOLDERS = (PACKAGE / "host", PACKAGE / "platforms" / "without_gpu", PACKAGE / "adapters")
HOMES = sorted(path for folder in FOLDERS for path in folder.glob("*.py"))
OTHERS = sorted(set(PACKAGE.rglob("*.py")) - set(HOMES))

NO_OTHER_WAY = {("config/flags.py", "parser._actions"): "argparse has no public list of its flags"}

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

CONTRACT = re.compile(r"^\s*Contract: (\w+)\.(\w+)$", re.MULTILINE)
"""The line of a docstring that names a contract test: file and function."""


@lru_cache
def classes(folder: Path) -> dict[str, Class]:
    return {name: found for path in folder.rglob("*.py") for name, found in classes_of(parsed(path)).items()}


def accesses(path: Path) -> list[Access]:
    return private_accesses(parsed(path), classes(PACKAGE), classes(host_root()))


def test_only_host_and_cpu_platform_touch_privates() -> None:
    found = {(str(path.relative_to(PACKAGE)), a.line, a.text) for path in OTHERS for a in accesses(path)}
    known = {entry for entry in found if (entry[0], entry[2]) in NO_OTHER_WAY}
    assert found - known == set(), "move it into host/ or give OpenRLHF's class a public name there"
    assert {(path, text) for path, _, text in known} == NO_OTHER_WAY.keys(), "an exception that is no longer needed"


def contracts_of(*nodes: ast.AST) -> list[tuple[str, str]]:
    documented = (n for n in nodes if isinstance(n, DOCUMENTED))
    return [match for node in documented for match in CONTRACT.findall(ast.get_docstring(node) or "")]


def contract_tests() -> set[tuple[str, str]]:
    return {
        (path.stem, node.name)
        for path in CONTRACTS.glob("test_*.py")
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_access_names_its_contract_test() -> None:
    for path in HOMES:
        places = [(a, (parsed(path), *a.inside[-2:])) for a in accesses(path)]
        silent = [f"{path.name}:{a.line}: {a.text}" for a, places in places if not contracts_of(*places)]
        assert silent == [], "add the line 'Contract: <file>.<test>' to the docstring of the module, function or class"
        named = contracts_of(*ast.walk(parsed(path)))
        assert set(named) <= contract_tests()
        text = path.read_text(encoding="utf-8")
        assert text.count("Contract:") == len(named), "each stands on a line of its own, without more words"


def test_every_access_gives_its_reason() -> None:
    """Above the contract test that its docstring names, there is a sentence."""
    for path in HOMES:
        for node in (node for node in ast.walk(parsed(path)) if isinstance(node, DOCUMENTED)):
            reason, is_there, _ = (ast.get_docstring(node) or "").partition("Contract:")
            assert not is_there or reason.strip(), f"{path.name}: {ast.unparse(node)[:80]}"


def test_a_fact_of_the_host_is_tied_to_the_file_that_needs_it() -> None:
    """The contract `test_openrlhf_facts.test_fact` is those of its cases that name this file."""
    facts = parsed(CONTRACTS / "test_openrlhf_facts.py")
    firsts = [node.elts[0] for node in ast.walk(facts) if isinstance(node, ast.Tuple)]
    tied = {first.value for first in firsts if isinstance(first, ast.Constant)}
    for path in HOMES:
        if ("test_openrlhf_facts", "test_fact") in contracts_of(*ast.walk(parsed(path))):
            assert str(path.relative_to(PACKAGE)) in tied


def test_cpu_changes_name_their_contract_tests() -> None:
    functions = [
        node
        for path in HOMES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith(("adapt_", "install_"))
    ]
    assert len(functions) >= 8
    assert [function.name for function in functions if not contracts_of(function)] == []


# -- the finder itself ------------------------------------------------------------------------------------------------

THEIRS = "class Trainer:\n def __init__(self): self._buffer = self.groups = []\n def _step(self): ..."
OURS = "class Ours(unwrap_ray_class(theirs.Trainer)): ...\nclass Deeper(Ours): ..."


def found_in(text: str) -> list[str]:
    tree = ast.parse(text)
    ours = classes_of(ast.parse(OURS)) | classes_of(tree)
    return [access.text for access in private_accesses(tree, ours, classes_of(ast.parse(THEIRS)))]


@pytest.mark.parametrize(
    "text",
    [
        "from ray._private import services",
        "import ray._private.worker",
        "from vllm.v1 import _custom_ops",
        "from vllm.reload.layerwise import get_layerwise_info",
        "import ray\nray._private.services.find()",
        "def f(group): return group._actor_handlers[0]",
        "def f(wrapped): return wrapped.__ray_metadata__",
        "def f(ops): ops.__compatible_ops__['x'] = False",
        "def f(llm): return llm.output_processor.abort('r')",
        "def f(llm): return getattr(llm, '_loop', None)",
        "class A(Deeper):\n def step(self): return super()._step()",
        "class A(Deeper):\n def step(self): return self._buffer",
        "class A(Deeper):\n def step(self): self._buffer = []",
        "class A(Deeper):\n def step(self): return getattr(self, '_buffer', None)",
        "class A(Deeper):\n def _step(self): ...",
        "class A(base.Trainer):\n def _step(self): ...",
        "Theirs = unwrap_ray_class(theirs.Trainer)\nclass A(Theirs):\n def step(self): return self._buffer",
        "class A(Deeper):\n def step(self): self.groups = []",
        "from openrlhf.trainer import ppo\nppo.Trainer = None",
        "from openrlhf.trainer.ppo import Trainer\nTrainer.groups = []",
        "import torch\ntorch.cuda.current_device = int",
        "from deepspeed import ops\nops.table['x'] = False",
        "import ray\ndel ray.init",
        "def adapt(module): module.Actor.forward = None",
        "def f(executor): setattr(executor, 'reward_func', None)",
        "import vllm\nsetattr(vllm, 'LLM', None)",
        "from unittest import mock\nmock.patch('vllm.LLM')",
        "import vllm\nfrom unittest.mock import patch\npatch.object(vllm, 'LLM')",
        "with substituted(module, Trainer=Ours): ...",
    ],
)
def test_private_access_is_found(text: str) -> None:
    assert found_in(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "import ray\nray.get(ray.put(1))",
        "from vllm.v1.engine import AsyncLLM",
        "from ray.util.queue import Queue as _Queue",
        "import os\nos._exit(1)",
        "class A:\n def __init__(self): self._buffer = []\n def f(self): return self._buffer",
        "class A(Deeper):\n def __init__(self): self._mine = 1\n def f(self): return self._mine",
        "class A(Deeper):\n def _of_ours(self): ...\n def f(self): return self._of_ours()",
        "class A(Deeper):\n def __init__(self): self.groups = []",
        "class A(Deeper):\n def f(self): self.of_ours = self.groups",
        "class A:\n def __init__(self): self._x = 1\n def same(self, other): return self._x == other._x",
        "def f(experience): experience.advantages = 1",
        "def f(self, name): setattr(self, name, 1)",
        "import torch\nt = torch.zeros(2)\nt[0] = 1",
        "class Ours: ...\nOurs.x = 1",
        "def f(value): return type(value).__name__",
        "def f(kind): return kind.__getitem__, kind.__call__, kind.__aenter__",
        "from types import ModuleType\nmodule = ModuleType('m')\nsetattr(module, 'x', 1)",
    ],
)
def test_public_access_is_left_alone(text: str) -> None:
    assert found_in(text) == []
