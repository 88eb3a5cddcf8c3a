"""The sandbox: what a program may not do is refused, nothing of the parent is in reach, nothing is left behind."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from processes import has_ended
from sandboxed import LANDLOCK, LIMITS, SHORT, SYSCALLS, X86_ONLY, cause, output

from openrlhf_ada.reward.programs import child as sandbox_child
from openrlhf_ada.reward.programs import template as sandbox_template
from openrlhf_ada.reward.programs.sandbox import run_program
from openrlhf_ada.reward.programs.template import SandboxError, close_templates

BUBBLEWRAP = sandbox_template.bubblewrap()


@pytest.fixture(
    autouse=True,
    params=["own", pytest.param("bubblewrap", marks=pytest.mark.skipif(BUBBLEWRAP is None, reason="needs bwrap"))],
)
def wrapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every wall stands without bubblewrap, and in it."""
    is_wrapped = request.param == "bubblewrap"
    monkeypatch.setattr(sandbox_template, "bubblewrap", lambda: BUBBLEWRAP if is_wrapped else None)
    return is_wrapped


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def strangers() -> set[psutil.Process]:
    """Processes that tests of other files have left."""
    close_templates()
    return descendants()


# What a program may not do.


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import subprocess; subprocess.run('true', shell=True)",
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; a, b = socket.socketpair(); a.sendto(b'x', '/dev/log')",
        "import os; os.kill(os.getppid(), 0)",
        "import os; os.kill(-1, 9)",
        "import os; os.killpg(0, 9)",
        "import os, fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())",
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import os; os.mkdir('a')",
        "import os; os.chmod('.', 0)",
    ],
)
def test_processes_network_and_signals_are_refused(code: str) -> None:
    assert cause(code) == "raised PermissionError"


@pytest.mark.parametrize(
    "code",
    [
        "os.utime(library)",
        "os.utime(other)",
        "os.utime(os.open(library, os.O_RDONLY))",
        "os.link(library, 'a')",
        "os.link(other, 'a')",
        "os.truncate(other, 0)",
        "os.removexattr(other, 'user.a')",
        "os.setxattr(library, 'user.a', b'a')",
        "os.listxattr(other)",
        "os.readlink(other + '-link')",
        "fcntl.flock(open(library), fcntl.LOCK_SH)",
        "fcntl.flock(os.open(os.path.dirname(library), os.O_RDONLY), fcntl.LOCK_EX)",
        "fcntl.lockf(open(library), fcntl.LOCK_SH)",
        "fcntl.fcntl(os.open(os.path.dirname(library), os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_MODIFY)",
        "fcntl.fcntl(open(library), 1024, fcntl.F_RDLCK)  # F_SETLEASE",
        "open('own', 'w'); os.open('own', os.O_RDONLY | os.O_TRUNC)",
        "refuse(libc.inotify_init())",
        "refuse(libc.inotify_init1(0))",
        "refuse(libc.fanotify_init(0, 0))",
    ],
)
def test_nothing_outside_of_the_folder_is_changed_watched_or_locked(code: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("content")
    os.setxattr(other, "user.a", b"a")
    Path(f"{other}-link").symlink_to(other)
    before = other.stat()
    start = f"""
import ctypes, fcntl, os
library, other, libc = os.__file__, {str(other)!r}, ctypes.CDLL(None, use_errno=True)
def refuse(result):
    if result < 0: raise OSError(ctypes.get_errno(), "refused")
"""
    assert cause(start + code) == "raised PermissionError"
    assert other.stat() == before


def test_no_shell_and_no_download() -> None:
    assert "hello" not in output("import os; print(os.system('echo hello'))")
    assert cause("import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')") == "raised OSError"


@X86_ONLY
def test_every_call_of_the_table_is_refused() -> None:
    numbers = [int(x86) for x86, _ in sandbox_child.refused_calls()]
    assert len(numbers) > 110
    refused = json.loads(output(SYSCALLS + f"print(json.dumps([call(number, 0, 0, 0, 0) for number in {numbers}]))"))
    assert refused == [1] * len(numbers)  # EPERM


@X86_ONLY
def test_unreviewed_system_calls_are_blocked() -> None:
    io_uring_setup, pidfd_open, clone3, landlock, unknown = 425, 434, 435, 444, 1000
    code = f"print([call(number, 0, 0, 0) for number in {[io_uring_setup, pidfd_open, clone3, landlock, unknown]}])"
    assert output(SYSCALLS + code) == "[38, 38, 38, 38, 38]\n"  # ENOSYS
    assert output(SYSCALLS + "print(call(0x40000000 + 39))") == "1\n"  # getpid by its number in x32
    machine_code = "b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3'"  # getpid of 32 bits: mov eax, 20; int 0x80; ret
    old = f"import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write({machine_code})\n"
    old += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    assert cause(SYSCALLS + old).startswith("killed by signal")


def test_a_new_process_by_clone_is_refused() -> None:
    number, sigchld = sandbox_child._CLONE[sandbox_child._MACHINES[os.uname().machine][0]], 17
    assert output(SYSCALLS + f"print(call({number}, {sigchld}, 0, 0, 0, 0))") == "1\n"


def decided(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What a seccomp filter answers to a call: an interpreter of the four instructions that it is made of."""
    call = struct.pack("IIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    steps, at, loaded = list(struct.iter_unpack("HBBI", program)), 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        if code == sandbox_child._RETURN:
            return value
        if code == sandbox_child._LOAD:
            (loaded,) = struct.unpack_from("I", call, value)
        jumps = {
            sandbox_child._JUMP_IF_EQUAL: loaded == value,
            sandbox_child._JUMP_IF_AT_LEAST: loaded >= value,
            sandbox_child._JUMP_IF_SET: loaded & value,
        }
        at += 1 if code not in jumps else 1 + (if_true if jumps[code] else if_false)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_uses_the_machines_call_numbers(machine: str) -> None:
    child, own = sandbox_child, os.getpid()
    column, architecture, last = child._MACHINES[machine]
    program = child._filter(column, architecture, last)
    ok, no, missing = child._ALLOW, child._EPERM, child._ENOSYS
    refused = [numbers[column] for numbers in child.refused_calls()]
    assert {decided(program, architecture, int(number)) for number in refused if number != "-"} == {no}
    assert decided(program, architecture ^ 1, 0) == child._KILL_PROCESS
    assert [decided(program, architecture, number) for number in (last, last + 1, 1 << 30)] == [
        no if str(last) in refused else ok, missing, no
    ]  # fmt: skip
    for call, arguments, answer in [
        (child._CLONE, (0x3D0F00,), ok), (child._CLONE, (17,), no),  # what glibc asks for threads and for fork
        (child._KILL, (own, 9), ok), (child._KILL, (1, 9), no), (child._TGKILL, (2**32 - 1, 1, 9), no),
        (child._SENDTO, (3,), ok), (child._SENDTO, (3, 0, 0, 0, 1), no), (child._SENDTO, (3, 0, 0, 0, 1 << 32), no),
        (child._SOCKETPAIR, (1,), ok), (child._SOCKETPAIR, (2,), no), (child._PRLIMIT, (1,), no),
        (child._IOCTL, (0, 0x5401), ok), (child._IOCTL, (0, 0x5412), no),
        (child._FCNTL, (0, 1), ok), (child._FCNTL, (0, 8), no), (child._FCNTL, (0, 6), no),
        (child._OPENS[1], (0, 0, 0o101), ok), (child._OPENS[1], (0, 0, 0o1001), ok),
        (child._OPENS[1], (0, 0, 0o1002), ok), (child._OPENS[1], (0, 0, 0o1000), no),
        (child._OPENS[1], (0, 0, 0o20200002), no),
    ]:  # fmt: skip
        assert decided(program, architecture, call[column], *arguments) == answer


@pytest.mark.slow
def test_a_program_that_will_not_die_dies(strangers: set[psutil.Process]) -> None:
    code = """
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for daemonise in (os.setsid, os.fork, lambda: os.setpgid(0, 0)):
    try: daemonise()
    except OSError: pass
while True: pass
"""
    output("print(1)")
    before = descendants()
    assert cause(code, SHORT) == "time limit"
    assert descendants() == before
    close_templates()
    assert descendants() <= strangers


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "secret")
    assert output("import os; print(dict(os.environ), os.getenvb(b'CANARY_TOKEN'))") == "{} None\n"


def test_the_process_that_grades_cannot_be_read() -> None:
    pids = [os.getpid(), os.getppid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    code = f"import os\nfor pid in [os.getppid(), 1, *{pids}]:\n  for name in ('environ', 'mem', 'maps', 'fd/0'):\n"
    code += "    try: open(f'/proc/{pid}/{name}', 'rb').read(1); print('read', pid, name)\n"
    assert output(code + "    except OSError: pass") == ""


def test_parents_files_are_closed() -> None:
    code = "import os\nfor fd in range(64):\n    try: os.fstat(fd); print(fd)\n    except OSError: pass"
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        assert len(output(code).split()) == 4  # stdin, stdout, stderr and the pipe of its status


@LANDLOCK
def test_landlock_restricts_to_the_own_folder(tmp_path: Path) -> None:
    assert output("open('a', 'w').write('b'); print(open('a').read())") == "b\n"
    (tmp_path / "answers.txt").write_text("42")
    refused = ("raised PermissionError", "raised FileNotFoundError")  # in bubblewrap there is nothing
    assert cause(f"open({str(tmp_path / 'answers.txt')!r})") in refused
    assert cause(f"open({str(tmp_path / 'new.txt')!r}, 'w')") in refused
    assert cause("import os; os.rename(os.getcwd(), '/tmp/moved-away')") != ""


def test_a_missing_wall_is_said(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (7, -1):
        close_templates()
        caplog.clear()
        monkeypatch.setattr(sandbox_child, "landlock_version", lambda found=version: found)
        assert output("print(1)") == "1\n"
        assert ("Landlock" in caplog.text) == (version < 1 and not wrapped)


# Setting up and clearing away.


def spoil(monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str) -> None:
    """Use a template whose source differs in one place."""
    source = Path(sandbox_child.__file__).read_text()
    assert source.count(old) == 1
    (folder / "child.py").write_text(source.replace(old, new))
    monkeypatch.setattr(sandbox_template, "_CHILD", folder / "child.py")


@pytest.mark.parametrize(
    ("old", "new", "wall"),
    [
        ("_SECCOMP_MODE_FILTER = 2", "_SECCOMP_MODE_FILTER = 9", "system calls: Invalid"),
        ("if_true, if_false, value)", "if_true, if_false, _ALLOW if value == _EPERM else value)", "system calls"),
        ('"x86_64": (', '"m68k": (', "system calls for"),
        ("0x20080522", "0x1", "capabilities"),
        pytest.param("_LANDLOCK_RESTRICT, rules", "999, rules", "Landlock", marks=LANDLOCK),
        ("resource.RLIMIT_CORE, 0", "99, 0", "invalid resource"),
        ("import gc", "raise OSError", "exit code 1"),
        ("/proc/{process}/environ", "/dev/null", "memory"),
    ],
)
def test_no_program_runs_without_its_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, wall: str
) -> None:
    spoil(monkeypatch, tmp_path, old, new)
    with pytest.raises(SandboxError, match=wall):
        run_program("print(1)", "", LIMITS)


def test_grader_is_unreadable_without_landlock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spoil(monkeypatch, tmp_path, "if version < 1:", "if True:")
    code = "import os\nfor pid in (os.getppid(), os.getpid()):\n    try: print(open(f'/proc/{pid}/environ').read())\n"
    try:
        assert output(code + "    except PermissionError: pass").strip() in ("", "PWD=/tmp\0")  # bubblewrap sets it
    except SandboxError as error:
        assert "memory" in str(error)


def test_an_interpreter_that_is_not_there_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(SandboxError, match="/nowhere/python"):
        run_program("print(1)", "")


@pytest.mark.slow
def test_a_child_that_never_starts_is_no_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spoil(monkeypatch, tmp_path, "import gc\n", "import time, gc; time.sleep(99)\n")
    monkeypatch.setattr(sandbox_template, "START_SECONDS", 0.5)
    with pytest.raises(SandboxError, match="time limit"):
        run_program("print(1)", "")


@pytest.mark.slow
def test_no_file_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strangers: set[psutil.Process]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    close_templates()
    process, files = psutil.Process(), psutil.Process().num_fds()
    leave = "import os\nfor i in range(50): open(str(i), 'w').close()\nos.symlink('/', 'root')\nos.umask(0o777)\n"
    for end in ("open('x', 'w').close()", "1/0", "while True: pass", "while True: print('x' * 999)", "os._exit(0)"):
        run_program(leave + end, "", SHORT)
        assert list(tmp_path.iterdir()) == []
    close_templates()
    assert descendants() <= strangers
    assert process.num_fds() == files


@pytest.mark.slow
def test_a_program_ends_with_the_process_that_grades(tmp_path: Path) -> None:
    code = "import threading, time\nfor _ in range(5): threading.Thread(target=time.sleep, args=(99,)).start()"
    start = f"from openrlhf_ada.reward.programs.sandbox import run_program; run_program({code!r}, '')"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    grader = subprocess.Popen([sys.executable, "-c", start], cwd=Path(__file__).parents[2], env=environment)
    is_running = False
    while not is_running:
        assert grader.poll() is None
        children = psutil.Process(grader.pid).children(recursive=True)
        is_running = any(threads_of(child) == 6 for child in children)
    grader.kill()
    grader.wait()
    psutil.wait_procs(children, timeout=30)
    assert all(has_ended(child.pid) for child in children)
    assert list(tmp_path.iterdir()) == []


def threads_of(process: psutil.Process) -> int:
    try:
        return process.num_threads()
    except psutil.NoSuchProcess:
        return 0


def test_programs_run_side_by_side_from_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: output("print(int(input()) ** 2)", str(number)), range(16)))
    assert results == [f"{number**2}\n" for number in range(16)]
