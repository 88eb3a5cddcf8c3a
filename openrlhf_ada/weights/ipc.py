"""Through memory of a GPU that a process of the policy and an engine's worker share: vLLM's own packed CUDA IPC.

Every process of the policy sends to the worker on its own GPU, through one buffer that both see. The key-value store
carries what each end waits for. Contract: test_ipc_transfer
"""

# torch and vLLM leave types of their signatures out.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import itemgetter
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from vllm.distributed.weight_transfer import packed_tensor

from openrlhf_ada.weights.transport import POLL_S, Group, Membership, Take, TransportError

CLASSES = {0: torch.Tensor, 4: torch.storage.TypedStorage, 5: torch.uint8}
"""What torch's handle of a bucket holds besides plain values, by place. They are not sent, so nobody unpickles."""


class IpcGroup(Group):
    """Joining does not block. The last `senders` - 1 members and the first are the policy's processes."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        self._device = device
        self._ranks = range(membership.world_size)
        self._num_workers = membership.world_size - membership.senders
        self._gpu = str(torch.cuda.get_device_properties(device).uuid)
        self._stopped = threading.Event()
        # The limit is noticed first, and named; this is for a store that is out of reach.
        limit = timedelta(seconds=membership.limit_s + 10 * POLL_S)
        place = membership.address, membership.port, None, not membership.rank
        store: Any = TCPStore(*place, timeout=limit, wait_for_workers=False)
        # What waits on one connection keeps others from using it.
        self._mail: Any = store.clone()
        self._awaited = ""
        self._num_updates = 0
        store.set(f"gpu/{membership.rank}", self._gpu)
        super().__init__(membership, store)

    def _send(self, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        self._num_updates += 1
        workers = {self._gpu_of(rank): rank for rank in self._ranks[1 : self._num_workers + 1]}
        if not self._rank:
            self._check_pairs(workers)
        if self._gpu in workers:
            self._send_to(workers[self._gpu], sizes, buckets)
        else:
            # Another engine's turn; the others need this process's shards.
            for _ in buckets:
                self.progress()
        self._note_end()
        if self._rank:
            self._mail.set(f"sent/{self._rank}", "")
            return
        for rank in self._ranks[self._num_workers + 1 :]:
            # This end can tell all others that an update is given up as long as it takes part itself.
            self._take("sent", rank)

    def _send_to(self, worker: int, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        named = (("", bucket) for bucket in buckets)
        for chunk in packed_tensor.packed_ipc_producer(named, self._gpu, itemgetter(1), max(sizes)):
            handle = _as_plain(chunk.ipc_handle[self._gpu])
            self._mail.set(f"full/{worker}", repr((chunk.tensor_sizes, handle)))
            self._take("free", worker)
        # The worker has let go of the buffer.
        torch.cuda.ipc_collect()

    def _receive(self, sizes: Sequence[int], take: Take) -> None:
        importer = packed_tensor.PackedBufferImporter()
        left = len(sizes)
        while left:
            lengths, handle = literal_eval(self._take("full", self._rank).decode())
            left -= len(lengths)
            arrived = self._copied(lengths, handle, importer)
            if not left:
                importer.close()
            self._mail.set(f"free/{self._rank}", "")
            while arrived:
                take(arrived.pop(0))
        self._note_end()

    def _note_end(self) -> None:
        self._mail.add(f"ended/{self._rank}", 1)

    def silent(self) -> list[str]:
        """Without those whose part had ended before the update was given up."""
        ended = [self._store.add(f"ended/{rank}", 0) for rank in self._ranks]
        missing = {name for name, count in zip(self._names, ended, strict=True) if count < self._num_updates}
        return [name for name in super().silent() if name in missing]

    def _copied(self, lengths: list[int], handle: list[Any], importer: Any) -> list[torch.Tensor]:
        """The buckets in a chunk, when they are copied: the sender writes over the buffer."""
        args = tuple(CLASSES.get(place, value) for place, value in enumerate(handle))
        names, shapes, types = [""] * len(lengths), [[size] for size in lengths], ["uint8"] * len(lengths)
        found = packed_tensor.packed_ipc_consumer(
            {self._gpu: args}, names, shapes, types, lengths, self._device.index, importer
        )
        torch.cuda.current_stream(self._device).synchronize()
        return [bucket for _, bucket in found]

    def _check_pairs(self, workers: dict[str, int]) -> None:
        """Raises TransportError, or a worker would wait in vain."""
        senders = {self._gpu_of(rank) for rank in [0, *self._ranks[self._num_workers + 1 :]]}
        if len(workers) < self._num_workers:
            raise TransportError("two of vLLM's workers are on one GPU, where a process of the policy sends to one")
        for gpu in workers.keys() - senders:
            raise TransportError(f"{self._names[workers[gpu]]} is on GPU {gpu}, where no process of the policy is")

    def _gpu_of(self, rank: int) -> str:
        """Of a member; waits until it has joined."""
        return self._mail.get(f"gpu/{rank}").decode()

    def _take(self, what: str, whose: int) -> bytes:
        """A message, when it is there; raises TransportError when `_stop` ends the wait."""
        self._awaited = f"{what}/{whose}"
        message = b"" if self._stopped.is_set() else self._mail.get(self._awaited)
        if self._stopped.is_set():
            raise TransportError("the transfer was given up")
        # torch 2.13 has queues, but says now and then that one is empty right after it has waited for it.
        self._mail.delete_key(self._awaited)
        self.progress()
        return message

    def _stop(self) -> None:
        self._stopped.set()
        if self._awaited:
            # The store ends with rank 0, and this wait with it.
            with suppress(RuntimeError):
                self._store.set(self._awaited, "")

    def close(self) -> None:
        self._mail = None


def _as_plain(handle: Sequence[Any]) -> list[Any]:
    """What `literal_eval` reads; torch's own type of a shape is a tuple."""
    values = [tuple(value) if isinstance(value, tuple) else value for value in handle]
    return [None if place in CLASSES else value for place, value in enumerate(values)]
