"""Weights through GPU memory that policy and engine share (CUDA IPC): OpenRLHF moves them, and we sum what comes.

Imported by name inside vLLM's processes, as `worker_extension_cls` of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from openrlhf_ada.host.shared_memory import HostWorkerExtension
from openrlhf_ada.weights.checksums import checksums


class SharedWeightsExtension(HostWorkerExtension):
    """Methods that are added to vLLM's workers."""

    _shared_sums: dict[str, int] | None = None

    def begin_shared(self, sums: bool) -> None:
        """An update begins. `sums`: compute checksums of its tensors as they come."""
        self._shared_sums = {} if sums else None

    def shared_sums(self) -> dict[str, int]:
        """Checksums by name of the tensors that have come."""
        return self._shared_sums or {}

    def take_shared(self, weights: Sequence[tuple[str, torch.Tensor]]) -> object:
        if self._shared_sums is not None:
            # Of what came, before it is loaded: vLLM joins and cuts tensors, and they cannot be read back.
            names, tensors = zip(*weights, strict=True)
            self._shared_sums.update(zip(names, checksums(tensors), strict=True))
        return super().take_shared(weights)
