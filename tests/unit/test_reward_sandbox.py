"""The sandbox: programs that behave run as anywhere else, and no limit can be exceeded."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest
from sandboxed import SHORT, SYSCALLS, WRITE_EVERYWHERE, cause, output

from openrlhf_ada.reward.programs.limits import ProgramLimits
from openrlhf_ada.reward.programs.sandbox import run_program

# Programs that behave.


def test_a_program_reads_its_stdin_and_only_that() -> None:
    assert output("import sys; print(sys.stdin.read())", "3\n4") == "3\n4\n"
    assert output("print(int(input()) + int(input()))", "3\n4") == "7\n"


def test_large_input_and_output_go_through() -> None:
    assert output("print(input()[::-1])", "a" + "b" * 900_000) == "b" * 900_000 + "a\n"


def test_input_that_is_not_read_is_no_failure() -> None:
    assert output("import os; os.close(0); print(1)", "x" * 900_000) == "1\n"


def test_program_runs_as_main_with_exit_and_quit() -> None:
    assert output("if __name__ == '__main__':\n    print(1)\n    exit()") == "1\n"
    assert output("print(2)\nquit(0)") == "2\n"


def test_annotations_and_dataclasses_find_their_module() -> None:
    code = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    assert output(code + "print(A(1))") == "A(x=1)\n"


def test_threads_work() -> None:
    code = "import threading\nthreads = [threading.Thread(target=print, args=(7,)) for _ in range(9)]\n"
    assert output(code + "for t in threads: t.start()\nfor t in threads: t.join()").split() == ["7"] * 9
    assert output("import threading; threading.Thread(target=print, args=(1,)).start()") == "1\n"


def test_asyncio_and_its_threads_work() -> None:
    code = "import asyncio\nasync def f():\n    return await asyncio.to_thread(lambda: 5)\nprint(asyncio.run(f()))"
    assert output(code) == "5\n"


def test_common_modules_can_be_imported() -> None:
    names = "collections, datetime, decimal, hashlib, heapq, itertools, math, random, re, sqlite3, ssl, zoneinfo"
    assert output(f"import {names}\nprint(hashlib.md5(b'').hexdigest()[:4])") == "d41d\n"


def test_deep_recursion_is_possible_on_request() -> None:
    code = "import sys\nfrom functools import lru_cache\nsys.setrecursionlimit(10**6)\n"
    function = "def f(n): return n and 1 + f(n - 1)\nprint(f(30000))"
    assert output(code + function) == "30000\n"
    if sys.version_info < (3, 12):
        # Python 3.12 has a limit for functions written in C that programs cannot raise (docs/rewards.md).
        assert output(code + "@lru_cache(None)\n" + function) == "30000\n"


@pytest.mark.slow
def test_endless_recursion_ends() -> None:
    assert cause("def f(): return f()\nf()") == "raised RecursionError"
    endless = "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()"
    assert cause(endless, SHORT) in ("time limit", "memory limit", f"killed by signal {signal.SIGSEGV.value}")


@pytest.mark.slow
def test_one_megabyte_of_code_runs() -> None:
    assert output("x = 1\n" * 170_000 + "print(x)") == "1\n"


# How runs end.


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1/0", "raised ZeroDivisionError"),
        ("class Mine(KeyError): pass\nraise Mine", "raised KeyError"),
        ("import json; json.loads('')", "raised ValueError"),
        ("def f(:", "raised SyntaxError"),
        ("def f(x: 1 / 0): pass", "raised ZeroDivisionError"),
        ("print('\ud800')", "raised UnicodeEncodeError"),
        ("raise SystemExit(3)", "exit code not 0"),
        ("import sys; sys.exit('bad')", "exit code not 0"),
        ("import os; os._exit(9)", "exit code not 0"),
        ("import ctypes; ctypes.string_at(0)", f"killed by signal {signal.SIGSEGV.value}"),
        ("import os; os.abort()", f"killed by signal {signal.SIGABRT.value}"),
    ],
)
def test_a_failure_has_a_short_cause(code: str, expected: str) -> None:
    assert cause(code) == expected


def test_null_bytes_in_code_are_a_failure() -> None:
    assert cause("print(1)\x00") in ("raised SyntaxError", "raised ValueError")  # the latter before Python 3.11.4


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit()", "import os; os._exit(0)", "import sys; sys.stdout.close()"]
)
def test_ending_early_is_no_failure_by_itself(code: str) -> None:
    assert output(code) == ""


def test_output_that_is_not_unicode_comes_as_bytes() -> None:
    assert run_program(r"import os; os.write(1, b'\xff\x00')", "").stdout == b"\xff\x00"


@pytest.mark.parametrize("forged", [{"cause": "I pass"}, {"cause": []}, 7])
def test_a_program_cannot_make_up_causes(forged: Any) -> None:
    assert cause(WRITE_EVERYWHERE.format(json.dumps(forged).encode())) == "unreadable reply"


@pytest.mark.parametrize("forged", [b"[" * 50_000, b"\xff"])
def test_reply_must_be_json(forged: bytes) -> None:
    assert cause(WRITE_EVERYWHERE.format(forged)) == "unreadable reply"


# Limits.


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(99)",
        "import threading; threading.Event().wait()",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import os\nos.close(1)\nwhile True: pass",
    ],
)
def test_a_program_that_does_not_end_is_stopped(code: str) -> None:
    assert cause(code, SHORT) == "time limit"


@pytest.mark.slow
def test_cpu_time_is_limited_apart_from_time() -> None:
    limits = ProgramLimits(seconds=30, cpu_seconds=1)
    assert cause("while True: pass", limits) == "time limit"
    ignore = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    assert cause(ignore + "while True: pass", limits) == f"killed by signal {signal.SIGKILL.value}"


@pytest.mark.slow
def test_memory_is_limited() -> None:
    small = ProgramLimits(memory_mib=100)
    assert cause("bytearray(200 << 20)", small) == "memory limit"
    assert cause("def f():\n    x = ()\n    while True: x = [x]\nf()", small) == "memory limit"
    assert cause("x = ['a']\nwhile True: x = x + x", small) == "memory limit"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["print('x' * 100)", "os.write(1, b'x' * 5000)", "print()"])
def test_endless_output_is_stopped(step: str) -> None:
    assert cause(f"import os\nwhile True: {step}") == "output limit"


def test_stderr_is_not_kept() -> None:
    assert output("import sys; sys.stderr.write('x' * 5_000_000); print(1)") == "1\n"


def test_files_are_limited_in_size() -> None:
    assert cause("open('a', 'wb').write(bytes(3 << 20))", ProgramLimits(file_mib=2)) == "raised OSError"
    assert output("open('a', 'wb').write(bytes(1 << 20)); print(1)", limits=ProgramLimits(file_mib=2)) == "1\n"


def test_open_files_are_limited() -> None:
    assert cause("import os\nfiles = [os.dup(0) for _ in range(100)]") == "raised OSError"


def test_limits_cannot_be_raised_again() -> None:
    code = "import resource\nfor kind in (0, 1, 4, 7, 9):\n    try: resource.setrlimit(kind, (-1, -1))\n"
    assert output(code + "    except (ValueError, OSError): print('no')").split() == ["no"] * 5


def test_no_capability_is_left() -> None:
    code = "held = ctypes.create_string_buffer(b'x' * 24)\nheader = (ctypes.c_uint32 * 2)(0x20080522)\n"
    assert output(SYSCALLS + code + "print(libc.capget(header, held), any(held.raw[:24]))") == "0 False\n"
