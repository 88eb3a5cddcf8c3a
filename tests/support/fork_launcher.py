"""Asks the fork server for a process, and stands in for it: same signals, same exit status.

Run as `python -I -S fork_launcher.py SOCKET ARGUMENT...` in the place of `python ARGUMENT...`. Whoever started it
waits for it, signals it and kills it as if it were the process itself. Where the server cannot fork, it becomes a
plain Python.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Collection
from typing import NoReturn

OWN = {signal.SIGPIPE, signal.SIGXFSZ}
"""Signals that Python itself ignores in every process."""

LONGEST_WAIT_S = 30.0
"""For a server that is still importing."""

NOT_PASSED_ON = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
}


def main() -> NoReturn:
    starter = os.getppid()
    starter_ends = os.pidfd_open(starter)
    address, *arguments = sys.argv[1:]
    # A signal that comes before the handlers are there must reach the forked process as well.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    server = _ask(address, arguments, _open_descriptors() - {starter_ends}, blocked)
    if server is None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execv(sys.executable, [sys.executable, *arguments])
    if os.getppid() == starter:
        _pass_signals_on(server)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _stand_in(server, starter_ends)
    os._exit(1)


def _ask(
    address: str, arguments: list[str], descriptors: Collection[int], blocked: Collection[int]
) -> socket.socket | None:
    """A connection by which the server reports the end of the forked process; None if it did not fork."""
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": _umask(),
        "descriptors": sorted(descriptors),
        "ignored": [s for s in signal.valid_signals() - OWN if signal.getsignal(s) == signal.SIG_IGN],
        "blocked": list(blocked),
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.settimeout(LONGEST_WAIT_S)
    try:
        server.connect(address)
        socket.send_fds(server, [json.dumps(request).encode()], sorted(descriptors))
        if server.recv(16) == b"forked":
            server.settimeout(None)
            return server
    except OSError as error:
        sys.stderr.write(f"{address}: {error}; starting a plain Python\n")
    server.close()
    return None


def _open_descriptors() -> set[int]:
    listed = os.listdir("/proc/self/fd")
    return {int(number) for number in listed if os.path.exists(f"/proc/self/fd/{number}")}


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _pass_signals_on(server: socket.socket) -> None:
    def pass_on(received: int, _: object) -> None:
        try:
            server.send(bytes([received]))
        except OSError:
            # The forked process has ended, and how is about to be read.
            return

    for number in signal.valid_signals() - OWN - NOT_PASSED_ON:
        # Also those that are ignored: the forked process may have stopped ignoring them.
        signal.signal(number, pass_on)


def _stand_in(server: socket.socket, starter_ends: int) -> None:
    """End as the forked process ends; returns if the starter ends first."""
    # Whoever reads a pipe must see it close when the forked process closes it.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in _open_descriptors() - {server.fileno(), starter_ends, nowhere}:
        os.dup2(nowhere, number, inheritable=False)
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.register(starter_ends, select.POLLIN)
    if server.fileno() in dict(poll.poll()):
        _end_as(server.recv(16))


def _end_as(status: bytes) -> NoReturn:
    """End with the exit status, or by the signal, that a wait status stands for."""
    code = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
