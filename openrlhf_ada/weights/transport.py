"""Broadcast of buckets of bytes from the policy, rank 0, to the engines' workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Membership:
    """How a process joins. `address`, `port`: where rank 0 waits for the others."""

    backend: str
    address: str
    port: int
    rank: int
    world_size: int


class BroadcastGroup(Protocol):
    """Buckets go one after the other from rank 0 to all others, two at most at a time."""

    def publish(self, packed: torch.Tensor) -> None:
        """Rank 0: send it to the others. It must not change until the bucket after the next is published."""
        ...

    def finish(self) -> None:
        """Rank 0: return when all have arrived."""
        ...

    def arrivals(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """The others: yields every bucket when it has arrived, while the next is in transfer. The receiver owns it."""
        ...


def join(membership: Membership, device: torch.device) -> BroadcastGroup:
    """Blocks until all members have joined. `device`: where this process's weights are."""
    if membership.backend == "nccl":
        return NcclGroup(membership, device)
    return GlooGroup(membership, device)


class _Broadcasts:
    """By the broadcasts of a process group; `_start` begins one and gives a function that waits for its end."""

    _device: torch.device

    def __init__(self) -> None:
        self._in_transfer: Callable[[], object] | None = None

    def _start(self, tensor: torch.Tensor) -> Callable[[], object]:
        raise NotImplementedError

    def publish(self, packed: torch.Tensor) -> None:
        self.finish()
        self._in_transfer = self._start(packed)

    def finish(self) -> None:
        if self._in_transfer is not None:
            self._in_transfer()
        self._in_transfer = None

    def arrivals(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        arriving: list[tuple[torch.Tensor, Callable[[], object]]] = []
        for size in sizes:
            buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
            arriving.append((buffer, self._start(buffer)))
            del buffer
            if len(arriving) == 2:
                yield _arrived(arriving)
        while arriving:
            yield _arrived(arriving)


def _arrived(arriving: list[tuple[torch.Tensor, Callable[[], object]]]) -> torch.Tensor:
    buffer, wait = arriving.pop(0)
    wait()
    return buffer


class NcclGroup(_Broadcasts):
    """Between GPUs."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        # OpenRLHF has no types.
        from openrlhf.utils.distributed_util import (  # pyright: ignore[reportMissingTypeStubs]
            stateless_init_process_group,  # pyright: ignore[reportUnknownVariableType]
        )

        super().__init__()
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._communicator: Any = stateless_init_process_group(
            membership.address, membership.port, membership.rank, membership.world_size, device
        )

    def _start(self, tensor: torch.Tensor) -> Callable[[], object]:
        # In parallel to packing and loading other buckets, but after the work on this one.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._communicator.broadcast(tensor, src=0, stream=self._stream)
        tensor.record_stream(self._stream)
        return self._stream.record_event().synchronize


class GlooGroup(_Broadcasts):
    """Between processes of any kind, over the network."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._group = gloo(membership)

    def _start(self, tensor: torch.Tensor) -> Callable[[], object]:
        in_memory = tensor.cpu()
        work = self._group.broadcast(in_memory, 0)

        def arrive() -> None:
            work.wait()
            if in_memory.data_ptr() != tensor.data_ptr():
                tensor.copy_(in_memory)

        return arrive


def gloo(membership: Membership) -> Any:
    """A gloo process group between processes that share no other group."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    return stateless_init_torch_distributed_process_group(
        membership.address, membership.port, membership.rank, membership.world_size, "gloo"
    )
