"""Between sampling and weight updates of asynchronous training."""

from __future__ import annotations

import asyncio


class EngineLock:
    """A lock with the methods of the host's.

    Not a subclass: its actor would spend ten seconds of processor time on importing the host, to wait.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait until it is free, and take it."""
        await self._lock.acquire()

    async def release(self) -> None:
        """Let the next one have it."""
        self._lock.release()
