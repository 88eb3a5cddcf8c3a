"""Ports that nobody takes between their choice and their use."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST, LAST = 20_000, 30_000
"""Above those that Ray gives its workers on a cluster, below those that Linux gives whoever asks for any."""

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

TRIES = 100


def free_port() -> int:
    """A port of this machine that is free now, and will be: nobody gets it who does not name it.

    OpenRLHF takes any free port and uses it seconds later, when Ray may have given it to another of its processes.
    """
    # Not the seeded numbers of a run: two runs would look at the same ports.
    for port in random.SystemRandom().sample(range(FIRST, _last()), TRIES):
        with socket.socket() as sock:
            try:
                sock.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"{TRIES} ports between {FIRST} and {_last()} are all taken")


def _last() -> int:
    """A machine may give away ports from 1024 on: then none is safe, and these are as good as any."""
    lowest = int(EPHEMERAL.read_text().split()[0])
    return min(LAST, lowest) if lowest > FIRST + TRIES else LAST


class FixedPort:
    """Mixed into OpenRLHF's processes of models, whose first one chooses the port on which they meet.

    Contract: test_ports.test_processes_of_models_meet_at_the_chosen_port
    """

    @staticmethod
    def _get_free_port() -> int:
        return free_port()
