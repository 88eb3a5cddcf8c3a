"""The script that runs inside the sandbox: a template process, and the children that it forks.

`template.py` starts it, with the standard library only: `child.py <descriptor> <settings as JSON>`. The template
imports what programs may import and forks a child for each run (`inside/server.py`); it never sees a job, so that no
child finds another's in its memory. A child confines itself for good, reads a job from its stdin (8 bytes length,
JSON; what follows is the stdin of the program) and writes to its pipe: the line "ready" once nothing trusted follows,
or one line with what could not be confined; then what became of the job (`inside/jobs.py`).
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_FOLDER = json.loads(sys.argv[2])["programs"] if __name__ == "__main__" else os.path.dirname(__file__)
_OFTEN_IMPORTED = ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "string", "typing")
"""The template imports these, so that the children need not."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_STACK_BYTES = 64 << 20
"""Deep recursion through C (`lru_cache`) needs more than the usual 8 MiB."""

_MACHINES = {"x86_64": (0, 0xC000003E, 334), "aarch64": (1, 0xC00000B7, 294)}
"""Column in the tables of system calls, `AUDIT_ARCH_*`, and the last call that was reviewed for these tables. Whatever
the kernel has beyond (io_uring, clone3, pidfd, new mounts) is "not there" (ENOSYS), for which glibc has its ways."""

_CLONE, _CLONE_THREAD = (56, 220), 0x10000
_KILL, _TKILL, _TGKILL, _PRLIMIT = (62, 129), (200, 130), (234, 131), (302, 261)
_SOCKETPAIR, _SENDTO, _IOCTL, _FCNTL = (53, 199), (44, 206), (16, 29), (72, 25)
_OPENS, _TEMPORARY_FILE, _TRUNCATE, _WRITE = ((2, -1, 1), (257, 56, 2)), 0o20000000, 0o1000, 0o3
"""open and openat with the place of their flags; __O_TMPFILE makes a file without a name. Before its version 3,
Landlock let O_TRUNC empty a file that is opened to read."""
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: what opening a file in Python asks."""
_FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)
"""Duplicates, flags, pipe sizes; not locks, and not F_SETOWN and F_SETSIG, which send signals to other processes."""

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _EPERM, _ENOSYS, _KILL_PROCESS = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction of classic BPF; jumps count instructions from the next one on."""
    return struct.pack("HBBI", code, if_true, if_false, value)


def _low(argument: int) -> int:
    """Where `struct seccomp_data` has the low half of an argument of the call; the high half is 4 bytes further."""
    return 16 + 8 * argument


def _only(number: int, *conditions: tuple[int, Iterable[int]]) -> bytes:
    """Allow call `number` only where each (offset, values) has one of its values there; else it is refused."""
    body = b""
    for offset, values in conditions:
        choices = list(values)
        jumps = [_step(_JUMP_IF_EQUAL, value, len(choices) - at) for at, value in enumerate(choices)]
        body += _step(_LOAD, offset) + b"".join(jumps) + _step(_RETURN, _EPERM)
    body += _step(_RETURN, _ALLOW)
    return _step(_JUMP_IF_EQUAL, number, 0, len(body) // 8) + body


def _filter(column: int, architecture: int, last_known: int) -> bytes:
    """The seccomp filter of a machine, as a BPF program."""
    own = [os.getpid()]
    program = _same_for_all(column, architecture, last_known)
    for call in (_KILL, _TKILL, _TGKILL):
        program += _only(call[column], (_low(0), own))
    return program + _only(_PRLIMIT[column], (_low(0), [0, *own])) + _step(_RETURN, _ALLOW)


def refused_calls() -> list[list[str]]:
    """Their numbers on each machine."""
    with open(f"{_FOLDER}/system_calls.txt", encoding="utf-8") as stream:
        return [line.split()[1:] for line in stream if line.strip() and not line.startswith("#")]


@lru_cache
def _same_for_all(column: int, architecture: int, last_known: int) -> bytes:
    """What does not depend on the process: the template makes it once."""
    refused = [int(numbers[column]) for numbers in refused_calls() if numbers[column] != "-"]
    program = (
        _step(_LOAD, 4) + _step(_JUMP_IF_EQUAL, architecture, 1) + _step(_RETURN, _KILL_PROCESS) + _step(_LOAD, 0)
    )
    program += _step(_JUMP_IF_AT_LEAST, 0x40000000, 0, 1) + _step(_RETURN, _EPERM)  # x32: other numbers, same calls
    program += _step(_JUMP_IF_AT_LEAST, last_known + 1, 0, 1) + _step(_RETURN, _ENOSYS)
    for further, number in zip(reversed(range(len(refused))), refused, strict=True):  # all to the one return
        program += _step(_JUMP_IF_EQUAL, number, further, not further)
    program += _step(_RETURN, _EPERM)
    program += _step(_JUMP_IF_EQUAL, _CLONE[column], 0, 4) + _step(_LOAD, _low(0))
    program += _step(_JUMP_IF_SET, _CLONE_THREAD, 1) + _step(_RETURN, _EPERM) + _step(_RETURN, _ALLOW)
    for *numbers, flags in _OPENS:
        if numbers[column] >= 0:
            program += _step(_JUMP_IF_EQUAL, numbers[column], 0, 6) + _step(_LOAD, _low(flags))
            program += _step(_JUMP_IF_SET, _TEMPORARY_FILE, 2) + _step(_JUMP_IF_SET, _TRUNCATE, 0, 2)
            program += _step(_JUMP_IF_SET, _WRITE, 1) + _step(_RETURN, _EPERM) + _step(_RETURN, _ALLOW)
    program += _only(_SOCKETPAIR[column], (_low(0), [1]))  # AF_UNIX: asyncio wakes itself with one,
    program += _only(_SENDTO[column], (_low(4), [0]), (_low(4) + 4, [0]))  # and sends without an address
    return program + _only(_IOCTL[column], (_low(1), _IOCTLS)) + _only(_FCNTL[column], (_low(1), _FCNTLS))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64),)


class _RuleBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_RIGHTS = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 4: 1 << 15}
"""By version of Landlock, one past the last right to files that it knows; from 5 on 1 << 16."""
_READ = 1 << 2 | 1 << 3
_ON_A_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_READABLE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/dev/urandom")


def landlock_version() -> int:
    """Of the kernel; less than 1 where it has none."""
    return _LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)


def _restrict_files(libc: ctypes.CDLL, folders: Sequence[str]) -> None:
    """Where the kernel has Landlock: read the interpreter, libraries and `folders`, write the working folder only."""
    version = landlock_version()
    if version < 1:
        return
    every = _LANDLOCK_RIGHTS.get(version, 1 << 16) - 1
    rules = _checked(
        libc.syscall(_LANDLOCK_CREATE, ctypes.byref(_Ruleset(every)), ctypes.c_size_t(8), 0), "Landlock has no ruleset"
    )
    readable = [*sys.path, f"{sys.base_prefix}/lib", *_READABLE, *folders]
    allowed = [(path, _READ) for path in readable if os.path.exists(path)] + [("/dev/null", every), (".", every)]
    for path, rights in allowed:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _RuleBeneath(rights if os.path.isdir(path) else rights & every & _ON_A_FILE, folder)
        _checked(libc.syscall(_LANDLOCK_ADD, rules, 1, ctypes.byref(rule), 0), f"Landlock refuses a rule for {path}")
        os.close(folder)
    _checked(libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "Landlock cannot be switched on")
    os.close(rules)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _set_limits(limits: dict[str, int]) -> None:
    """Hard limits, which a process without capabilities cannot raise again."""
    with open("/proc/self/statm", "rb") as stream:
        memory = int(stream.read().split()[0]) * resource.getpagesize() + (limits["memory_mib"] << 20)
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1),  # SIGXCPU, then SIGKILL
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, limits["file_mib"] << 20, limits["file_mib"] << 20),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_STACK, _STACK_BYTES, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def _confine(spawn: dict[str, Any], folders: Sequence[str]) -> None:
    """Give up, for good, all that a program does not need. OSError or ValueError where that is not possible."""
    if os.uname().machine not in _MACHINES:
        raise OSError(f"no filter of system calls for {os.uname().machine}, only for {', '.join(_MACHINES)}")
    libc = _LIBC
    os.environ.clear()  # the interpreter has put LC_CTYPE there
    _set_limits(spawn["limits"])
    header, nothing = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _checked(libc.capset(header, nothing), "the capabilities cannot be dropped")
    _checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "the child would outlive its parent")
    if os.getppid() != spawn["template"]:
        raise OSError("the parent has gone")
    _checked(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "crashes would be written out")
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges cannot be given up")
    _restrict_files(libc, folders)
    steps = _filter(*_MACHINES[os.uname().machine])
    program = _FilterProgram(len(steps) // 8, steps)
    _checked(
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
        "the kernel does not take the filter of system calls",
    )
    if libc.socket(1, 1, 0) >= 0:
        raise OSError("the filter of system calls has no effect")
    for process in (spawn["template"], spawn["grader"]):
        _check_is_closed(process)


def _check_is_closed(process: int | None) -> None:
    """Who can read a process's environment can read its memory: in the grader's are expected outputs and secrets."""
    if process is None:  # in a namespace of its own
        return
    try:
        os.close(os.open(f"/proc/{process}/environ", os.O_RDONLY))
    except OSError:
        return
    raise OSError(
        "a program could read the memory of the process that grades it: use a kernel with Landlock (5.13 on), "
        "bubblewrap, or root"
    )


def _import(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Import what programs may import, and return the folders of these packages and of those that they need."""
    sys.path[:] = map(os.path.realpath, sys.path)  # programs cannot follow links, and `inspect` wants to
    folders = [os.path.realpath(folder) for folder in folders]
    for name in _OFTEN_IMPORTED:
        importlib.import_module(name)
    before, paths = set(sys.modules), list(sys.path)
    sys.path += folders
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # a process with threads is not to be forked
    for name in names:
        importlib.import_module(name)
    sys.path[:] = paths
    for module in [module for module in sys.modules.values() if getattr(module, "__file__", None)]:
        module.__file__ = os.path.realpath(str(module.__file__))
    found = {name.partition(".")[0] for name in set(sys.modules) - before}
    places = [f"{folder}/{name}{end}" for folder in folders for name in sorted(found) for end in ("", ".libs", ".py")]
    return [place for place in places if os.path.exists(place)]


def main() -> None:
    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):  # those of the grader are for one answer
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))
    channel = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    sys.path.append(_FOLDER)
    jobs, server = (importlib.import_module(f"inside.{name}") for name in ("jobs", "server"))
    sys.path.remove(_FOLDER)
    # Programs of the same user could read an ordinary process.
    _checked(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "the template is readable")
    if settings["is_wrapped"] and os.getppid() != 1:
        raise OSError("there is no namespace of processes")
    try:
        folders = _import(settings["imports"], settings["folders"])
    except Exception as error:  # noqa: BLE001 - the parent raises it
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode())
        sys.exit(1)
    if os.uname().machine in _MACHINES:
        _filter(*_MACHINES[os.uname().machine])
    gc.freeze()
    channel.send(b'{"error": ""}')
    spawn = server.serve(channel)  # returns in each child
    status = server.STATUS
    try:
        _confine(spawn, folders)
    except (OSError, ValueError) as error:
        os.write(status, f"{error}\n".encode())
        os._exit(1)
    os.write(status, b"ready\n")
    jobs.run(status)


if __name__ == "__main__":
    main()
