"""The policy's processes, which also give a restarted engine its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from openrlhf.trainer.ray import ppo_actor

from openrlhf_ada.rollout.incarnations import incarnations
from openrlhf_ada.upstream import substituted, unwrap_ray_class


class AdaPolicyActor(unwrap_ray_class(ppo_actor.PolicyModelActor)):
    """The host's. Its broadcast reaches engines that Ray has started anew since the last one."""

    _is_ahead = False
    _members: Sequence[str] = ()
    """Incarnations of the engines in the group over which weights are sent."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        super().init_model_from_pretrained(*args, **kwargs)
        if self._sends_over_group:
            self._members = incarnations(self.vllm_engines)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        self._is_ahead = True
        return super().fit(*args, **kwargs)

    def broadcast_to_vllm(self) -> None:
        if self._sends_over_group:
            members = incarnations(self.vllm_engines)
            if members != self._members:
                self._form_group()
                self._members = members
        super().broadcast_to_vllm()
        self._is_ahead = False

    def restore_engine(self, engine: int, *, alone: bool = False) -> bool:
        """Send the weights to one engine only; returns whether they are an update ahead of the other engines'.

        To be called in all of the policy's processes, or in the first, `alone`, where that has them whole.
        """
        # The host's broadcast ends with a barrier of all processes.
        barrier = {"torch_dist_barrier_and_cuda_sync": torch.cuda.synchronize} if alone else {}
        with self._only(engine), substituted(ppo_actor, **barrier):
            if self._sends_over_group:
                self._form_group()
                # The next broadcast is for all engines again.
                self._members = ()
            self.trainer.broadcast_to_vllm()
        return self._is_ahead

    @property
    def _sends_over_group(self) -> bool:
        return torch.distributed.get_rank() == 0 and not self.trainer.use_cuda_ipc

    def _form_group(self) -> None:
        self.trainer._init_vllm_sync_group(self.strategy.args.vllm.sync_backend)

    @contextmanager
    def _only(self, engine: int) -> Iterator[None]:
        """Let the host's broadcast see this engine only."""
        trainer, flags = self.trainer, self.trainer.strategy.args.vllm
        engines, trainer.vllm_engines = trainer.vllm_engines, [trainer.vllm_engines[engine]]
        num_engines, flags.num_engines = flags.num_engines, 1
        try:
            yield
        finally:
            trainer.vllm_engines, flags.num_engines = engines, num_engines


RayAdaPolicyActor = ray.remote(num_gpus=1)(AdaPolicyActor)
