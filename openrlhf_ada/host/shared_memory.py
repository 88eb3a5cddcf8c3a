"""OpenRLHF's methods for vLLM's workers: its way through GPU memory that policy and engine share.

Contract: test_shared_memory.test_a_worker_gets_what_the_policy_shares
Contract: test_shared_memory.test_the_hosts_method_reads_three_attributes
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap


class HostWorkerExtension(WorkerWrap):
    """OpenRLHF's, with a place to see what comes through shared memory. Becomes a base of vLLM's worker."""

    # As vLLM's worker has them.
    device: torch.device
    model_config: Any
    model_runner: Any

    def take_shared(self, weights: Sequence[tuple[str, torch.Tensor]]) -> object:
        """Load named tensors, which lie in the policy's memory. To be extended."""
        return self.model_runner.model.load_weights(weights=weights)

    def update_weight_cuda_ipc(self, *args: Any, **kwargs: Any) -> None:
        """It opens a handle and loads the tensor, and reads three attributes: it is called on an object that has
        these, and loads by `take_shared`."""
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self.take_shared))
        seen: Any = SimpleNamespace(device=self.device, model_config=self.model_config, model_runner=runner)
        WorkerWrap.update_weight_cuda_ipc(seen, *args, **kwargs)
