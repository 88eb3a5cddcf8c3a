"""Buckets of bytes from the policy, rank 0, to the engines' workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from openrlhf_ada.weights.watch import LIMIT_S, POLL_S, Watch

PUBLISH_S = 10.0
"""Seconds for telling the others that a transfer is given up."""

Take = Callable[[torch.Tensor], object]
"""Is given a bucket that has arrived, and owns it."""


@dataclass(frozen=True)
class Membership:
    """How a process joins. `address`, `port`: where rank 0 waits for the others. `names`: of all members, by rank.

    `limit_s`: seconds without progress after which a transfer is given up.
    """

    backend: str
    address: str
    port: int
    rank: int
    names: tuple[str, ...]
    limit_s: float = LIMIT_S

    @property
    def world_size(self) -> int:
        return len(self.names)


class Group:
    """Buckets go one after the other from rank 0 to all others. `sizes`: of all of them, in bytes.

    Both directions raise TransportError, in every member, if one of them fails or nothing moves for too long.
    """

    _watch: Watch

    def send(self, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        """Rank 0: send them as they are made; returns when all have arrived."""
        with self._watched():
            self._send(sizes, buckets)

    def receive(self, sizes: Sequence[int], take: Take) -> None:
        """The others: `take` gets every bucket when it has arrived, while the next is on its way."""
        with self._watched():
            self._receive(sizes, take)

    def give_up(self, reason: str) -> None:
        """Rank 0: end a transfer that is running, in all members. May be called from another thread."""
        # What a member has told is nearer to the cause than the failed call of an engine that had waited for it.
        self._watch.reason_from_all()
        self._watch.give_up(reason)

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

    @contextmanager
    def _watched(self) -> Generator[None]:
        watch, done = self._watch, threading.Event()
        watch.begin()
        # Two, since the one that asks the others may wait for an answer.
        looks = [
            threading.Thread(target=self._stop_if_given_up, args=(done, reason), daemon=True, name="ada-transfer")
            for reason in (watch.reason_from_all, watch.stalled)
        ]
        for thread in looks:
            thread.start()
        failure: Exception | None = None
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised below
            watch.failed(error)
            failure = error
        finally:
            done.set()
        if watch.reason is not None:
            # Also where nothing was raised: what waited has been woken up, and has got nothing.
            publisher = threading.Thread(target=watch.publish_reason, daemon=True, name="ada-transfer")
            publisher.start()
            # Rank 0 may be out of reach.
            publisher.join(PUBLISH_S)
            self._stop()
            raise watch.error() from failure

    def _stop_if_given_up(self, done: threading.Event, reason: Callable[[], str | None]) -> None:
        while not done.wait(POLL_S):
            if reason() is not None:
                self._stop()
                return
