"""The script that runs inside the child: it confines its own process for good, then runs the answer.

`sandbox.py` starts it, on its own and without the package: standard library only. It reads a job from its stdin (8
bytes length, JSON; what follows is the stdin of the answer) and writes to the pipe whose number is its argument: the
line "ready" once nothing trusted follows, or one line with what could not be confined; then what became of the answer.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_STACK_BYTES = 64 << 20
"""Deep recursion through C (`lru_cache`) needs more than the usual 8 MiB."""

_MACHINES = {"x86_64": (0, 0xC000003E, 334), "aarch64": (1, 0xC00000B7, 294)}
"""Column in the tables of system calls, `AUDIT_ARCH_*`, and the last call that was reviewed for these tables. Whatever
the kernel has beyond (io_uring, clone3, pidfd, new mounts) is "not there" (ENOSYS), for which glibc has its ways."""

_REFUSED = """
connect 42 203, accept 43 202, accept4 288 242, bind 49 200, listen 50 201, sendmsg 46 211, sendmmsg 307 269,
recvmmsg 299 243, socket 41 198,

fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, ptrace 101 117, process_vm_readv 310 270,
process_vm_writev 311 271, kcmp 312 272, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, migrate_pages 256 238,
move_pages 279 239, setpriority 141 140, sched_setparam 142 118, sched_setscheduler 144 119, sched_setaffinity 203 122,
sched_setattr 314 274, ioprio_set 251 30, get_robust_list 274 100, unshare 272 97, setns 308 268, prctl 157 167,
seccomp 317 277,

mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, init_module 175 105, finit_module 313 273,
delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, swapon 167 224, swapoff 168 225,
bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, syslog 103 116, acct 163 89, settimeofday 164 170,
clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171, quotactl 179 60, iopl 172 -, ioperm 173 -,
modify_ldt 154 -, personality 135 92, open_by_handle_at 304 265, name_to_handle_at 303 264, fanotify_init 300 262,
add_key 248 217, request_key 249 218, keyctl 250 219, io_setup 206 0, io_submit 209 2, vhangup 153 58, sync 162 81,

shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192,
msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181, memfd_create 319 279,
mkdir 83 -, mkdirat 258 34, mknod 133 -, mknodat 259 33, chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -,
lchown 94 -, fchown 93 55, fchownat 260 54, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7"""
"""Calls with their number on each machine: network; other processes; the kernel itself; what would outlast the
process or make its folder hard to delete."""

_CLONE, _CLONE_THREAD = (56, 220), 0x10000
_KILL, _TKILL, _TGKILL, _PRLIMIT = (62, 129), (200, 130), (234, 131), (302, 261)
_SOCKETPAIR, _SENDTO, _IOCTL, _FCNTL = (53, 199), (44, 206), (16, 29), (72, 25)
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: what opening a file in Python asks."""
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""Duplicates, flags, locks, pipe sizes; not F_SETOWN and F_SETSIG, which send signals to other processes."""

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
    refused = [entry.split()[1 + column] for entry in _REFUSED.split(",")]
    program = (
        _step(_LOAD, 4) + _step(_JUMP_IF_EQUAL, architecture, 1) + _step(_RETURN, _KILL_PROCESS) + _step(_LOAD, 0)
    )
    program += _step(_JUMP_IF_AT_LEAST, 0x40000000, 0, 1) + _step(_RETURN, _EPERM)  # x32: other numbers, same calls
    program += _step(_JUMP_IF_AT_LEAST, last_known + 1, 0, 1) + _step(_RETURN, _ENOSYS)
    for number in (int(text) for text in refused if text != "-"):
        program += _step(_JUMP_IF_EQUAL, number, 0, 1) + _step(_RETURN, _EPERM)
    program += _step(_JUMP_IF_EQUAL, _CLONE[column], 0, 4) + _step(_LOAD, _low(0))
    program += _step(_JUMP_IF_SET, _CLONE_THREAD, 1) + _step(_RETURN, _EPERM) + _step(_RETURN, _ALLOW)
    for call in (_KILL, _TKILL, _TGKILL):
        program += _only(call[column], (_low(0), own))
    program += _only(_PRLIMIT[column], (_low(0), [0, *own]))
    program += _only(_SOCKETPAIR[column], (_low(0), [1]))  # AF_UNIX: asyncio wakes itself with one,
    program += _only(_SENDTO[column], (_low(4), [0]), (_low(4) + 4, [0]))  # and sends without an address
    program += _only(_IOCTL[column], (_low(1), _IOCTLS)) + _only(_FCNTL[column], (_low(1), _FCNTLS))
    return program + _step(_RETURN, _ALLOW)


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


def _restrict_files(libc: ctypes.CDLL) -> None:
    """Where the kernel has Landlock: read the interpreter and its libraries only, write the working folder only."""
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    every = _LANDLOCK_RIGHTS.get(version, 1 << 16) - 1
    rules = _checked(
        libc.syscall(_LANDLOCK_CREATE, ctypes.byref(_Ruleset(every)), ctypes.c_size_t(8), 0), "Landlock has no ruleset"
    )
    readable = [*sys.path, f"{sys.base_prefix}/lib", *_READABLE]
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
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1),  # SIGXCPU, then SIGKILL
        (resource.RLIMIT_AS, limits["memory_mib"] << 20, limits["memory_mib"] << 20),
        (resource.RLIMIT_FSIZE, limits["file_mib"] << 20, limits["file_mib"] << 20),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_STACK, _STACK_BYTES, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def _confine(limits: dict[str, int], parent: int) -> None:
    """Give up, for good, all that an answer does not need. OSError or ValueError where that is not possible."""
    if os.uname().machine not in _MACHINES:
        raise OSError(f"no filter of system calls for {os.uname().machine}, only for {', '.join(_MACHINES)}")
    libc = ctypes.CDLL(None, use_errno=True)
    os.environ.clear()  # the interpreter has put LC_CTYPE there
    _set_limits(limits)
    header, nothing = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _checked(libc.capset(header, nothing), "the capabilities cannot be dropped")
    _checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "the child would outlive its parent")
    if os.getppid() != parent:
        raise OSError("the parent has gone")
    _checked(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "crashes would be written out")
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges cannot be given up")
    _restrict_files(libc)
    steps = _filter(*_MACHINES[os.uname().machine])
    program = _FilterProgram(len(steps) // 8, steps)
    _checked(
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
        "the kernel does not take the filter of system calls",
    )
    if libc.socket(1, 1, 0) >= 0:
        raise OSError("the filter of system calls has no effect")
    _check_parent_is_closed(parent)


def _check_parent_is_closed(parent: int) -> None:
    """Who can read the parent's environment can read its memory, where the expected outputs and its secrets are."""
    try:
        os.close(os.open(f"/proc/{parent}/environ", os.O_RDONLY))
    except OSError:
        return
    raise OSError(
        "a program could read the memory of the process that grades it: use a kernel with Landlock (5.13 on), or root"
    )


def _hook(status: int) -> Callable[..., None]:
    """An excepthook that reports the nearest built-in base. It makes nothing new: there may be no memory left."""
    kinds = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    lines = {kind: json.dumps({"cause": f"raised {kind.__name__}"}).encode() for kind in kinds}
    lines[MemoryError] = json.dumps({"cause": "memory limit"}).encode()

    def report(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        for base in kind.__mro__:
            if base in lines:
                os.write(status, lines[base])
                return

    return report


def _read(size: int) -> bytes:
    """Exactly `size` bytes of stdin, and no byte more: the rest is for the answer."""
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("the job is cut short")
    return data


def _load(code: str, name: str, before: str = "") -> dict[str, Any]:
    """Run `code` as the module `name` and return its names; `before` runs there first."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(before, module.__dict__)
    exec(compile(code, "<answer>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def _call(job: dict[str, Any]) -> bytes:
    """What the function of the answer returns, as JSON. Names of `typing` are there, as where such tasks come from."""
    names = _load(job["code"], "answer", "from typing import *")
    if hasattr(names.get("Solution"), job["name"]):
        function = getattr(names["Solution"](), job["name"])
    elif job["name"] in names:
        function = names[job["name"]]
    else:
        return json.dumps({"cause": "no such function"}).encode()
    result = function(*job["arguments"])
    try:
        return json.dumps({"result": result}).encode()
    except (TypeError, ValueError):
        return json.dumps({"cause": "result is not JSON"}).encode()


def _test(job: dict[str, Any]) -> bytes:
    names = _load(job["code"], "answer")
    exec(compile(job["tests"], "<tests>", "exec", dont_inherit=True), names)
    return json.dumps({"token": job["token"]}).encode()


def main() -> None:
    status = int(sys.argv[1])
    job = json.loads(_read(int.from_bytes(_read(8), "big")))
    try:
        _confine(job["limits"], job["parent"])
    except (OSError, ValueError) as error:
        os.write(status, f"{error}\n".encode())
        os._exit(1)
    os.write(status, b"ready\n")
    sys.excepthook = _hook(status)
    builtins.__dict__.update(exit=sys.exit, quit=sys.exit)  # `site`, which is not loaded, gives these
    if job["kind"] == "program":
        _load(job["code"], "__main__")
        return  # the interpreter waits for threads and flushes stdout
    reply = _call(job) if job["kind"] == "call" else _test(job)
    with open(status, "wb", closefd=False) as pipe:
        pipe.write(reply)
    os._exit(0)


if __name__ == "__main__":
    main()
