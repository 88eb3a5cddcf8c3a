"""The fork server: imports what a run's processes need, then forks one for each launcher that asks.

Run as `python fork_server.py LISTENER FOLDER MODULE...`; ends, and all that it forked with it, when its standard
input closes. Imports nothing of this package, since the processes to be forked must import it themselves.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import multiprocessing
import os
import random
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any

NEVER = ("ray", "openrlhf", "openrlhf_ada")
"""Modules that processes must not share: Ray reads its settings and seeds its ids when it is imported."""

FORKED_VARIABLE = "ADA_TESTS_FORKED"
"""In a forked process: its own pid."""

NO_THREAD_OF_ARROW = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
"""Arrow's allocator would start a thread, and a process with threads must not fork."""

REQUEST_S = 10
"""Seconds that a launcher has to send its request."""

MOST_DESCRIPTORS = 253
"""That Linux passes in one message."""

SET_LATER = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"}
"""Variables that libraries set while they are imported, and Ray for its workers, to the same values."""

EXEMPT = {
    *("_", "OLDPWD", "PWD", "SHLVL", "TERM", "PYTEST_CURRENT_TEST", "CUDA_VISIBLE_DEVICES", "PYTHONBREAKPOINT"),
    NO_THREAD_OF_ARROW[0],
}
"""Variables that may differ, though they are read in imports: nothing that stays depends on them."""

READ_BY_LIBRARIES = (
    *("ARROW_", "ATEN_", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_"),
    *("OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_"),
)
"""First letters of variables that C libraries read when they are loaded."""

FIRST_FREE = 512
"""Descriptors that are passed to a process have lower numbers; those from here on serve to move them."""

PR_SET_PDEATHSIG = 1


class Imported:
    """What was imported, and under which environment: another one may have made other modules of them."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.before: dict[str, str] = SET_LATER | dict(os.environ)
        for name, value in (*SET_LATER.items(), NO_THREAD_OF_ARROW):
            os.environ.setdefault(name, value)
        read: set[Any] = set()
        environment_type: Any = type(os.environ)
        get = environment_type.__getitem__

        def noting_get(environment: Any, name: Any) -> Any:
            read.add(name)
            return get(environment, name)

        gc.disable()
        environment_type.__getitem__ = noting_get
        try:
            for module in modules:
                importlib.import_module(module)
        finally:
            environment_type.__getitem__ = get
        # The collector would write to every object, and so copy every page, in each forked process.
        gc.freeze()
        gc.enable()
        self.after = dict(os.environ)
        self.libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        self.names = {name for name in read if isinstance(name, str)} | self.before.keys()

    def differing(self, environment: Mapping[str, str]) -> list[str]:
        """Variables by which imports in this environment could have come out differently."""
        asked = SET_LATER | dict(environment)
        # vLLM preloads torch's own OpenMP.
        if all(library in self.libraries for library in asked.get("LD_PRELOAD", "").split(":")):
            asked.pop("LD_PRELOAD", None)
        names = self.names | {name for name in asked if name.startswith(READ_BY_LIBRARIES)}
        return sorted(
            name
            for name in names
            if not _is_exempt(name) and asked.get(name) not in (self.before.get(name), self.after.get(name))
        )

    def set_by_imports(self) -> dict[str, str]:
        """Variables that the imports set: a process that imports for itself has them as well."""
        return {n: v for n, v in self.after.items() if self.before.get(n) != v and not _is_exempt(n)}


def _is_exempt(name: str) -> bool:
    return name in EXEMPT or name.startswith(("OPENRLHF_ADA_", "ADA_TESTS_", "RAY_"))


def _log(text: str) -> None:
    sys.stdout.write(f"{time.time():.1f} {text}\n")
    sys.stdout.flush()


def number_of_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def without_options(arguments: list[str]) -> list[str]:
    """Arguments without the options that multiprocessing repeats from this interpreter."""
    command = spawn.get_command_line(pipe_handle=0)
    own = command[1 : command.index("-c")]
    return arguments[len(own) :] if arguments[: len(own)] == own else arguments


def can_be_forked(arguments: Sequence[str]) -> bool:
    """Is this a script, a module or a command, without options of the interpreter?"""
    if arguments[:1] in (["-c"], ["-m"]):
        # It outlives the processes that it serves.
        return len(arguments) > 1 and "multiprocessing.resource_tracker" not in arguments[1]
    return bool(arguments) and not arguments[0].startswith("-")


class Server:
    """Forks for whoever asks, passes signals on, and reports how each process ended."""

    def __init__(self, listener: socket.socket, imported: Imported) -> None:
        self._listener, self._imported = listener, imported
        self._pids: dict[int, tuple[socket.socket, int]] = {}
        """pidfd -> (connection to its stand-in, pid)."""

    def serve(self) -> dict[str, Any] | None:
        """None when the owner has ended; in a forked process, what it was asked to run."""
        while True:
            stand_ins = {stand_in.fileno(): process for process, (stand_in, _) in self._pids.items()}
            poll = select.poll()
            for descriptor in (0, self._listener.fileno(), *stand_ins, *self._pids):
                if descriptor >= 0:
                    poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor == 0:
                    return None
                if descriptor == self._listener.fileno():
                    request = self._accept()
                    if request is not None:
                        return request
                elif descriptor in stand_ins:
                    self._pass_on(stand_ins[descriptor])
                else:
                    self._report_end(descriptor)

    def _accept(self) -> dict[str, Any] | None:
        """Fork for a launcher, or refuse. None here; in the forked process, the request."""
        stand_in, _ = self._listener.accept()
        stand_in.settimeout(REQUEST_S)
        descriptors: list[int] = []
        try:
            message, descriptors, _, _ = socket.recv_fds(stand_in, 1 << 20, MOST_DESCRIPTORS)
            request = json.loads(message)
            request["arguments"] = without_options(request["arguments"])
        except (OSError, ValueError) as error:
            _log(f"no request: {error!r}")
            for opened in (*descriptors, stand_in.detach()):
                os.close(opened)
            return None
        refusal, pid = self._refusal(request, descriptors), -1
        if _is_gone(stand_in):
            # It has waited for the imports for too long, and is a plain Python by now.
            refusal = "plain, given up"
        if not refusal:
            try:
                pid = os.fork()
            except OSError as error:
                refusal = f"plain, {error}"
        if pid == 0:
            self._forget_all(stand_in)
            return request | {"received": descriptors}
        _log(f"{refusal or f'forked {pid}'}: {' '.join(request['arguments'])[:200]!r}")
        for descriptor in descriptors:
            os.close(descriptor)
        _send(stand_in, b"plain" if refusal else b"forked")
        if refusal:
            stand_in.close()
        else:
            self._pids[os.pidfd_open(pid)] = (stand_in, pid)
        return None

    def _refusal(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> str:
        """Why the launcher must start a plain Python; empty if it need not."""
        if number_of_threads() != 1:
            return f"plain, {number_of_threads()} threads"
        if not can_be_forked(request["arguments"]):
            return "plain, options"
        if len(descriptors) != len(request["descriptors"]) or max(request["descriptors"], default=0) >= FIRST_FREE:
            return f"plain, descriptors {request['descriptors']}"
        differing = self._imported.differing(request["environment"])
        return f"plain, other {' '.join(differing)}" if differing else ""

    def _pass_on(self, process: int) -> None:
        """A stand-in's signal; SIGKILL where the stand-in has ended."""
        stand_in, _ = self._pids[process]
        try:
            received = stand_in.recv(1)
        except OSError:
            received = b""
        signal.pidfd_send_signal(process, received[0] if received else signal.SIGKILL)
        if not received:
            stand_in.close()

    def _report_end(self, process: int) -> None:
        stand_in, pid = self._pids.pop(process)
        _, status = os.waitpid(pid, 0)
        os.close(process)
        if stand_in.fileno() >= 0:
            _send(stand_in, str(status).encode())
            stand_in.close()

    def _forget_all(self, stand_in: socket.socket) -> None:
        self._listener.close()
        stand_in.close()
        for process, (other, _) in self._pids.items():
            os.close(process)
            other.close()


def _is_gone(stand_in: socket.socket) -> bool:
    """A launcher sends nothing more until it has an answer, so there is something to read only if it has closed."""
    return bool(select.select([stand_in], [], [], 0)[0])


def _send(stand_in: socket.socket, message: bytes) -> None:
    try:
        stand_in.send(message)
    except OSError as error:
        _log(f"a stand-in is gone: {error!r}")


def become(request: Mapping[str, Any], server: int, set_by_imports: Mapping[str, str]) -> None:
    """Make this forked process what the launcher would have started."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    os.setsid()
    _take_descriptors(request["descriptors"], request["received"])
    _take_environment({**request["environment"], **set_by_imports, FORKED_VARIABLE: str(os.getpid())})
    os.chdir(request["folder"])
    os.umask(request["umask"])
    _take_signals(request["ignored"], request["blocked"])
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())
    renew_randomness()


def _take_descriptors(numbers: Sequence[int], received: Sequence[int]) -> None:
    """Give the received descriptors the numbers that they have in the launcher, and close the server's own."""
    waiting: list[int] = []
    for descriptor in received:
        waiting.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE))
        os.close(descriptor)
    for standard in range(3):
        os.close(standard)
    for number, descriptor in zip(numbers, waiting, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _take_environment(environment: Mapping[str, str]) -> None:
    """What stays the same is left in place: setproctitle finds the process's name by it."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _take_signals(ignored: Sequence[int], blocked: Sequence[int]) -> None:
    own = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - own - {signal.SIGKILL, signal.SIGSTOP}:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else default)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def renew_randomness() -> None:
    """Generators, keys and names that a process chooses by chance when it starts."""
    random.seed()
    multiprocessing.current_process().authkey = os.urandom(32)
    tempfile.tempdir = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


class QuickEnd:
    """Ends a forked process after its last exit handler, as Python would, but does not take its modules apart.

    They are what the server has imported: freeing them one by one takes half a second, and copies every page.
    """

    def __init__(self) -> None:
        """Before anything else registers a handler: the first one runs last."""
        self._status: int | None = None
        atexit.register(self._leave)

    def run(self, arguments: Sequence[str]) -> None:
        """As `run`. How it ended is only known here."""
        try:
            run(arguments)
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                self._status = error.code or 0
            raise
        self._status = 0

    def _leave(self) -> None:
        # Otherwise Python says what happened, or ends by a signal.
        if self._status is None:
            return
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except (OSError, ValueError):
            # Python has a status of its own for that.
            return
        ctypes.CDLL(None).fflush(None)
        os._exit(self._status & 0xFF)


def run(arguments: Sequence[str]) -> None:
    """What `python ARGUMENT...` would run."""
    sys.orig_argv = [sys.executable, *arguments]
    option, *rest = arguments
    if option == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main_module = ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    if option == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.path.insert(0, str(Path(option).resolve().parent))
        sys.argv = list(arguments)
        main_module.__file__ = option
        code = compile(Path(option).read_bytes(), option, "exec")
    exec(code, main_module.__dict__)


def main() -> None:
    end = QuickEnd()
    listener = socket.socket(fileno=int(sys.argv[1]))
    folder, pid = sys.argv[2], os.getpid()
    # This script's own folder.
    sys.path.pop(0)
    started = time.time()
    imported = Imported(sys.argv[3:])
    present = [name for name in NEVER if name in sys.modules]
    if present:
        sys.exit(f"{present} must not be imported before processes are forked")
    _log(f"ready after {time.time() - started:.1f} s, {time.process_time():.1f} s of processor time")
    server = Server(listener, imported)
    request = server.serve()
    if request is None:
        shutil.rmtree(folder)
        # Ends what was forked as well.
        os._exit(0)
    become(request, pid, imported.set_by_imports())
    # What it spawns, vLLM's engine core above all, is forked as well.
    multiprocessing.set_executable(os.path.join(folder, "python"))
    del server, imported, listener
    end.run(request["arguments"])


if __name__ == "__main__":
    main()
