"""Weights by torch's gloo, which runs on any machine; and which way they take between processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from openrlhf_ada.weights.transport import POLL_S, SHARED, Group, Membership, Take

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
        super().__init__(membership, group[1])

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
        self.progress()

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


def join(membership: Membership, device: torch.device) -> Group:
    """Blocks until all members have joined. `device`: where this process's weights are."""
    if membership.backend == "nccl":
        from openrlhf_ada.weights.nccl import NcclGroup

        return NcclGroup(membership, device)
    if membership.backend == SHARED:
        from openrlhf_ada.weights.ipc import IpcGroup

        return IpcGroup(membership, device)
    return GlooGroup(membership, device)
