"""Between GPUs: vLLM's own group and vLLM's own packed transfer (`vllm.distributed.weight_transfer`).

Contract: test_nccl_transfer
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
from vllm.distributed.weight_transfer import nccl_common, packed_tensor

from openrlhf_ada.weights.transport import Group, Membership, Take, TransportError

NUM_CHUNKS = 2
"""Chunks of vLLM's on their way at a time. One holds whole buckets, twice the largest bucket's bytes at most."""

DISABLED = (
    "NCCL could not be loaded in {name}, and vLLM would send nothing without an error. Unset VLLM_DISABLE_PYNCCL, or "
    "name the library by VLLM_NCCL_SO_PATH. --vllm.sync_backend gloo does without NCCL"
)


class NcclGroup(Group):
    """A communicator of vLLM's. Packing and loading happen on the stream that is current; transfers on vLLM's own."""

    def __init__(self, membership: Membership, device: torch.device) -> None:
        self._device = device
        self._name = membership.names[membership.rank]
        self._aborting = threading.Lock()
        # vLLM leaves the type of `device` out.
        self._communicator: Any = nccl_common.stateless_init_process_group(  # pyright: ignore[reportUnknownMemberType]
            membership.address, membership.port, membership.rank, membership.world_size, device
        )
        self._check_enabled()
        super().__init__(membership, self._communicator.group.store)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """vLLM's packed transfer calls it for every chunk. Its communicator's own does nothing when it is disabled."""
        self._check_enabled()
        self._communicator.broadcast(tensor, src=src)
        self.progress()

    def _check_enabled(self) -> None:
        if self._aborting.locked():
            raise TransportError("the communicator was aborted")
        if self._communicator.disabled:
            raise TransportError(DISABLED.format(name=self._name))

    def _send(self, sizes: Sequence[int], buckets: Iterator[torch.Tensor]) -> None:
        packed_tensor.packed_nccl_broadcast_producer(
            self._on_this_stream(buckets),
            group=self,
            src=0,
            post_iter_func=itemgetter(1),
            buffer_size_bytes=max(sizes),
            num_buffers=NUM_CHUNKS,
        )

    def _on_this_stream(self, buckets: Iterator[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """vLLM asks for the next bucket on a stream of its own, which does not wait for the optimizer's."""
        here = torch.cuda.current_stream(self._device)
        while True:
            with torch.cuda.stream(here):
                bucket = next(buckets, None)
            if bucket is None:
                return
            theirs = torch.cuda.current_stream(self._device)
            theirs.wait_stream(here)
            bucket.record_stream(theirs)
            yield "", bucket

    def _receive(self, sizes: Sequence[int], take: Take) -> None:
        here = torch.cuda.current_stream(self._device)

        def take_all(buckets: Sequence[tuple[str, torch.Tensor]]) -> None:
            """vLLM loads on the streams of its chunks in turns; the tensors of a layer may come in two chunks."""
            theirs = torch.cuda.current_stream(self._device)
            here.wait_stream(theirs)
            with torch.cuda.stream(here):
                for _, bucket in buckets:
                    bucket.record_stream(here)
                    take(bucket)
            theirs.wait_stream(here)

        packed_tensor.packed_nccl_broadcast_consumer(
            (("", ([size], torch.uint8)) for size in sizes),
            group=self,
            src=0,
            post_unpack_func=take_all,
            buffer_size_bytes=max(sizes),
            num_buffers=NUM_CHUNKS,
            device=self._device,
        )

    def _stop(self) -> None:
        # An abort frees the communicator; a second one would abort what is there by then.
        if self._aborting.acquire(blocking=False):
            self._communicator.destroy()

    def close(self) -> None:
        """Abort the communicator: dropped only, it would keep its memory, and the next one might not be formed."""
        self._stop()
