"""The part of docs/arena.md that says what the methods' names mean, and which flags train a model so."""

from __future__ import annotations

from typing import Any

from openrlhf_ada.arena.markdown import markdown_table
from openrlhf_ada.arena.methods import FEWER_UPDATES, METHODS, OF_PRESET, Method
from openrlhf_ada.arena.real import method_flags

FIRST, LAST = "<!-- methods: written by `make arena-docs` -->", "<!-- end of methods -->"

PRESETS = {name: preset for preset, name in OF_PRESET.items()}
"""Presets of --ada_method by their names in the arena."""


def render_methods() -> str:
    """Everything between the two marks."""
    body = [[f"`{m.name}`", m.summary, _updates(m), _shown(m)] for m in METHODS.values()]
    return markdown_table(["name", "what it does", "updates of a step", "flags"], body) + "\n"


def _shown(method: Method) -> str:
    """A measured weight has no flag."""
    return "–" if method.weight_of is not None else f"`{_flags(method)}`"


def _updates(method: Method) -> str:
    return str(method.parts) if method.passes == 1 else f"{method.passes} passes of {method.parts}"


def _flags(method: Method) -> str:
    if method.name in PRESETS:
        preset = PRESETS[method.name]
        return " ".join([f"--ada_method {preset}", *(f"--{n} {v}" for n, v in FEWER_UPDATES.get(preset, {}).items())])
    flags: dict[str, Any] = {
        "rollout.n_samples_per_prompt": method.n,
        "algo.advantage.estimator": method.estimator,
        "train.max_epochs": method.passes,
    }
    shown = method_flags(method) | (flags if method.passes > 1 else flags | {"train.max_epochs": None})
    return " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in shown.items() if value)
