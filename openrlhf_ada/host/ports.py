"""Ports that nobody takes between their choice and their use."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 30_000
"""Above those that Ray gives its workers on a cluster, below those that Linux gives whoever asks for any."""

TRIES = 100

_held: list[socket.socket] = []
"""Bound until this process ends: whoever asks for any port, or tries this one, gets another."""


def free_port() -> int:
    """A port of this machine that nobody gets before this process listens on it, seconds later: OpenRLHF lets go of
    the port that it finds. Who listens must ask for SO_REUSEADDR, as PyTorch and vLLM do. Raises OSError."""
    # Not the seeded numbers of a run: two runs would look at the same ports.
    for port in random.SystemRandom().sample(range(FIRST, LAST), TRIES):
        if _holds(port):
            return port
    raise OSError(f"{TRIES} ports between {FIRST} and {LAST} are all taken")


def _holds(port: int) -> bool:
    """Hold it from now on; False if it is taken."""
    with socket.socket() as probe:
        try:
            # Without SO_REUSEADDR, which would let us share a port that another process holds.
            probe.bind(("", port))
        except OSError:
            return False
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", port))
    _held.append(sock)
    return True
