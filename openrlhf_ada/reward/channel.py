"""Messages between two processes over a socket: bytes, with their length before them. Every wait has a time limit."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("!Q")

LONGEST_REPLY = 1 << 20
"""Bytes. Replies are short; a longer one comes from a broken process."""


class ChannelError(OSError):
    """The other process is gone, or sends something that is no message."""


class Channel:
    """One end. Raises TimeoutError if the other process does not take or send a whole message in time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: bytes, seconds: float | None = None) -> None:
        """Raises ChannelError, TimeoutError."""
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError(f"the other process is gone ({error.strerror})") from error

    def receive(self, seconds: float | None = None, longest: int | None = None) -> bytes:
        """Raises ChannelError, TimeoutError."""
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if longest is not None and length > longest:
            raise ChannelError(f"a message of {length} bytes")
        return self._exactly(length, deadline)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        parts: list[bytes] = []
        while count:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except TimeoutError:
                raise
            except OSError as error:
                raise ChannelError(f"the other process is gone ({error.strerror})") from error
            if not part:
                raise ChannelError("the channel is closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
