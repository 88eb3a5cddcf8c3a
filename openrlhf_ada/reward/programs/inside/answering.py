"""The side of a program: does what tests in another process ask for, one request a line, and sends back plain data.

The program may lie here as it likes. All that it can say is a value, and it does not know which one is expected.
"""

from __future__ import annotations

import ast
import builtins
import json
import operator
import os
from collections.abc import Callable
from typing import Any

from .plain import decode, encode

_LONGEST_TEXT = 1000

_BUILT_IN = "getattr setattr len iter next bool str repr hash isinstance format"
_OPERATORS = """getitem setitem delitem eq ne lt le gt ge neg pos abs invert add sub mul truediv floordiv mod pow
matmul and_ or_ xor lshift rshift contains"""
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(builtins, name) for name in _BUILT_IN.split()},
    **{name: getattr(operator, name) for name in _OPERATORS.split()},
    "enter": lambda one: type(one).__enter__(one),
    "exit": lambda one: type(one).__exit__(one, None, None, None),
}


class _Objects:
    """What has crossed as a number."""

    def __init__(self) -> None:
        self._all: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> dict[str, int]:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._all)
            self._all.append(value)  # it lives on, so that no other gets its id
        return {"object": self._numbers[id(value)]}

    def get(self, number: int) -> Any:
        return self._all[number]


def serve(names: dict[str, Any], imports: str, source: int, status: int) -> None:
    """Answer requests from the descriptor `source` until it ends. `imports`: import statements of the tests; the
    program's functions may use such names, as they would where both run in one process."""
    for statement in ast.parse(imports).body:
        for alias in statement.names if isinstance(statement, ast.Import | ast.ImportFrom) else ():
            if (alias.asname or alias.name).partition(".")[0] not in names:
                exec(ast.unparse(statement), names)
                break
    objects = _Objects()
    with open(source, "rb", closefd=False) as requests:
        _send(status, {"loaded": True})
        for line in requests:
            _send(status, _reply(json.loads(line), names, objects))


def _send(status: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(status, data) :]


def _reply(request: dict[str, Any], names: dict[str, Any], objects: _Objects) -> dict[str, Any]:
    try:
        if "name" in request:
            if request["name"] not in names and not hasattr(builtins, request["name"]):
                return {"raised": "NameError", "text": f"name {request['name']!r} is not defined"}
            value = names[request["name"]] if request["name"] in names else getattr(builtins, request["name"])
            return {"value": encode(value, objects.number)}
        given = [request["arguments"], request.get("keywords", {"dict": []})]
        arguments, keywords = decode(given[0], objects.get), decode(given[1], objects.get)
        function = _OPERATIONS[request["do"]] if "do" in request else objects.get(request["call"])
        reply = {"value": encode(function(*arguments, **keywords), objects.number)}
        if "call" in request:
            after = [encode(arguments, objects.number), encode(keywords, objects.number)]
            reply |= {} if after == given else {"changed": after}
        return reply
    except BaseException as error:  # noqa: BLE001 - it belongs to the test that asked
        return _raised(error)


def _raised(error: BaseException) -> dict[str, Any]:
    kind = next(base for base in type(error).__mro__ if getattr(builtins, base.__name__, None) is base)
    try:
        text = str(error)[:_LONGEST_TEXT]
    except BaseException:  # noqa: BLE001 - its __str__ is the program's
        text = ""
    return {"raised": kind.__name__, "text": text}
