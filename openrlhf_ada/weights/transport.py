"""Broadcast of buckets of bytes from the policy, rank 0, to the engines' workers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class Membership:
    """How a process joins. `address`, `port`: where rank 0 waits for the others.

    `shared`: a file in memory that all members can map, for two slots of `slot_bytes`; empty where there is none.
    """

    backend: str
    address: str
    port: int
    rank: int
    world_size: int
    shared: str = ""
    slot_bytes: int = 0


class BroadcastGroup(Protocol):
    """Buckets go one after the other from rank 0 to all others, two at most at a time."""

    def slot(self, num_bytes: int) -> torch.Tensor:
        """Rank 0: where to pack the next bucket, shape (num_bytes,)."""
        ...

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
    return SharedMemoryGroup(membership, device) if membership.shared else GlooGroup(membership, device)


class _Broadcasts:
    """By the broadcasts of a process group; `_start` begins one and gives a function that waits for its end."""

    _device: torch.device

    def __init__(self) -> None:
        self._in_transfer: Callable[[], object] | None = None
        self._buffers = Buffers()

    def _start(self, tensor: torch.Tensor) -> Callable[[], object]:
        raise NotImplementedError

    def slot(self, num_bytes: int) -> torch.Tensor:
        if self._device.type == "cpu":
            return self._buffers.get(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

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
            buffer = self.slot(size)
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


class SharedMemoryGroup:
    """Between processes of one machine: all map the same two slots, and wait for each other at every bucket."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        self._device = device
        self._group = gloo(membership)
        size = membership.slot_bytes
        mapped = torch.from_file(membership.shared, shared=True, size=2 * size, dtype=torch.uint8)
        self._slots = (mapped[:size], mapped[size:])
        self._count = 0
        self._buffers = Buffers()

    def slot(self, num_bytes: int) -> torch.Tensor:
        return self._slots[self._count % 2][:num_bytes]

    def publish(self, packed: torch.Tensor) -> None:
        """The others reach this barrier when they have copied the previous bucket, so its slot is free again."""
        self._group.barrier().wait()
        self._count += 1

    def finish(self) -> None:
        self._group.barrier().wait()

    def arrivals(self, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        for size in sizes:
            self._group.barrier().wait()
            yield self._copy(self.slot(size))
            self._count += 1
        self._group.barrier().wait()

    def _copy(self, slot: torch.Tensor) -> torch.Tensor:
        if self._device.type != "cpu":
            return slot.to(self._device)
        return self._buffers.get(len(slot)).copy_(slot)


class Buffers:
    """Memory for two buckets, reused when no tensor uses it: allocating memory takes longer than filling it."""

    def __init__(self) -> None:
        self._memory = [np.empty(0, np.uint8) for _ in range(2)]
        self._users: list[Callable[[], object]] = [lambda: None for _ in range(2)]

    def get(self, num_bytes: int) -> torch.Tensor:
        """Shape (num_bytes,), uninitialized; its holder's for as long as there is a view of it."""
        free = [place for place, user in enumerate(self._users) if user() is None]
        if not free:
            return torch.empty(num_bytes, dtype=torch.uint8)
        place = next((place for place in free if len(self._memory[place]) >= num_bytes), free[0])
        if len(self._memory[place]) < num_bytes:
            self._memory[place] = np.empty(num_bytes, np.uint8)
        # Whatever tensors are made of it, their storage refers to this array.
        view = self._memory[place][:num_bytes]
        self._users[place] = weakref.ref(view)
        return torch.from_numpy(view)  # pyright: ignore[reportUnknownMemberType] - its argument has no type


def gloo(membership: Membership) -> Any:
    """A gloo process group between processes that share no other group."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    return stateless_init_torch_distributed_process_group(
        membership.address, membership.port, membership.rank, membership.world_size, "gloo"
    )
