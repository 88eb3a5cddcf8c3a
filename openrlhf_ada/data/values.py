"""Questions and labels as rows have them: what is fit, and values that mean the same in every format of file."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

MISSING = object()
"""In place of the value of a key that a row does not have."""

_INT64 = 1 << 63


class UnfitError(ValueError):
    """A value that no run can use. The message is what follows the row: the rule, and after a colon the remedy."""

    def at(self, where: str) -> str:
        """The whole message. `where`: flag, file and row."""
        return f"{where}{self}" if str(self).startswith(":") else f"{where} {self}"


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """The value of a key, or MISSING. Dots lead into nested objects, unless the row has the very key."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


DEEPEST = 100


def plain(value: Any, depth: int = 0) -> Any:
    """A label, or a part of one, as JSON has it, with all its digits: decimals and dates are text. `depth`: how many
    lists and objects are around it.

    Raises:
        UnfitError: NaN, infinity, binary data, broken text, a type that has no text, too many lists in each other.
    """
    if depth > DEEPEST:
        raise UnfitError(f"has more than {DEEPEST} lists and objects within each other: correct the row")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int):
        # What the host's tables cannot hold stays exact as text.
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnfitError(f"is {value}, expected a number or text: correct the row")
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, depth + 1) for inner in value]
    return _other(value)


def _other(value: Any) -> str:
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise UnfitError("is binary, expected text or a number: write the label as text") from error
    raise UnfitError(f"is {type_name(value)} ({str(value)[:40]!r}), expected text or a number: write it as text")


def text_of(value: str) -> str:
    """The text; raises UnfitError for what is none."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnfitError(
            f"holds half of a surrogate pair (character {error.start + 1}), which is no text: correct the row"
        ) from error
    return value


def type_name(value: Any) -> str:
    """As a reader of the file says."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    numbers = (int, float, Decimal)
    if isinstance(value, numbers) or type(value) in names:
        return f"a JSON {names.get(type(value), 'number')}"
    return f"a {type(value).__name__}"


def names_of(row: Mapping[str, Any]) -> str:
    """Its keys, for a message."""
    return "the keys " + ", ".join(map(repr, row)) if row else "no keys"
