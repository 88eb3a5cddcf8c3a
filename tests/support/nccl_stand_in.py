"""In place of NCCL where there is no GPU: a library whose calls mean what NCCL's do, over TCP and in main memory.

vLLM's communicator and its packed transfer run on it as they are. What NCCL does, and gloo does not:

- A call blocks until all members have made it. A member that is gone, or that never calls, is awaited for ever.
- Calls are matched by their order alone. Here two that do not match are an error; NCCL would hang or mix them up.
- `ncclCommAbort`, from another thread, ends what blocks in this process; its result is garbage. Others are not told.
- While a process has a communicator that was not aborted, a new one cannot be formed (vllm-project/vllm#40646).

`install` replaces the library and CUDA's streams. Another process needs its own call, or is forked afterwards.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.device_communicators.pynccl_wrapper import ncclUniqueId

LOOK_S = 0.02
HEADER = struct.Struct("<iiq")
BROADCAST, ALL_REDUCE = 1, 2

Set = Callable[[Any, str, Any], None]
"""`setattr`, or pytest's `monkeypatch.setattr`."""


class NcclError(RuntimeError):
    """What NCCL would return as an error."""


class Communicator:
    """One member's end: a connection between rank 0 and each other one."""

    def __init__(self, rank: int, peers: list[socket.socket]) -> None:
        self.rank = rank
        self.peers = peers
        self.num_calls = 0
        self.aborted = threading.Event()
        for peer in peers:
            peer.settimeout(LOOK_S)

    def call(self, kind: int, data: memoryview) -> None:
        """Rank 0's bytes go to all others; returns when all have them, or when this end is aborted."""
        self.num_calls += 1
        header = HEADER.pack(kind, self.num_calls, len(data))
        if self.rank == 0:
            for peer in self.peers:
                self._send(peer, header)
                self._send(peer, data)
            for peer in self.peers:
                self._receive(peer, memoryview(bytearray(1)))
            return
        found = bytearray(HEADER.size)
        self._receive(self.peers[0], memoryview(found))
        if not self.aborted.is_set():
            if bytes(found) != header:
                raise NcclError(f"{HEADER.unpack(found)} was sent, {HEADER.unpack(header)} is expected")
            self._receive(self.peers[0], data)
            self._send(self.peers[0], b"1")

    def sum(self, number: float) -> float:
        """Of all members' numbers; returned to each."""
        packed = bytearray(8)
        if self.rank:
            self._send(self.peers[0], struct.pack("<d", number))
        else:
            for peer in self.peers:
                self._receive(peer, memoryview(packed))
                number += struct.unpack("<d", packed)[0]
            packed = bytearray(struct.pack("<d", number))
        self.call(ALL_REDUCE, memoryview(packed))
        return struct.unpack("<d", packed)[0]

    def _send(self, peer: socket.socket, data: Any) -> None:
        data = memoryview(data)
        while len(data) and not self.aborted.is_set():
            try:
                data = data[peer.send(data) :]
            except TimeoutError:
                continue
            except OSError:
                # NCCL does not notice that a member is gone.
                self.aborted.wait()

    def _receive(self, peer: socket.socket, data: memoryview) -> None:
        while len(data) and not self.aborted.is_set():
            try:
                count = peer.recv_into(data)
            except TimeoutError:
                continue
            except OSError:
                count = 0
            if count == 0:
                self.aborted.wait()
            data = data[count:]


class Library:
    """vLLM's `NCCLLibrary`, as far as a weight transfer needs it. `log`: calls of this process, in order."""

    log: list[str] = []  # noqa: RUF012 - of the process, as NCCL's state is
    living: list[Communicator] = []  # noqa: RUF012
    listening: dict[bytes, socket.socket] = {}  # noqa: RUF012

    def __init__(self, so_file: str | None = None) -> None:
        pass

    def ncclGetRawVersion(self) -> int:
        return 22901

    def ncclGetVersion(self) -> str:
        return "2.29.1"

    def ncclGetUniqueId(self) -> ncclUniqueId:
        waiting = socket.create_server(("127.0.0.1", 0))
        name = str(waiting.getsockname()[1]).encode()
        self.listening[name] = waiting
        unique = ncclUniqueId()
        ctypes.memmove(unique.internal, name, len(name))
        return unique

    def ncclCommInitRank(self, world_size: int, unique_id: ncclUniqueId, rank: int) -> Communicator:
        if self.living:
            raise NcclError("unhandled cuda error: this process has a communicator that was not aborted")
        self.log.append("init")
        name = bytes(unique_id.internal).rstrip(b"\0")
        if rank == 0:
            with self.listening.pop(name) as waiting:
                peers = [waiting.accept()[0] for _ in range(world_size - 1)]
        else:
            peers = [socket.create_connection(("127.0.0.1", int(name)))]
        self.living.append(Communicator(rank, peers))
        return self.living[-1]

    def ncclAllReduce(
        self, send: Any, receive: Any, count: int, dtype: int, op: int, comm: Communicator, stream: Any
    ) -> None:
        """Of one number in single precision: vLLM's warm-up."""
        assert count == 1
        total = comm.sum(ctypes.cast(send, ctypes.POINTER(ctypes.c_float))[0])
        ctypes.cast(receive, ctypes.POINTER(ctypes.c_float))[0] = total

    def ncclBroadcast(
        self, send: Any, receive: Any, count: int, dtype: int, root: int, comm: Communicator, stream: Any
    ) -> None:
        """Of bytes, from rank 0."""
        assert root == 0
        self.log.append("broadcast")
        comm.call(BROADCAST, memoryview((ctypes.c_char * count).from_address(receive.value)).cast("B"))

    def ncclCommAbort(self, comm: Communicator) -> None:
        if comm not in self.living:
            raise NcclError("aborted twice: NCCL has freed it")
        self.log.append("abort")
        self.living.remove(comm)
        comm.aborted.set()


# A process that is forked has none of its parent's.
os.register_at_fork(after_in_child=Library.living.clear)


class Stream:
    """Work is done when it is asked for, so there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, device: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass


def install(set_attribute: Set) -> None:
    """NCCL's library and CUDA's streams are these from now on, in this process."""
    set_attribute(pynccl, "NCCLLibrary", Library)
    set_attribute(pynccl, "current_stream", Stream)
    set_attribute(torch.cuda, "Stream", Stream)
    set_attribute(torch.cuda, "stream", nullcontext)
    set_attribute(torch.cuda, "current_stream", Stream)
    set_attribute(torch.accelerator, "current_device_index", lambda: 0)
    set_attribute(torch.Tensor, "record_stream", lambda tensor, stream: None)
    for state in (Library.log, Library.living, Library.listening):
        state.clear()
