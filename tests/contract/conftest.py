"""OpenRLHF's source, read but not imported: neither Ray's wrapping nor the CPU platform stands in between."""

from __future__ import annotations

import ast
from functools import lru_cache

import pytest

from openrlhf_ada.host.parser import host_root


@lru_cache
def _parse(path: str) -> ast.Module:
    return ast.parse((host_root() / path).read_text())


class HostSource:
    """Finds functions and classes of OpenRLHF by file and qualified name."""

    def module(self, path: str) -> ast.Module:
        return _parse(path)

    def find(self, path: str, qualified_name: str) -> ast.AST:
        node: ast.AST = self.module(path)
        for name in qualified_name.split("."):
            named = [n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == name]
            assert named, f"{path} of OpenRLHF has no {qualified_name}"
            node = named[-1]
        return node

    def text(self, path: str, qualified_name: str) -> str:
        """The code, formatted anew: without comments, in single quotes, calls on one line."""
        return ast.unparse(self.find(path, qualified_name))

    def parameters(self, path: str, qualified_name: str) -> str:
        """As one reads them: `self, a, b=, *, c=, **rest`; = marks a default."""
        a = self.find(path, qualified_name).args  # type: ignore[attr-defined]
        positional = [*a.posonlyargs, *a.args]
        names = [p.arg + ("=" if i >= len(positional) - len(a.defaults) else "") for i, p in enumerate(positional)]
        if a.vararg or a.kwonlyargs:
            names.append(f"*{a.vararg.arg if a.vararg else ''}")
        names += [p.arg + ("=" if default else "") for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
        return ", ".join(names + ([f"**{a.kwarg.arg}"] if a.kwarg else []))

    def attributes_set(self, path: str, qualified_name: str) -> set[str]:
        """What `self.x = ...` in a method sets."""
        return {
            node.attr
            for node in ast.walk(self.find(path, qualified_name))
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        }


@pytest.fixture(scope="session")
def host_source() -> HostSource:
    return HostSource()
