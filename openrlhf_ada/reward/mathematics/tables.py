"""What is data in this room, from `tables.toml`: words, signs, units, and the patterns of sentences and notation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))


def table(module: str, name: str) -> Any:
    return _TABLES[module][name]


def pattern(module: str, name: str) -> re.Pattern[str]:
    """A list holds the parts of one expression."""
    return re.compile("".join(_TABLES[module][name]))
