"""Questions and labels as rows have them: what is fit, and values that mean the same in every format of file."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

MISSING = object()
"""In place of the value of a key that a row does not have."""

_INT64 = 1 << 63


class UnfitError(ValueError):
    """A value that no run can use. The message is what follows the row: the rule, and after a colon the remedy."""


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
        return _text(value)
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


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnfitError(
            f"holds half of a surrogate pair (character {error.start + 1}), which is no text: correct the row"
        ) from error
    return value


def label_of_row(row: Mapping[str, Any], key: str) -> Any:
    """The label of a row that must have one; raises UnfitError, in words that follow the row."""
    value = value_at(row, key)
    if value is MISSING:
        raise UnfitError(f"has no key {key!r}; it has {names_of(row)}: add the key or remove the row")
    if value is None or (isinstance(value, str) and not value.strip()) or value in ([], {}):
        raise UnfitError(f"has no label: {key!r} is {json.dumps(value)}: fill it in or remove the row")
    try:
        return plain(value)
    except UnfitError as error:
        raise UnfitError(f": {key!r} {error}") from error


def question_of_row(row: Mapping[str, Any], key: str) -> Any:
    """The question of a row: text, or a list of chat messages; raises UnfitError, in words that follow the row."""
    value = value_at(row, key)
    if value is MISSING:
        raise UnfitError(f"has no key {key!r}; it has {names_of(row)}: add the key or remove the row")
    return checked_question(value, key)


def checked_question(value: Any, name: str) -> Any:
    """The question as text or as chat messages; raises UnfitError, in words that follow the row."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise UnfitError(f": {name!r} is binary, expected text: name another column") from error
    if not isinstance(value, str | list | None):
        raise UnfitError(
            f": {name!r} is {type_name(value)} ({str(value)[:40]}), expected text or a list of chat messages: "
            f"name the column that holds the prompt"
        )
    if value is None or not (value.strip() if isinstance(value, str) else value):
        raise UnfitError(
            f": {name!r} is {json.dumps(value)}, expected a prompt that is neither null nor empty: "
            f"fill in the prompt or remove the row"
        )
    try:
        return _text(value) if isinstance(value, str) else _messages(value, name)
    except UnfitError as error:
        raise UnfitError(str(error) if str(error).startswith(":") else f": {name!r} {error}") from error


def _messages(value: Sequence[Any], name: str) -> list[Any]:
    for message in value:
        fits = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not fits or not isinstance(message.get("content"), str | list):
            raise UnfitError(
                f": {name!r} is {json.dumps(value, default=str)[:80]}, expected messages with the keys 'role' and "
                f"'content', both text: correct the row"
            )
    return [plain(message) for message in value]


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
