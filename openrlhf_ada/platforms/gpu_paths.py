"""The paths that a GPU alone can show, from gpu_paths.toml, and which of them have run where."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class GpuPath:
    """`gpus`: how many `test` needs, of a file in tests/gpu; "" for none. `passed`: on which GPUs, and when."""

    name: str
    flags: str = ""
    gpus: int = 1
    test: str = ""
    passed: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        return f"passed: {'; '.join(self.passed)}" if self.passed else "not run"


def read_gpu_paths() -> list[GpuPath]:
    text = resources.files("openrlhf_ada.platforms").joinpath("gpu_paths.toml").read_text(encoding="utf-8")
    return [GpuPath(**row | {"passed": tuple(row.get("passed", ()))}) for row in tomllib.loads(text)["paths"]]
