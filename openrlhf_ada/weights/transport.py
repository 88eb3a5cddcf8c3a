"""Buckets of bytes from the policy to the engines' workers.

Does a transfer go on? Every member of a group asks; one that gives it up tells all others why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

LIMIT_S = 300.0
"""Seconds without any progress after which a transfer is given up. One bucket takes far less on any network."""

POLL_S = 0.5
"""Seconds between looks at whether another member has given up."""

PUBLISH_S = 10.0
"""Seconds for telling the others that a transfer is given up."""

SHARED = "ipc"
"""The backend of policy and engines on the same GPUs."""

_REASON = "given up"

Take = Callable[[torch.Tensor], object]
"""Is given a bucket that has arrived, and owns it."""


class TransportError(RuntimeError):
    """A transfer that was given up. The message names the member that failed, or those that did not answer.

    `is_own`: this member has failed, perhaps because of another that could not say so.
    """

    is_own = False


@dataclass(frozen=True)
class Membership:
    """How a process joins. `address`, `port`: where rank 0 waits for the others. `names`: of all members, by rank.

    `limit_s`: seconds without progress after which a transfer is given up. `senders`: processes of the policy, rank 0
    and the last ones.
    """

    backend: str
    address: str
    port: int
    rank: int
    names: Sequence[str]
    limit_s: float = LIMIT_S
    senders: int = 1

    @property
    def world_size(self) -> int:
        return len(self.names)


class Group:
    """Buckets go one after the other from the policy, rank 0, to all workers. `sizes`: of all of them, in bytes.

    Both directions raise TransportError, in every member, if one of them fails or nothing moves for too long.
    `store`: the key-value store over which the group was formed, on rank 0.
    """

    def __init__(self, membership: Membership, store: Any) -> None:
        self._store = store
        self._names, self._rank, self._limit_s = membership.names, membership.rank, membership.limit_s
        self._reason: str | None = None
        self._giving_up = threading.Lock()
        self._is_own = False
        self._begin()

    def send(self, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        """The policy: send them as they are made; returns when all have arrived."""
        with self._watched():
            self._send(sizes, buckets)

    def receive(self, sizes: Sequence[int], take: Take) -> None:
        """The workers: `take` gets every bucket when it has arrived, while the next is on its way."""
        with self._watched():
            self._receive(sizes, take)

    def give_up(self, reason: str) -> None:
        """Rank 0: end a transfer that is running, in all members. May be called from another thread."""
        # What a member has told is nearer to the cause than the failed call of an engine that had waited for it.
        self._reason_from_all()
        self._give_up(reason)

    def close(self) -> None:
        """Leave the group. Whoever waits for this member waits in vain."""
        raise NotImplementedError

    def _send(self, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        raise NotImplementedError

    def _receive(self, sizes: Sequence[int], take: Take) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        """Wake up a transfer of this member that waits. Called from another thread."""
        raise NotImplementedError

    # -- does it go on? -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._num_buckets = 0
        self._last = time.monotonic()

    def progress(self) -> None:
        """A bucket has moved."""
        self._num_buckets += 1
        self._last = time.monotonic()

    @contextmanager
    def _watched(self) -> Generator[None]:
        done = threading.Event()
        self._begin()
        # Two, since the one that asks the others may wait for an answer.
        for reason in (self._reason_from_all, self._stalled):
            threading.Thread(
                target=self._stop_if_given_up, args=(done, reason), daemon=True, name="ada-transfer"
            ).start()
        failure: Exception | None = None
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
            self._is_own = self._give_up(f"{self._names[self._rank]} failed: {type(error).__name__}: {error}")
        finally:
            done.set()
        if self._reason is not None:
            # Also where nothing was raised: what waited has been woken up, and has got nothing.
            publisher = threading.Thread(target=self._publish_reason, daemon=True, name="ada-transfer")
            publisher.start()
            # Rank 0 may be out of reach.
            publisher.join(PUBLISH_S)
            self._stop()
            given_up = TransportError(self._reason)
            given_up.is_own = self._is_own
            raise given_up from failure

    def _stop_if_given_up(self, done: threading.Event, reason: Callable[[], str | None]) -> None:
        while not done.wait(POLL_S):
            if reason() is not None:
                self._stop()
                return

    def _reason_from_all(self) -> str | None:
        """Why the transfer was given up; first asks what the others say. Blocks while rank 0 is out of reach."""
        if self._reason is None and (told := self._published_reason()) is not None:
            self._give_up(told)
        return self._reason

    def _stalled(self) -> str | None:
        """As `_reason_from_all` without the others; the limit is a reason."""
        if self._reason is None and time.monotonic() - self._last > self._limit_s:
            self._give_up(
                f"no weights have moved for {self._limit_s:g} s; {self._names[self._rank]} has waited since bucket "
                f"{self._num_buckets}"
            )
        return self._reason

    def _give_up(self, reason: str) -> bool:
        """The first reason stays; returns whether this is it. `_publish_reason` tells the others."""
        with self._giving_up:
            if self._reason is not None:
                return False
            self._reason = reason
            return True

    def _publish_reason(self) -> None:
        """Tell all others, and on rank 0 find out who does not answer."""
        # The store ends with rank 0; who has given up already need not fail once more.
        with suppress(RuntimeError):
            if self._published_reason() is None:
                self._store.set(_REASON, self._reason)
        if self._rank:
            with suppress(RuntimeError):
                self._store.set(f"alive/{self._rank}", "")
            return
        deadline = time.monotonic() + 4 * POLL_S
        while (silent := self.silent()) and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        if silent:
            self._reason = f"{self._reason}; no answer from {', '.join(silent)}"

    def silent(self) -> list[str]:
        """Rank 0, when a transfer is given up: the members that have not said that they know."""
        return [name for rank, name in enumerate(self._names) if rank and not self._store.check([f"alive/{rank}"])]

    def _published_reason(self) -> str | None:
        try:
            return self._store.get(_REASON).decode() if self._store.check([_REASON]) else None
        except RuntimeError:
            return f"{self._names[0]} is gone"
