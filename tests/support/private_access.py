"""Finds, in source text, where a module reads or replaces what other packages keep private.

By the AST alone: what an object is at run time is not known, so names stand for it.
`tests/unit/test_private_access.py` has an example of each kind of access.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FunctionType, MethodType, ModuleType

PACKAGES = ("openrlhf", "vllm", "ray", "deepspeed", "torch", "torchdata", "transformers", "peft")

INTERNALS = {"output_processor", "external_req_ids", "modified_class", "ds_shape", "get_layerwise_info"}
"""Names without an underscore that no documentation of theirs promises."""

KINDS = (type, dict, list, float, property, ModuleType, FunctionType, MethodType, AsyncGeneratorType, CoroutineType)
PYTHONS = {name for kind in KINDS for name in dir(kind)} | {
    *(
        "__aenter__",
        "__aexit__",
        "__bool__",
        "__cause__",
        "__dataclass_fields__",
        "__enter__",
        "__exit__",
        "__file__",
        "__path__",
        "__set_name__",
    ),
    *("__spec__", "__version__", "__wrapped__"),
}
"""Names with two underscores that Python itself defines."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


@dataclass(frozen=True)
class Access:
    """One access: the line, its text, and the functions and classes that it stands in, the innermost last."""

    line: int
    text: str
    inside: tuple[ast.AST, ...]


@dataclass(frozen=True)
class Class:
    """Of a class: last parts of its bases' names, private names that it defines, public attributes that it sets."""

    bases: tuple[str, ...]
    private: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and name not in PYTHONS


@cache
def classes_of(tree: ast.AST) -> dict[str, Class]:
    """Every class of a module by its name. `unwrap_ray_class(x.Y)` has the base Y, also where it gets a name."""
    found: dict[str, Class] = {}
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef):
            bases = tuple(_class_name(base) for base in node.bases)
            found[node.name] = Class(bases, *_names(node))
        elif (
            isinstance(node, ast.Assign) and getattr(getattr(node.value, "func", None), "id", "") == "unwrap_ray_class"
        ):
            found |= {ast.unparse(target): Class((_class_name(node.value),)) for target in node.targets}
    return found


def _class_name(base: ast.AST) -> str:
    inner = base.args[0] if isinstance(base, ast.Call) and base.args else base
    return ast.unparse(inner).rpartition(".")[2]


def ancestors(name: str, ours: Mapping[str, Class], theirs: Mapping[str, Class]) -> list[Class]:
    """Classes of theirs from which a class of ours is derived, the nearest or not."""
    found: list[Class] = []
    for base in ours[name].bases if name in ours else theirs[name].bases if name in theirs else ():
        if base not in ours and base in theirs:
            found.append(theirs[base])
        if base != name:
            found += ancestors(base, ours, theirs)
    return found


def private_accesses(tree: ast.Module, ours: Mapping[str, Class], theirs: Mapping[str, Class]) -> list[Access]:
    """All of a module. `ours`, `theirs`: classes of our package and of the packages that it extends."""
    finder = _Finder(tree, ours, theirs)
    finder.visit(tree)
    return finder.found


def _names(of: ast.ClassDef) -> tuple[frozenset[str], frozenset[str]]:
    """Private names that a class defines, as functions or by assignments, and public x of its `self.x = ...`."""
    private, attributes = set(), set()
    for node in ast.walk(of):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            private.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            private.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node) in ("self", "cls"):
            private.add(node.attr)
            if getattr(node.value, "id", "") == "self":
                attributes.add(node.attr)
    return frozenset(filter(is_private, private)), frozenset(name for name in attributes if not is_private(name))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


class _Finder(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, ours: Mapping[str, Class], theirs: Mapping[str, Class]) -> None:
        self.found: list[Access] = []
        self._ours, self._theirs = ours, theirs
        self._own = {name for found in classes_of(tree).values() for name in found.private}
        self._imported: set[str] = set()
        self._standard: set[str] = set()
        self._inside: list[ast.AST] = []
        for node in nodes(tree):
            self._note_import(node)

    def _note_import(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return
        for alias in node.names:
            package = (alias.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
            name = alias.asname or alias.name.partition(".")[0]
            if package in PACKAGES:
                self._imported.add(name)
            elif package in sys.stdlib_module_names:
                self._standard.add(name)

    def _add(self, node: ast.AST) -> None:
        self.found.append(Access(node.lineno, ast.unparse(node), tuple(self._inside)))  # type: ignore[attr-defined]

    # -- where it is ---------------------------------------------------------------------------------------------

    def _visit_inside(self, node: ast.AST) -> None:
        self._inside.append(node)
        self.generic_visit(node)
        self._inside.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        theirs = {name for found in ancestors(node.name, self._ours, self._theirs) for name in found.private}
        for name in theirs & {d.name for d in node.body if hasattr(d, "name")}:
            overriding = next(d for d in node.body if getattr(d, "name", None) == name)
            self.found.append(Access(overriding.lineno, f"{node.name}.{name}", (*self._inside, node, overriding)))
        self._visit_inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_inside(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    # -- what is found -------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        if any(a.name.split(".")[0] in PACKAGES and any(map(is_private, a.name.split("."))) for a in node.names):
            self._add(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parts = (node.module or "").split(".")
        names = [alias.name for alias in node.names]
        if parts[0] in PACKAGES and (any(map(is_private, parts + names)) or INTERNALS & set(names)):
            self._add(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in INTERNALS:
            self._add(node)
        elif is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner in ("self", "cls"):
                if any(node.attr in theirs.private for theirs in self._ancestors()):
                    self._add(node)
            elif owner == "super()" or (node.attr not in self._own and _root(node) not in self._standard):
                self._add(node)
        elif isinstance(node.ctx, ast.Store | ast.Del):
            owner = ast.unparse(node.value)
            is_swapped = owner == "self" and any(node.attr in theirs.attributes for theirs in self._ancestors())
            if _root(node) in self._imported or self._is_class(owner) or (is_swapped and not self._constructs()):
                self._add(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del) and _root(node) in self._imported:
            self._add(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0] if node.args else None
        if name == "substituted":
            self._add(node)
        elif name in ("setattr", "delattr", "object", "patch", "setitem") and first is not None:
            is_patch = name in ("setattr", "delattr") or "patch" in ast.unparse(node.func)
            text = first.value if isinstance(first, ast.Constant) else None
            is_theirs = _root(first) in self._imported | self._parameters()
            if is_patch and (is_theirs or (isinstance(text, str) and text.partition(".")[0] in PACKAGES)):
                self._add(node)
        elif name in ("getattr", "hasattr") and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            text, owner = str(node.args[1].value), ast.unparse(node.args[0])
            names = {name for theirs in self._ancestors() for name in theirs.private}
            if is_private(text) and (text in names if owner == "self" else text not in self._own):
                self._add(node)
        self.generic_visit(node)

    def _ancestors(self) -> list[Class]:
        around = [node for node in self._inside if isinstance(node, ast.ClassDef)]
        return ancestors(around[-1].name, self._ours, self._theirs) if around else []

    def _constructs(self) -> bool:
        """A constructor may put a part of ours in place of theirs. Later, others may hold or need it."""
        return getattr(self._inside[-1], "name", "") == "__init__"

    def _parameters(self) -> set[str]:
        functions = [n for n in self._inside if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = {a.arg for f in functions for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)}
        return names - {"self", "cls"}

    def _is_class(self, owner: str) -> bool:
        """`module.Actor`: a class, by its name, and none of ours."""
        before, _, last = owner.rpartition(".")
        return bool(before) and last[:1].isupper() and not last.isupper() and last not in self._ours
