"""Buckets of bytes from the policy, rank 0, to the engines' workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

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


def join(membership: Membership, device: torch.device) -> Group:
    """Blocks until all members have joined. `device`: where this process's weights are."""
    if membership.backend == "nccl":
        from openrlhf_ada.weights.nccl import NcclGroup

        return NcclGroup(membership, device)
    return GlooGroup(membership, device)


Transfer = tuple[torch.Tensor, torch.Tensor, Any]
"""A bucket on its way: where it is needed, where gloo reads or writes it, gloo's handle."""


class GlooGroup(Group):
    """Between processes of any kind, over the network; two buckets at a time."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self._device = device
        self._stopped = threading.Event()
        place = (membership.address, membership.port, membership.rank, membership.world_size)
        group: Any = stateless_init_torch_distributed_process_group(*place, "gloo", return_store=True)
        self._group: Any = group[0]
        self._watch = Watch(group[1], membership.names, membership.rank, membership.limit_s)

    def _start(self, bucket: torch.Tensor) -> Transfer:
        in_memory = bucket.cpu()
        return bucket, in_memory, self._group.broadcast(in_memory, 0)

    def _wait(self, transfer: Transfer) -> None:
        """Gloo cannot be interrupted, so it is asked again and again."""
        work = transfer[2]
        while True:
            try:
                work.wait(timedelta(seconds=POLL_S))
                break
            except RuntimeError:
                if self._stopped.is_set():
                    raise
                if work.is_completed():
                    # It may have ended just after the wait was over: this raises its own error, if it has one.
                    work.wait()
                    break
        self._watch.progress()

    def _send(self, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        before: Transfer | None = None
        for bucket in buckets:
            if before is not None:
                self._wait(before)
            before = self._start(bucket)
        if before is not None:
            self._wait(before)

    def _receive(self, sizes: Sequence[int], take: Take) -> None:
        arriving: list[Transfer] = []
        for size in sizes:
            arriving.append(self._start(torch.empty(size, dtype=torch.uint8, device=self._device)))
            if len(arriving) == 2:
                take(self._arrived(arriving))
        while arriving:
            take(self._arrived(arriving))

    def _arrived(self, arriving: list[Transfer]) -> torch.Tensor:
        transfer = arriving.pop(0)
        self._wait(transfer)
        bucket, in_memory, _ = transfer
        return bucket if in_memory is bucket else bucket.copy_(in_memory)

    def _stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self._group = None
