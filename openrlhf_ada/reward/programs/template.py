"""The template process of the sandbox, as the process that grades sees it: started once, asked for a child per run.

Where bubblewrap is installed and may make namespaces, the template runs in it: programs then see no other process, no
file but the interpreter's, and a folder in memory of limited size. Its children confine themselves in either case.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from openrlhf_ada.reward.programs import child as child_program
from openrlhf_ada.reward.programs.limits import ProgramLimits

_CHILD = Path(child_program.__file__)
_CHILD_FOLDER = _CHILD.parent
START_SECONDS = 60.0
"""A template, or a child of it, that has not started by then never will: there is no score."""
_END_SECONDS = 10.0
_LONGEST_MESSAGE = 1 << 16
_FOLDERS_MIB = 256
"""Memory for the folders of a template's children, in bubblewrap."""

logger = logging.getLogger(__name__)


class SandboxError(RuntimeError):
    """The sandbox could not be set up: nothing was run, and nothing is known of the program."""


@dataclass(slots=True)
class Child:
    """A process that waits for its job, and our ends of its pipes. `events`: says that it has ended."""

    stdin: int
    stdout: int
    status: int
    events: socket.socket
    process: int = -1

    def open(self) -> None:
        """Wait until it has been forked. Raises SandboxError, or ConnectionResetError if the template has ended."""
        self.events.settimeout(START_SECONDS)
        try:
            message, descriptors, _, _ = socket.recv_fds(self.events, _LONGEST_MESSAGE, 1)
        except TimeoutError:
            raise SandboxError("the sandbox cannot be set up, and nothing was run: time limit") from None
        if not descriptors:
            raise ConnectionResetError(f"the template has ended {message!r}")
        (self.process,) = descriptors

    def kill(self) -> None:
        if self.process >= 0:
            try:
                signal.pidfd_send_signal(self.process, signal.SIGKILL)
            except ProcessLookupError:
                return  # it has ended

    def close(self) -> None:
        """Its process must have been told to end."""
        for descriptor in (self.stdin, self.stdout, self.status, self.process):
            if descriptor >= 0:
                os.close(descriptor)
        self.events.close()


class Template:
    """Starts at once. Raises SandboxError where it cannot."""

    def __init__(self, imports: tuple[str, ...], wrapper: list[str] | None) -> None:
        self._is_wrapped = wrapper is not None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "programs": str(_CHILD_FOLDER),
            "imports": imports,
            "folders": _folders_of(imports),
            "is_wrapped": self._is_wrapped,
        }
        python = [sys.executable, "-I", "-S", "-X", "utf8", str(_CHILD), str(theirs.fileno()), json.dumps(settings)]
        if not os.access(sys.executable, os.X_OK):
            raise SandboxError(f"the sandbox cannot start {sys.executable}: it is no program")
        try:
            self._process = subprocess.Popen(
                [*(wrapper or ()), *python],
                # As pipes: programs find the same kind of stdin and stdout that a child has later.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            self._channel.close()
            raise SandboxError(f"the sandbox cannot start {python[0]}: {error}") from error
        finally:
            theirs.close()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self._channel.settimeout(START_SECONDS)
        problem = "time limit"
        try:
            message = self._channel.recv(_LONGEST_MESSAGE)
            problem = json.loads(message)["error"] if message else ""
        except TimeoutError:
            message = b""
            os.killpg(self._process.pid, signal.SIGKILL)
        if message and not problem:
            return
        self._channel.close()
        code = self._process.wait(_END_SECONDS)
        raise SandboxError(
            f"the sandbox cannot be set up, and nothing was run: {problem or f'it ended with exit code {code}'}"
        )

    def fork(self, limits: ProgramLimits) -> Child:
        """A child with its limits. Raises SandboxError, or BrokenPipeError if this template has ended."""
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        status, its_status = os.pipe()
        events, its_events = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = Child(stdin, stdout, status, events)
        message = {
            "limits": asdict(limits),
            "grader": None if self._is_wrapped else os.getpid(),
            "folder": "/tmp" if self._is_wrapped else tempfile.gettempdir(),
        }
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as handed_over:
            failed.callback(child.close)
            failed.callback(child.kill)
            handed_over.enter_context(its_events)
            for descriptor in (its_stdin, its_stdout, its_status):
                handed_over.callback(os.close, descriptor)
            os.set_blocking(stdin, False)
            theirs = [its_stdin, its_stdout, its_status, its_events.fileno()]
            socket.send_fds(self._channel, [json.dumps(message).encode()], theirs)
            handed_over.close()
            child.open()
            failed.pop_all()
        return child

    def close(self) -> None:
        """End it, its children and their folders."""
        self._channel.close()
        self._process.wait(_END_SECONDS)


_templates: dict[tuple[Any, ...], Template] = {}
_lock = threading.Lock()


def fork(imports: tuple[str, ...], limits: ProgramLimits) -> Child:
    """A child of the template that has imported `imports`. Raises SandboxError."""
    for _ in range(2):
        template = template_of(imports)
        try:
            return template.fork(limits)
        except ConnectionError:
            close_templates(template)
    raise SandboxError("the sandbox's process has ended twice, and nothing was run")


def template_of(imports: tuple[str, ...]) -> Template:
    """The template of this process that has imported `imports`; started if there is none. Raises SandboxError."""
    program = bubblewrap()
    key = (os.getpid(), sys.executable, _CHILD, imports, program)
    with _lock:
        if key not in _templates:
            if program is None and child_program.landlock_version() < 1:
                logger.warning(
                    "No wall around files: this kernel has no Landlock, and bubblewrap does not run here. Programs "
                    "can read and write what this user can. Install bubblewrap, or keep nothing here that matters"
                )
            _templates[key] = Template(imports, _wrapper(program, imports) if program else None)
        return _templates[key]


def close_templates(which: Template | None = None) -> None:
    """End the templates of this process, or this one. Later runs start new ones."""
    with _lock:
        own = [key for key, found in _templates.items() if key[0] == os.getpid() and which in (None, found)]
        for key in own:
            _templates.pop(key).close()


@lru_cache
def bubblewrap() -> str | None:
    """The program bubblewrap, where it is installed and can make namespaces. Many containers permit none."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    tried = subprocess.run(
        [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--tmpfs", "/tmp", "/bin/true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_SECONDS,
    )
    if tried.returncode:
        logger.info("%s makes no namespaces here (%s): programs run without it", program, tried.stderr.strip())
        return None
    return program


def _wrapper(program: str, imports: tuple[str, ...]) -> list[str]:
    """The words before a command that bubblewrap runs in namespaces of its own."""
    places = [sys.base_prefix, sys.base_exec_prefix, sys.prefix, str(_CHILD_FOLDER), str(_CHILD)]
    places += ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", *_folders_of(imports)]
    bound = [word for place in dict.fromkeys(places) for word in ("--ro-bind-try", place, place)]
    memory = ["--size", str(_FOLDERS_MIB << 20), "--tmpfs", "/tmp"]
    # Without --die-with-parent, which ends it with the thread that started it. It ends when its socket closes.
    return [program, "--unshare-all", "--proc", "/proc", "--dev", "/dev", *memory, *bound, "--chdir", "/tmp", "--"]


def _folders_of(imports: tuple[str, ...]) -> list[str]:
    """Where these modules are, without the standard library. Raises SandboxError for one that is not there."""
    standard = sysconfig.get_path("stdlib")
    folders: list[str] = []
    for name in imports:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise SandboxError(f"the module {name} is not installed here, and programs are to import it")
        places = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.has_location else [])
        folders += [str(Path(place).parent) for place in places if place]
    return [folder for folder in dict.fromkeys(folders) if folder != standard]
