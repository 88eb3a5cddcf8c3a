"""Adapt a third-party module at the moment somebody imports it.

Importing torch or the host only to adapt them would cost every Ray worker seconds, whether it needs them or not.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Adapter = Callable[[Any], None]


class _AdaptingLoader(importlib.abc.Loader):
    """Runs the real loader, then the adapters. Everything else is the real loader's."""

    def __init__(self, loader: Any, adapters: list[Adapter]) -> None:
        self._loader = loader
        self._adapters = adapters

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for adapter in self._adapters:
            adapter(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _AdaptingFinder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.adapters: dict[str, list[Adapter]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        adapters = self.adapters.get(fullname)
        if adapters is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AdaptingLoader(spec.loader, adapters)
        return spec


def on_import(adapters: dict[str, Adapter]) -> None:
    """Apply each adapter to its module now if it is loaded, else right after its import, in order of registration."""
    finder = next((f for f in sys.meta_path if isinstance(f, _AdaptingFinder)), None)
    if finder is None:
        finder = _AdaptingFinder()
        sys.meta_path.insert(0, finder)
    for name, adapter in adapters.items():
        if name in sys.modules:
            adapter(sys.modules[name])
        else:
            finder.adapters.setdefault(name, []).append(adapter)
