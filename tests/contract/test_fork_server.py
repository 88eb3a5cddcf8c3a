"""A process forked from the tests' server is, to whoever started it, what `python ARGUMENT...` would have been; and a
Ray that the tests' runs join is there for them alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import shared_start
from fork_server import FORKED_VARIABLE
from processes import command_line, has_ended
from shared_start import (
    HOLDER_VARIABLE,
    LOG,
    OF_SHARED_RAY,
    for_workers,
    fork_server,
    one_ray,
    runs_are_forked,
)

pytestmark = pytest.mark.slow

WAIT_S = 60.0
IS_FORKED = f"import os; print(os.environ.get({FORKED_VARIABLE!r}) == str(os.getpid()))"


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """The launcher of a server that has imported a little."""
    with fork_server({"READ_AT_IMPORT": "1"}, ["json", "decimal"]) as (launcher, _):
        yield launcher


def call(program: str, *arguments: str, check: bool = True, **changes: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": WAIT_S, "check": check}
    options["env"] = os.environ | {"READ_AT_IMPORT": "1"} | changes.pop("env", {})
    return subprocess.run([program, *arguments], **(options | changes))


def outputs(program: str, *arguments: str, **changes: Any) -> str:
    return call(program, *arguments, **changes).stdout


def until(what: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def log_of(launcher: str) -> str:
    return Path(launcher).with_name(LOG).read_text()


SCRIPT = """
import json, os, sys, signal
print(json.dumps({
    "argv": sys.argv, "folder": os.getcwd(), "path": sys.path[0], "name": __name__, "orig": sys.orig_argv[1:],
    "file": globals().get("__file__"), "main": sys.modules["__main__"].__dict__ is globals(),
    "umask": os.umask(0), "executable": sys.executable, "module": __spec__ and __spec__.name,
}))
"""


def test_script_sees_what_plain_python_shows(python: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    old = os.umask(0o027)
    try:
        ours, plain = (
            json.loads(outputs(p, str(script), "a b", "--c", cwd=tmp_path)) for p in (python, sys.executable)
        )
    finally:
        os.umask(old)
    assert ours == plain
    assert ours["umask"] == 0o027
    assert ours["argv"] == [str(script), "a b", "--c"]


def test_module_and_command_see_what_plain_python_shows(python: str, tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text(SCRIPT)
    for words in (["-m", "some_module", "x", "-m"], ["-c", SCRIPT, "x"]):
        ours, plain = (json.loads(outputs(p, *words, cwd=tmp_path)) for p in (python, sys.executable))
        assert ours == plain


def test_environment_is_the_callers(python: str) -> None:
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    changes = {"NEW": "1", "OPENRLHF_ADA_SOMETHING": "2", "EMPTY": "", "UMLAUT": "ä"}
    ours, plain = (json.loads(outputs(p, "-c", show, env=changes)) for p in (python, sys.executable))
    assert ours.pop(FORKED_VARIABLE).isdigit()
    for name in ("_", "PWD", "SHLVL", "OLDPWD"):
        ours.pop(name, None)
        plain.pop(name, None)
    set_by_imports = {name: value for name, value in ours.items() if name not in plain}
    assert set(set_by_imports) <= {"OMP_NUM_THREADS", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS", "LC_CTYPE"}
    assert {name: value for name, value in ours.items() if name in plain} == plain


@pytest.mark.parametrize(
    ("changes", "forked"),
    [
        ({}, True),
        ({"READ_AT_IMPORT": "2"}, False),
        ({"OMP_NUM_THREADS": "7"}, False),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_environment_decides_whether_imports_are_shared(python: str, changes: dict[str, str], forked: bool) -> None:
    assert outputs(python, "-c", IS_FORKED, env=changes) == f"{forked}\n"


def test_variable_read_while_importing_is_compared(tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text("import os\nvalue = os.environ.get('ASKED_FOR')\n")
    path = {"PYTHONPATH": str(tmp_path)}
    with fork_server(path, ["reader"]) as (python, _):
        show = f"import reader; print(reader.value); {IS_FORKED}"
        assert outputs(python, "-c", show, env=path) == "None\nTrue\n"
        assert outputs(python, "-c", show, env=path | {"ASKED_FOR": "now"}) == "now\nFalse\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-u", "-c", IS_FORKED],
        ["-X", "dev", "-c", IS_FORKED],
        ["-c", f"# multiprocessing.resource_tracker\n{IS_FORKED}"],
    ],
    ids=["unbuffered", "option", "resource tracker"],
)
def test_some_start_as_plain_processes(python: str, arguments: list[str]) -> None:
    assert outputs(python, *arguments) == "False\n"


def test_a_server_with_threads_does_not_fork(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    path = {"PYTHONPATH": str(tmp_path)}
    with fork_server(path, ["threaded"]) as (python, _):
        assert outputs(python, "-c", IS_FORKED, env=path) == "False\n"
        assert "plain, 2 threads" in log_of(python)


def test_without_a_server_a_plain_python_starts(python: str, tmp_path: Path) -> None:
    lost = tmp_path / "python"
    lost.write_text(Path(python).read_text().replace("/socket", "/no-socket"))
    lost.chmod(0o700)
    done = call(str(lost), "-c", IS_FORKED)
    assert done.stdout == "False\n"
    assert "starting a plain Python" in done.stderr


def test_passed_descriptors_are_open_and_no_others(python: str) -> None:
    reads, writes = os.pipe()
    listed = (
        "import os; folder = '/proc/self/fd/'; "
        "print(sorted(int(n) for n in os.listdir(folder) if os.path.exists(folder + n)))"
    )
    with os.fdopen(reads, "rb") as reader:
        ours = outputs(python, "-c", f"import os; os.write({writes}, b'hello'); {listed}", pass_fds=[writes])
        os.close(writes)
        assert reader.read() == b"hello"
    plain = outputs(sys.executable, "-c", listed)
    assert json.loads(ours) == sorted([*json.loads(plain), writes])


def test_pipe_closes_when_the_forked_process_closes_it(python: str) -> None:
    program = "import os, sys, time; os.close(1); sys.stdin.read()"
    process = subprocess.Popen(
        [python, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"READ_AT_IMPORT": "1"},
    )
    assert process.stdin and process.stdout
    assert process.stdout.read() == b""
    assert process.poll() is None
    process.stdin.close()
    process.wait(WAIT_S)
    process.stdout.close()


def test_standard_streams_are_the_callers(python: str) -> None:
    program = "import sys; print(sys.stdin.read().upper()); print('to stderr', file=sys.stderr)"
    done = call(python, "-c", program, input="in")
    assert (done.stdout, done.stderr) == ("IN\n", "to stderr\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_process_ends_by_a_signal_as_python_would(python: str, number: signal.Signals) -> None:
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    assert call(python, "-c", program, check=False).returncode == -number


WAIT_LONG = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

WAITS = """
import os, signal, sys, time
{before}
print(os.getpid(), flush=True)
for _ in range(12_000):
    time.sleep(0.05)
"""
"""Ten minutes. A handler in Python runs after the sleep, where the signal came just before it."""


def start(python: str, before: str = "", **options: Any) -> tuple[subprocess.Popen[str], int]:
    """A stand-in, and the pid of the forked process, which waits."""
    process = subprocess.Popen(
        [python, "-c", WAITS.format(before=before)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"READ_AT_IMPORT": "1"}, **options,
    )  # fmt: skip
    assert process.stdout
    return process, int(process.stdout.readline())


@pytest.mark.parametrize(("number", "at_first"), [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_IGN)])
def test_signals_reach_the_forked_process(python: str, number: signal.Signals, at_first: signal.Handlers) -> None:
    """Also below nohup, once the process has a handler."""
    before = f"signal.signal({int(number)}, lambda *_: sys.exit(33))"
    process, pid = start(python, before, preexec_fn=lambda: signal.signal(number, at_first))
    process.send_signal(number)
    assert process.wait(WAIT_S) == 33
    assert has_ended(pid)


def test_killed_stand_in_takes_the_forked_process_with_it(python: str) -> None:
    process, pid = start(python)
    process.kill()
    process.wait(WAIT_S)
    until(lambda: has_ended(pid))


def test_stand_in_that_was_stopped_has_the_status_of_the_forked_process(python: str) -> None:
    """The forked process has ended by the time that the stand-in is told to go on."""
    process, pid = start(python, f"signal.signal({int(signal.SIGUSR1)}, lambda *_: sys.exit(33))")
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    os.kill(pid, signal.SIGUSR1)
    until(lambda: not psutil.pid_exists(pid))
    process.send_signal(signal.SIGCONT)
    assert process.wait(WAIT_S) == 33


def test_forked_process_ends_with_whoever_started_it(python: str) -> None:
    program = textwrap.dedent(f"""
        import os, signal, subprocess, sys
        waiting = subprocess.Popen([{python!r}, "-c", {WAIT_LONG!r}], stdout=subprocess.PIPE, text=True)
        print(waiting.stdout.readline(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = call(sys.executable, "-c", program, check=False)
    until(lambda: has_ended(int(done.stdout)))


def test_randomness_differs_from_process_to_process() -> None:
    program = (
        "import random, tempfile, os, multiprocessing, json, numpy, torch; print(json.dumps([random.random(), "
        "numpy.random.rand(), torch.rand(1).item(), multiprocessing.current_process().authkey.hex()]))"
    )
    with fork_server({}, ["numpy", "torch"]) as (python, _):
        first, second = (json.loads(outputs(python, "-c", program)) for _ in range(2))
        assert outputs(python, "-c", IS_FORKED) == "True\n"
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_multiprocessing_spawns_through_the_fork_server(python: str, tmp_path: Path) -> None:
    script = tmp_path / "spawner.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, os, sys

        def work(queue, number):
            queue.put((number * 2, os.environ.get({FORKED_VARIABLE!r}) == str(os.getpid())))

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work, args=(queue, 21))
            process.start()
            print(queue.get(timeout=30))
            process.join()
            print(process.exitcode)
        """)
    )
    assert outputs(python, str(script)) == "(42, True)\n0\n"


def test_nothing_is_left_when_the_server_ends() -> None:
    with fork_server({"READ_AT_IMPORT": "1"}, ["json"]) as (python, pid):
        process, forked = start(python)
    assert process.wait(WAIT_S) == -signal.SIGKILL
    until(lambda: has_ended(forked) and has_ended(pid))
    assert not Path(python).parent.exists()


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    program = textwrap.dedent(f"""
        import os, signal, subprocess
        from shared_start import fork_server
        with fork_server({{}}, ["json"]) as (python, pid):
            waiting = subprocess.Popen([python, "-c", {WAIT_LONG!r}], stdout=subprocess.PIPE, text=True)
            print(pid, waiting.stdout.readline(), python, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = call(sys.executable, "-c", program, check=False, env={"PYTHONPATH": str(shared_start.FOLDER)})
    owner, forked, python = done.stdout.split()
    until(lambda: has_ended(int(owner)) and has_ended(int(forked)))
    until(lambda: not Path(python).parent.exists())


ENDS = """if True:
    import atexit, ctypes, sys, weakref
    class Thing: pass
    def last(): print("exit handler")
    thing = Thing()
    weakref.finalize(thing, print, "finalizer")
    atexit.register(last)
    thing.__class__.__del__ = lambda self: print("deleted")
    libc = ctypes.CDLL(None)
    libc.printf(b"of C\\n")
    print("not flushed", end=" ")
    {end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit(-1)", 255), ("sys.exit('why')", 1), ("1 / 0", 1)],
)
def test_a_process_ends_as_python_would(python: str, end: str, status: int) -> None:
    """With all that is to be done at the end, and what libraries in C have still to write."""
    buffered = {"env": {"PYTHONUNBUFFERED": ""}, "check": False}
    forked, plain = (call(program, "-c", ENDS.format(end=end), **buffered) for program in (python, sys.executable))
    assert forked.returncode == plain.returncode == status
    for done in (forked, plain):
        # C has a buffer of its own, so its line can stand anywhere among Python's.
        before, of_c, after = done.stdout.partition("of C\n")
        assert of_c and set((before + after).splitlines()) - {"deleted"} == {"not flushed exit handler", "finalizer"}
    assert forked.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


def test_runs_and_what_their_workers_get_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_start, "fork_server", lambda environment: fork_server(environment, ["json"]))
    before = dict(os.environ)
    with runs_are_forked():
        assert outputs(shared_start.python(), "-c", IS_FORKED) == "True\n"
        assert for_workers({"env_vars": {"A": "1"}}) == {
            "env_vars": {"A": "1"},
            "py_executable": shared_start.running(),
        }
    assert dict(os.environ) == before
    assert for_workers(None) == {} and shared_start.python() == sys.executable


# -- a Ray that is shared ---------------------------------------------------------------------------------------------


def test_one_ray_ends_with_its_block() -> None:
    environment, before = dict(os.environ), psutil.Process().children(recursive=True)
    with one_ray():
        started = [process for process in psutil.Process().children(recursive=True) if process not in before]
        lines = [command_line(process) for process in started]
        assert any("raylet" in line and os.environ["RAY_ADDRESS"] in line for line in lines), lines
        assert os.environ.keys() - environment.keys() == set(OF_SHARED_RAY)
        assert not [line for line in lines if os.environ["RAY_AUTH_TOKEN"] in line]
    assert dict(os.environ) == environment
    assert not psutil.wait_procs(started, timeout=30)[1]


def test_ray_is_told_no_variable_that_it_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes them to its logs."""
    monkeypatch.setenv("HF_TOKEN", "marker")
    with subprocess.Popen(["sleep", "60"], env=dict(os.environ)) as holder:
        monkeypatch.setenv(HOLDER_VARIABLE, str(holder.pid))
        monkeypatch.setenv("SET_LATER", "1")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
        # It has a name before the kernel shows its variables.
        until(lambda: "HF_TOKEN" in psutil.Process(holder.pid).environ())
        told = for_workers({"env_vars": {"OURS": "2"}})
        holder.kill()
    assert told == {"env_vars": {"SET_LATER": "1", HOLDER_VARIABLE: str(holder.pid), "OURS": "2"}}
