"""Does a transfer go on? Every member of a group asks; one that gives it up tells all others why."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

LIMIT_S = 300.0
"""Seconds without any progress after which a transfer is given up. One bucket takes far less on any network."""

POLL_S = 0.5
"""Seconds between looks at whether another member has given up."""

_REASON = "given up"


class TransportError(RuntimeError):
    """A transfer that was given up. The message names the member that failed, or those that did not answer.

    `is_own`: this member has failed, perhaps because of another that could not say so.
    """

    is_own = False


class Watch:
    """One member's view of a transfer. `store`: the key-value store over which the group was formed, on rank 0.

    `names`: of all members, by rank, for messages. `limit_s`: seconds without progress that are allowed.
    """

    def __init__(self, store: Any, names: Sequence[str], rank: int, limit_s: float) -> None:
        self._store = store
        self._names = names
        self._rank = rank
        self._limit_s = limit_s
        self._reason: str | None = None
        self._giving_up = threading.Lock()
        self._is_own = False
        self.begin()

    def begin(self) -> None:
        """A transfer begins."""
        self._num_buckets = 0
        self._last = time.monotonic()

    def progress(self) -> None:
        """A bucket has moved."""
        self._num_buckets += 1
        self._last = time.monotonic()

    def error(self) -> TransportError:
        """For a transfer that was given up."""
        error = TransportError(self._reason)
        error.is_own = self._is_own
        return error

    @property
    def reason(self) -> str | None:
        """Why the transfer was given up, as far as this member knows."""
        return self._reason

    def reason_from_all(self) -> str | None:
        """As `reason`; first asks what the others say. Blocks while rank 0 is out of reach."""
        if self._reason is None:
            told = self._published_reason()
            if told is not None:
                self.give_up(told)
        return self._reason

    def stalled(self) -> str | None:
        """As `reason`; the limit is one."""
        if self._reason is None and time.monotonic() - self._last > self._limit_s:
            self.give_up(
                f"no weights have moved for {self._limit_s:g} s; {self._names[self._rank]} has waited since bucket "
                f"{self._num_buckets}"
            )
        return self._reason

    def failed(self, error: BaseException) -> None:
        """This member cannot go on."""
        self._is_own = self.give_up(f"{self._names[self._rank]} failed: {type(error).__name__}: {error}")

    def give_up(self, reason: str) -> bool:
        """The first reason stays; returns whether this is it. `publish_reason` tells the others."""
        with self._giving_up:
            if self._reason is not None:
                return False
            self._reason = reason
            return True

    def publish_reason(self) -> None:
        """Tell all others, and on rank 0 find out who does not answer."""
        if self._published_reason() is None:
            self._try(lambda: self._store.set(_REASON, self._reason))
        if self._rank:
            self._try(lambda: self._store.set(f"alive/{self._rank}", ""))
            return
        deadline = time.monotonic() + 4 * POLL_S
        while (silent := self._silent()) and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        if silent:
            self._reason = f"{self._reason}; no answer from {', '.join(silent)}"

    def _silent(self) -> list[str]:
        ranks = range(1, len(self._names))
        return [self._names[rank] for rank in ranks if not self._store.check([f"alive/{rank}"])]

    def _published_reason(self) -> str | None:
        try:
            return self._store.get(_REASON).decode() if self._store.check([_REASON]) else None
        except RuntimeError:
            return f"{self._names[0]} is gone"

    @staticmethod
    def _try(call: Any) -> Any:
        """The store ends with rank 0; who has given up already need not fail once more."""
        try:
            return call()
        except RuntimeError:
            return None
