"""Between sampling and weight updates of asynchronous training."""

from __future__ import annotations

import asyncio


class VersionedLock:
    """A lock with the methods of the host's, which also knows how many updates the engines' weights have had.

    Not a subclass: its actor would spend ten seconds of processor time on importing the host, to wait.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._version = 0

    async def acquire(self) -> None:
        """Wait until it is free, and take it."""
        await self._lock.acquire()

    async def release(self) -> None:
        self._lock.release()

    async def version(self) -> int:
        return self._version

    async def set_version(self, version: int) -> None:
        self._version = version
