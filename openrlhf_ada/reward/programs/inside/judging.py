"""The side of the tests: runs them in a process in which no line of the program runs.

What a test takes from the program is a stand-in. A call of it goes to the program's process and comes back as plain
data, so that a test compares values which the program had to compute. An object that is no plain data stays there; a
stand-in for it has attributes, items and methods. It is never equal to plain data, and it has operators only where the
tests make objects of the program's own classes (`operators`). The program then decides what these give: such a verdict
is marked as forgeable."""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from .plain import decode, encode

_TEST = "__test__"
_QUESTIONS = ("getattr", "getitem", "len", "iter", "next", "bool", "str", "repr", "format", "hash")
"""What changes no object of the program, if it is honest."""


class ProgramEndedError(BaseException):
    """The program's process is gone: this test has failed. No `except Exception` of a test catches it."""


class ProgramStoppedError(Exception):
    """`kind` of the program, in a shape that ends no iteration of the tests: their `map(f, ...)` would end with it."""

    kind: type[BaseException]


_STOPS: dict[type[BaseException], type[ProgramStoppedError]] = {
    kind: type(f"Program{kind.__name__}", (ProgramStoppedError,), {"kind": kind})
    for kind in (StopIteration, StopAsyncIteration, GeneratorExit)
}
"""Exceptions that Python takes for an end. `except` clauses of the tests that name one take ours as well."""


class NotTurnedError(BaseException):
    """The tests give the program something that cannot cross to its process."""


class _Link:
    """To the program, through the process that grades."""

    def __init__(self, status: int, *, operators: bool, reads_arguments: bool) -> None:
        self._status = status
        self._replies = open(0, "rb", closefd=False)  # noqa: SIM115 - for as long as the process lives
        self.operators = operators
        self.reads_arguments = reads_arguments
        self.is_forgeable = False
        self.not_turned = ""
        self.fault: BaseException | None = None
        self.lengths: dict[int, int] = {}

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._status, data) :]

    def ask(self, request: dict[str, Any]) -> tuple[Any, Any]:
        """(value, what has become of the arguments or None). Raises what the program has raised."""
        self.send({"ask": request})
        if request.get("do") not in _QUESTIONS:
            self.lengths.clear()
        try:
            reply = json.loads(self._replies.readline())
            if "ended" in reply:
                self.fault = self.fault or ProgramEndedError()
                raise ProgramEndedError
            if "raised" in reply:
                kind, text = getattr(builtins, reply["raised"]), str(reply.get("text", ""))
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise ValueError
            else:
                changed = reply.get("changed")
                return self.decode(reply["value"]), None if changed is None else self.decode(changed)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError("the program's process sent what is no reply") from error
        # `next` alone may say that an iterator of the program has ended.
        raise _made(kind if request.get("do") == "next" else _STOPS.get(kind, kind), text)

    def hold_to_length(self, number: int, length: int) -> None:
        """What a function has returned has one length until the program runs again, asked or counted. Else it passes
        `len(xs) == len(ys) and all(map(eq, xs, ys))` without an item."""
        if not self.operators and self.lengths.setdefault(number, length) != length:
            self.fault = self.fault or ValueError("an object of the program has two lengths")
            raise self.fault

    def take_fault(self) -> BaseException | None:
        """What fails a test even where its code has caught it."""
        fault, self.fault = self.fault, None
        return fault

    def encode(self, value: Any) -> Any:
        return encode(value, self._stand_in_number)

    def decode(self, value: Any) -> Any:
        return decode(value, lambda number: StandIn(self, number))

    def _stand_in_number(self, value: Any) -> Any:
        if isinstance(value, StandIn):
            return {"object": _number(value)}
        self.not_turned = f"an argument of type {type(value).__name__}"
        raise NotTurnedError


def _made(kind: type[BaseException], text: str) -> BaseException:
    try:
        return kind(text)
    except TypeError:  # UnicodeDecodeError takes five arguments
        return kind.__new__(kind)


class StandIn:
    """For an object of the program. Names of its own begin with an underscore and end in one."""

    __slots__ = ("_link_", "_number_")

    def __init__(self, link: _Link, number: int) -> None:
        object.__setattr__(self, "_link_", link)
        object.__setattr__(self, "_number_", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        link = _link(self)
        given = {"arguments": link.encode(list(arguments)), "keywords": link.encode(keywords)}
        value, changed = link.ask({"call": _number(self), **given})
        # One that returns a value is not to change what the same assert compares this value with.
        if changed is not None and (value is None or link.reads_arguments):
            link.is_forgeable |= value is not None
            for old, new in zip([*arguments, *keywords.values()], [*changed[0], *changed[1].values()], strict=True):
                _update(old, new)
        return value

    def __iter__(self) -> Iterator[Any]:
        iterator, length = _do_in_program("iter", self), 0
        with contextlib.suppress(StopIteration):
            while True:
                yield _do_in_program("next", iterator)
                length += 1
        link, number = _link(self), _number(self)
        link.hold_to_length(number, length)
        if _number(iterator) == number:  # it is used up
            link.lengths.pop(number, None)

    def __len__(self) -> int:
        length = _do_in_program("len", self)
        _link(self).hold_to_length(_number(self), length)
        return length

    def __bool__(self) -> bool:
        return _do_in_program("bool", self) is True

    def __hash__(self) -> int:
        return _do_in_program("hash", self) if _link(self).operators else _number(self)

    def __instancecheck__(self, instance: Any) -> bool:
        _link(self).is_forgeable = True
        return _do_in_program("isinstance", instance, self) is True

    def __exit__(self, *_: object) -> None:
        _do_in_program("exit", self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StandIn):
            return False
        if _number(self) == _number(other):
            return True
        return _link(self).operators and _decided("eq", self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


_ASKED = "getattr setattr getitem setitem delitem next str repr format enter"
_COMPARED = "lt le gt ge contains neg pos abs invert"
_REFLECTED = "add sub mul truediv floordiv mod pow matmul lshift rshift and or xor"


def _link(one: StandIn) -> Any:
    return object.__getattribute__(one, "_link_")


def _number(one: StandIn) -> int:
    return object.__getattribute__(one, "_number_")


def _do_in_program(what: str, one: StandIn, *others: Any) -> Any:
    link = _link(one) if isinstance(one, StandIn) else _link(others[0])
    return link.ask({"do": what, "arguments": link.encode([one, *others])})[0]


for _name in _ASKED.split():
    setattr(StandIn, f"__{_name}__", lambda *values, what=_name: _do_in_program(what, *values))


def _decided(what: str, *values: Any) -> Any:
    """What the program says of its own objects."""
    _link(values[0] if isinstance(values[0], StandIn) else values[1]).is_forgeable = True
    return _do_in_program(what, *values)


def _add_operators() -> None:
    """For tests of the program's own classes."""
    for name in (*_COMPARED.split(), *_REFLECTED.split()):
        what = f"{name}_" if name in ("and", "or") else name
        setattr(StandIn, f"__{name}__", lambda *values, what=what: _decided(what, *values))
        if name in _REFLECTED.split():
            setattr(StandIn, f"__r{name}__", lambda one, other, what=what: _decided(what, other, one))


def _update(old: Any, new: Any) -> None:
    """Give an argument that the program has changed its new content."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)


class _Count:
    """Tests that passed and failed. A test is an assert statement each time it is executed; or one that is not,
    because what is around it fails; or all of a part that has none."""

    def __init__(self, link: _Link, *, is_partial: bool) -> None:
        self.link = link
        self.is_partial = is_partial
        self.passed = self.failed = 0
        self.executed: set[int] = set()
        self.cause = ""

    def fail(self, error: BaseException, tests: int = 1) -> None:
        self.failed += tests
        self.cause = self.cause or cause_of(error)

    @contextlib.contextmanager
    def __call__(self, statement: int) -> Iterator[None]:
        self.executed.add(statement)
        error = None
        try:
            yield
        except NotTurnedError:
            raise
        except BaseException as raised:  # noqa: BLE001 - it is counted
            error = raised
        error = self.link.take_fault() or error
        if error is None:
            self.passed += 1
        else:
            self.fail(error)


class _TakesStops(ast.NodeTransformer):
    """`except StopIteration` becomes `except (StopIteration, __StopIteration__)`, and so do arguments of calls."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.type = node.type and _with_ours(node.type)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [_with_ours(argument) for argument in node.args]
        return self.generic_visit(node)


def _with_ours(node: ast.expr) -> ast.expr:
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    stops = [one.id for one in names if isinstance(one, ast.Name) and one.id in {kind.__name__ for kind in _STOPS}]
    ours = [ast.Name(f"__{name}__", ast.Load()) for name in stops]
    return ast.Tuple([*names, *ours], ast.Load()) if ours else node


class _Counted(ast.NodeTransformer):
    """`assert x` becomes `with __test__(0): assert x`, with a number of its own."""

    def __init__(self) -> None:
        self.statements = 0

    def visit_Assert(self, node: ast.Assert) -> ast.With:
        call = ast.Call(ast.Name(_TEST, ast.Load()), [ast.Constant(self.statements)], [])
        self.statements += 1
        return ast.copy_location(ast.With([ast.withitem(call)], [node]), node)


def cause_of(error: BaseException) -> str:
    """In the words of a program that ended with it."""
    if isinstance(error, ProgramEndedError):
        return "ended early"
    of = error.kind if isinstance(error, ProgramStoppedError) else type(error)
    kind = next(base for base in of.__mro__ if getattr(builtins, base.__name__, None) is base)
    return "memory limit" if kind is MemoryError else f"raised {kind.__name__}"


def judge(job: dict[str, Any], status: int) -> bytes:
    """Run the parts of `job["tests"]` and return what came of them as a line of JSON.

    All of them with `partial`, else up to the first failure. `remote`: names that the program may define; `given`:
    code of the label that runs before, such as the helpers of a prompt."""
    sys.set_int_max_str_digits(0)
    link = _Link(status, operators=job["operators"], reads_arguments=job["reads_arguments"])
    if link.operators:
        _add_operators()
    count = _Count(link, is_partial=job["partial"])
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    names = module.__dict__
    names |= {f"__{kind.__name__}__": ours for kind, ours in _STOPS.items()}
    with contextlib.suppress(NotTurnedError):
        for code in job["given"]:
            exec(compile(code, "<given>", "exec", dont_inherit=True), names)
        for name in job["remote"]:
            names.pop(name, None)
            with contextlib.suppress(NameError):  # the program lacks it, and so will the test that asks for it
                names[name], _ = link.ask({"name": name})
        names[_TEST] = count
        for part in job["tests"]:
            _run_part(part, names, count)
            if count.failed and not count.is_partial:
                break
    if link.not_turned:
        return json.dumps({"not_turned": link.not_turned}).encode() + b"\n"
    verdict = {"passed": count.passed, "failed": count.failed, "cause": count.cause}
    return json.dumps({**verdict, "forgeable": link.is_forgeable}).encode() + b"\n"


def _run_part(part: str, names: dict[str, Any], count: _Count) -> None:
    tree, counted = _TakesStops().visit(ast.parse(part)), _Counted()
    if count.is_partial:
        tree = counted.visit(tree)
    ast.fix_missing_locations(tree)
    before = count.passed + count.failed
    count.executed.clear()
    error = None
    try:
        exec(compile(tree, "<tests>", "exec", dont_inherit=True), names)
    except NotTurnedError:
        raise
    except BaseException as raised:  # noqa: BLE001 - it is counted
        error = raised
    error = count.link.take_fault() or error
    if error is not None:
        count.fail(error, max(counted.statements - len(count.executed), 1))
    else:
        count.passed += before == count.passed + count.failed
