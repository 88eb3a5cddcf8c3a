"""The template's loop: forks a child for each run, watches its folder, reports its end and deletes the folder.

Messages come over a socket that keeps their borders: what to run within (JSON) with four descriptors, the child's
stdin, stdout, pipe of its status, and a socket for events. Over that socket the template sends the child's pid with a
descriptor of the process, and in the end {"exit": its code, "stopped": "" or why it was ended}."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

STATUS = 3
"""The descriptor of a child's pipe for its status."""

_WATCH_MS = 20
_OPEN_FILES = 1 << 20


@dataclass(slots=True)
class _Child:
    pid: int
    ending: int
    events: socket.socket
    folder: str
    most_bytes: int
    most_files: int
    stopped: str = ""

    def watch(self) -> None:
        """End it if its folder holds too much. Files cannot hide there: unlinking an open one is refused."""
        files, size = 0, 0
        for entry in os.scandir(self.folder):
            files += 1
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
            if files > self.most_files or size > self.most_bytes:
                self.stopped = "file limit"
                signal.pidfd_send_signal(self.ending, signal.SIGKILL)
                return

    def bury(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.ending)
        # Programs make no folders, so that there is one level.
        for entry in list(os.scandir(self.folder)):
            os.unlink(entry.path)
        os.rmdir(self.folder)
        ended = {"exit": os.waitstatus_to_exitcode(status), "stopped": self.stopped}
        try:
            self.events.send(json.dumps(ended).encode())
        except OSError:
            pass  # nobody waits for it any more
        finally:
            self.events.close()


def serve(channel: socket.socket) -> dict[str, Any]:
    """Answer requests until the other end closes. Returns in every child, with its request."""
    children: dict[int, _Child] = {}
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(_WATCH_MS if children else None)]
        for child in children.values():
            if not child.stopped:
                child.watch()
        for descriptor in ready:
            if descriptor in children:
                poll.unregister(descriptor)
                children.pop(descriptor).bury()
        if channel.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 4)
            if not message:
                _end(children)
            spawn = json.loads(message)
            child = _fork(spawn, descriptors)
            if child is None:
                for inherited in (channel, *(other.events for other in children.values())):
                    inherited.detach()  # closed: else its number is closed once more when it is collected
                return spawn
            children[child.ending] = child
            poll.register(child.ending, select.POLLIN)


def _fork(spawn: dict[str, Any], descriptors: list[int]) -> _Child | None:
    """None in the child."""
    folder = os.path.join(spawn["folder"], f"answer-{os.urandom(8).hex()}")
    os.mkdir(folder, 0o700)
    spawn["template"] = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_child(descriptors, folder)
        return None
    for descriptor in descriptors[:3]:
        os.close(descriptor)
    events = socket.socket(fileno=descriptors[3])
    ending = os.pidfd_open(pid)
    limits = spawn["limits"]
    child = _Child(pid, ending, events, folder, limits["folder_mib"] << 20, limits["files"])
    try:
        socket.send_fds(events, [json.dumps({"pid": pid}).encode()], [ending])
    except OSError:
        os.kill(pid, signal.SIGKILL)
    return child


def _become_child(descriptors: list[int], folder: str) -> None:
    """In a new session, with four descriptors and no other."""
    os.setsid()
    stdin, stdout, status, _ = descriptors
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.dup2(status, STATUS)
    os.closerange(STATUS + 1, _OPEN_FILES)
    os.chdir(folder)
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # its global generator would draw the same numbers in every child
        numpy.random.seed()


def _end(children: dict[int, _Child]) -> None:
    """The process that grades has ended: nothing stays."""
    for child in children.values():
        signal.pidfd_send_signal(child.ending, signal.SIGKILL)
    for child in children.values():
        child.bury()
    os._exit(0)
