"""Plain data between two processes that do not trust each other, as JSON with tags.

Numbers, text, bytes, None, lists, tuples, sets, dicts, deques, dates, Decimal, Fraction, the built-in types and
numpy's arrays and numbers cross with their values. Subclasses cross as what they are derived from, so that no method
of theirs comes along: an `int` whose `__eq__` is always true arrives as its number. Everything else stays where it is,
and a number for it crosses."""

from __future__ import annotations

import base64
import builtins
import datetime
import sys
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

_LARGE = 1 << 63
_SEVERAL = (tuple, set, frozenset, deque)
_BYTES = (bytes, bytearray)
_DATES: dict[str, tuple[type, tuple[str, ...]]] = {
    "date": (datetime.date, ("year", "month", "day")),
    "time": (datetime.time, ("hour", "minute", "second", "microsecond")),
    "datetime": (datetime.datetime, ("year", "month", "day", "hour", "minute", "second", "microsecond")),
    "timedelta": (datetime.timedelta, ("days", "seconds", "microseconds")),
}


class NotPlainError(TypeError):
    """A value that cannot cross."""


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """`value` for `json.dumps`. `other` encodes what is not plain, or raises NotPlainError."""
    if value is None or value is True or value is False:
        return value
    for base, convert in _BY_TYPE:
        if isinstance(value, base):
            return convert(value, other)
    for name, (kind, parts) in _DATES.items():
        if type(value) is kind and getattr(value, "tzinfo", None) is None:
            return {"date": [name, *(getattr(value, part) for part in parts)]}
    if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
        return {"type": value.__name__}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray) and value.dtype.kind in "biufcSU":
        return _array(value, other)
    return other(value)


def _array(value: Any, other: Callable[[Any], Any]) -> Any:
    if not value.shape and not hasattr(value, "__len__"):
        return encode(value.item(), other)
    return {"array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}


def _integer(value: int, other: Callable[[Any], Any]) -> Any:
    number = int.__add__(value, 0)
    return number if -_LARGE < number < _LARGE else {"int": hex(number)}  # decimal digits would take quadratic time


def _all(values: Any, other: Callable[[Any], Any]) -> list[Any]:
    return [encode(value, other) for value in values]


_BY_TYPE: tuple[tuple[type, Callable[[Any, Callable[[Any], Any]], Any]], ...] = (
    (int, _integer),
    (float, lambda value, other: float.__mul__(value, 1.0)),
    (str, lambda value, other: str.__getitem__(value, slice(None))),
    (list, lambda value, other: _all(list.__iter__(value), other)),
    (dict, lambda value, other: {"dict": [_all(pair, other) for pair in dict.items(value)]}),
    *((kind, lambda value, other, kind=kind: {kind.__name__: _all(kind.__iter__(value), other)}) for kind in _SEVERAL),
    *((kind, lambda value, other, kind=kind: {kind.__name__: base64.b64encode(value).decode()}) for kind in _BYTES),
    (complex, lambda value, other: {"complex": [value.real, value.imag]}),
    (range, lambda value, other: {"range": [value.start, value.stop, value.step]}),
    (Decimal, lambda value, other: {"Decimal": Decimal.__str__(value)}),
    (Fraction, lambda value, other: {"Fraction": _all((value.numerator, value.denominator), other)}),
)


def decode(value: Any, other: Callable[[int], Any]) -> Any:
    """What `encode` was given; `other` gives the value for a number. Raises ValueError for what `encode` never
    makes."""
    if isinstance(value, list):
        return [decode(one, other) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("a value has one tag")
    ((tag, content),) = value.items()
    if tag == "object" and type(content) is int:
        return other(content)
    if tag in _DECODERS:
        try:
            return _DECODERS[tag](content, other)
        except (TypeError, ArithmeticError) as error:
            raise ValueError(f"no {tag}: {error}") from error
    raise ValueError(f"no tag {tag!r}")


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise ValueError("expected text")
    return content


_DECODERS: dict[str, Callable[[Any, Callable[[int], Any]], Any]] = {
    "int": lambda content, other: int(_text(content), 16),
    "type": lambda content, other: _built_in_type(_text(content)),
    "dict": lambda content, other: {decode(key, other): decode(one, other) for key, one in content},
    **{
        kind.__name__: lambda content, other, kind=kind: kind(decode(one, other) for one in content)
        for kind in _SEVERAL
    },
    **{kind.__name__: lambda content, other, kind=kind: kind(base64.b64decode(_text(content))) for kind in _BYTES},
    "array": lambda content, other: _decoded_array(*content),
    "date": lambda content, other: _DATES[content[0]][0](*content[1:]),
    "complex": lambda content, other: complex(*content),
    "range": lambda content, other: range(*content),
    "Decimal": lambda content, other: Decimal(_text(content)),
    "Fraction": lambda content, other: Fraction(*(decode(one, other) for one in content)),
}


def _built_in_type(name: str) -> type:
    found = getattr(builtins, name, None)
    if not isinstance(found, type):
        raise ValueError(f"no type {name}")
    return found


def _decoded_array(kind: str, shape: list[int], data: Any) -> Any:
    import numpy

    if numpy.dtype(kind).kind not in "biufcSU":
        raise ValueError(f"no array of {kind}")
    return numpy.frombuffer(base64.b64decode(_text(data)), dtype=kind).reshape(shape).copy()
