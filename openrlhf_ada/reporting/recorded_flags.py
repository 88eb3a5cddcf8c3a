"""Flags of a run as its record and its checkpoints hold them."""

from __future__ import annotations

from typing import Any

NO_DIFFERENCE = ("ada.run_dir", "ada.verbose", "ada.method", "ada.device", "ckpt.", "logger.", "local_rank")
"""Flags, or beginnings of flags, that change nothing in what is trained. What a method says stands in its flags."""


def flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested flags as (dotted name, value), in the order of the file."""
    if isinstance(config, dict) and config:
        return [pair for name, value in config.items() for pair in flat(value, f"{prefix}.{name}" if prefix else name)]
    return [(prefix, str(_plain(config)))] if prefix else []


def decisive(config: Any) -> dict[str, str]:
    """Of nested flags, those that change what is trained."""
    return {name: value for name, value in flat(config) if not name.startswith(NO_DIFFERENCE)}


def _plain(value: Any) -> Any:
    """Whole numbers without a point: a default of 1 is 1.0 where it was given, as in a repetition by --config."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
