"""What a confined child does: it reads a job and runs it. A program has its process to itself and need not be honest.

A job is a JSON object with a `kind`:
- "program": run `code` as the main program.
- "call": call the function `name` of `code` with `arguments`, and reply {"result": ...} in JSON.
- "tests": run `code`, then `tests`, and reply {"token": ...}. Whoever inspects the process can forge that.
- "serve": run `code`, and do what the tests in another process ask for, one line each (`answering.py`).
- "judge": run tests, and ask a program in another process for what it computes (`judging.py`).
"""

from __future__ import annotations

import atexit
import builtins
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import answering, judging, nodes, pytest_names

TYPING = "from typing import *\nfrom inside.nodes import ListNode, TreeNode"
"""Names that are there where tasks come from that call a function."""
_CODE_OF_FAILED_FLUSH = 120
_CAUSES = {
    kind: json.dumps({"cause": "memory limit" if kind is MemoryError else f"raised {kind.__name__}"}).encode()
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}


def run(status: int) -> None:
    """Run the job that comes from stdin. Returns for a main program only that exits with a code."""
    job = json.loads(_read(int.from_bytes(_read(8), "big")))
    sys.excepthook = _hook(status)
    sys.argv = [""]
    if job["kind"] in ("judge", "serve", "tests"):
        sys.modules.setdefault("pytest", pytest_names)
    builtins.__dict__.update(exit=sys.exit, quit=sys.exit)  # `site`, which is not loaded, gives these
    if job["kind"] == "program":
        try:
            _load(job["code"], "__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        _end_as_the_interpreter_does()
    if job["kind"] == "judge":
        reply = judging.judge(job, status)
    elif job["kind"] == "serve":
        requests = _without_stdin()
        names = _load(job["code"], "answer", TYPING, *job["before"])
        answering.serve(names, job["imports"], requests, status)
        os._exit(0)
    else:
        reply = _call(job) if job["kind"] == "call" else _test(job)
    with open(status, "wb", closefd=False) as pipe:
        pipe.write(reply)
    os._exit(0)


def _end_as_the_interpreter_does() -> NoReturn:
    """Wait for threads, run what is to run at the end, and flush. To free every object would take as long again."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            os._exit(_CODE_OF_FAILED_FLUSH)
    os._exit(0)


def _without_stdin() -> int:
    """The descriptor of the requests. A program that reads its stdin finds its end, and not them."""
    requests = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests


def _hook(status: int) -> Callable[..., None]:
    """An excepthook that reports the nearest built-in base. It makes nothing new: there may be no memory left."""
    lines = _CAUSES

    def report(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        for base in kind.__mro__:
            if base in lines:
                os.write(status, lines[base])
                return

    return report


def _read(size: int) -> bytes:
    """Exactly `size` bytes of stdin, and no byte more: the rest is for the program."""
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("the job is cut short")
    return data


def _load(code: str, name: str, *before: str) -> dict[str, Any]:
    """Run `code` as the module `name` and return its names; `before` runs there first."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    for part in before:
        exec(compile(part, "<before>", "exec", dont_inherit=True), module.__dict__)
    exec(compile(code, "<answer>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def _call(job: dict[str, Any]) -> bytes:
    """What the function of the answer returns, as JSON."""
    names = _load(job["code"], "answer", TYPING)
    if hasattr(names.get("Solution"), job["name"]):
        function = getattr(names["Solution"](), job["name"])
    elif job["name"] in names:
        function = names[job["name"]]
    else:
        return json.dumps({"cause": "no such function"}).encode()
    result = function(*nodes.arguments_of(function, job["arguments"], names))
    if result is None and "Node" in str(getattr(function, "__annotations__", {}).get("return")):
        result = []
    try:
        return json.dumps({"result": result}, default=_plain).encode()
    except (TypeError, ValueError):
        return json.dumps({"cause": "result is not JSON"}).encode()


def _plain(value: Any) -> Any:
    """Numbers and lists for those of numpy and for nodes; TypeError for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic | numpy.ndarray):
        return nodes.plain(value)
    return value.tolist()


def _test(job: dict[str, Any]) -> bytes:
    names = _load(job["code"], "answer", TYPING, *job["before"])
    exec(compile(job["tests"], "<tests>", "exec", dont_inherit=True), names)
    return json.dumps({"token": job["token"]}).encode()
