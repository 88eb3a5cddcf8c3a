"""How processes ended that are not our children, and whether the kernel ended any for want of memory."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import struct
import time
from collections.abc import Collection
from pathlib import Path

PIDFD_GET_INFO = 0xC040FF0B
"""ioctl of Linux 6.13 and later, with 64 bytes of `struct pidfd_info`."""

PIDFD_INFO_EXIT = 1 << 3
"""Linux 6.15 and later: the wait status, of a process that has ended."""

CANNOT_HOLD = (errno.ESRCH, errno.ENOSYS, errno.EPERM)
"""The process has ended; Linux is older; the container's filter of system calls is."""

POLL_S = 0.1

SAID_OF_SIGNALS = re.compile(r"\*\*\* (SIG[A-Z]+) received|Fatal Python error: ([A-Z][a-z ]+)")
"""What Ray's handler and Python's write into the log of a process that a fault ends."""


class Exits:
    """Keeps hold of processes while they run, so that their ends can be asked for afterwards. Nothing is held on a
    Linux before 5.3, nor in a container that forbids it."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def follow(self, pids: Collection[int]) -> None:
        """From now on. Those that have ended already are left out."""
        for pid in pids:
            if pid not in self._held:
                try:
                    self._held[pid] = os.pidfd_open(pid)
                except OSError as error:
                    if error.errno not in CANNOT_HOLD:
                        raise

    def status(self, pid: int, patience_s: float = 0.0) -> int | None:
        """As `subprocess` has it: minus the signal, or the exit status. None where it runs, or Linux does not say.

        `patience_s`: how long its parent may take to fetch the status, before which Linux does not tell it to others.
        """
        end = time.monotonic() + patience_s
        while pid in self._held:
            info = bytearray(64)
            struct.pack_into("<Q", info, 0, PIDFD_INFO_EXIT)
            try:
                fcntl.ioctl(self._held[pid], PIDFD_GET_INFO, info)
            except OSError as error:
                if error.errno in (errno.ENOTTY, errno.EINVAL, errno.ESRCH):
                    # An older Linux, or nothing of it is left.
                    return None
                raise
            if struct.unpack_from("<Q", info)[0] & PIDFD_INFO_EXIT:
                return os.waitstatus_to_exitcode(struct.unpack_from("<i", info, 60)[0])
            if time.monotonic() >= end:
                return None
            time.sleep(POLL_S)
        return None

    def close(self) -> None:
        while self._held:
            os.close(self._held.popitem()[1])


def how_it_ended(status: int | None, log_lines: Collection[str]) -> str:
    """In words, by its status or else by what it has left in its log; Linux before 6.15 tells no status."""
    if status is not None:
        return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    for line in log_lines:
        if found := SAID_OF_SIGNALS.search(line):
            return f"ended by {found[1] or found[2]}"
    return "ended; its signal is not known. After SIGKILL a log ends without an error"


def kernel_kills(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> dict[str, int]:
    """How many processes the kernel has ended for want of memory, by where: this process's memory group with those
    below it (of cgroups v2), and this machine, which may have other users. What Linux does not say is left out."""
    membership = (proc / "self" / "cgroup").read_text(encoding="utf-8")
    own = membership.rpartition("0::/")[2].strip()
    # In a container the group may be mounted at the root.
    of_group = (folder / "memory.events" for folder in (cgroups / own, cgroups))
    group = next((path for path in of_group if path.is_file()), None)
    counted = {"this memory group": group, "this machine": proc / "vmstat"}
    found = {where: _oom_kills(path) for where, path in counted.items() if path is not None}
    return {where: count for where, count in found.items() if count is not None}


def _oom_kills(path: Path) -> int | None:
    entries = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return next((int(entry[1]) for entry in entries if entry[0] == "oom_kill"), None)
