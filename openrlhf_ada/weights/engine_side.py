"""A rollout actor's part in weight updates: nothing is sampled from weights that are not confirmed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

from openrlhf_ada.weights.receiver import BACKEND, PolicyWeightsExtension

FROM_DISK = -1
"""Version of the weights that an engine is started with. It samples with them only where nobody trains."""

DYING_S = 5.0
"""Seconds in which vLLM's core knows that a worker has died, after a call to that worker has failed."""


class ReceivesWeights:
    """Mixed into a rollout actor. An update is begun, received and admitted, by the policy; whatever fails in between
    leaves the engine without admission for good."""

    llm: Any
    version: int
    """Updates of the policy that the weights have had."""

    def with_receiver(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments for vLLM's engine, with our end of weight updates, and log-probabilities as tokens are sampled."""
        extension = f"{PolicyWeightsExtension.__module__}.{PolicyWeightsExtension.__qualname__}"
        return (
            {"logprobs_mode": "processed_logprobs", "max_logprobs": 1}
            | arguments
            | {"worker_extension_cls": extension, "weight_transfer_config": {"backend": BACKEND}}
        )

    def forbid_pickle(self) -> None:
        """Nothing but plain values crosses to vLLM's processes: they need not unpickle what they are sent."""
        os.environ.pop("VLLM_ALLOW_INSECURE_SERIALIZATION", None)

    def open_gate(self) -> None:
        """To be called when the actor is made."""
        self._admitted = asyncio.Event()
        self._has_begun = False
        self.version = FROM_DISK

    async def admitted(self) -> None:
        """Return when the weights are confirmed ones."""
        await self._admitted.wait()

    async def weights_version(self) -> int:
        """Updates of the policy that the weights have had, when they are confirmed."""
        await self.admitted()
        return self.version

    async def serve_from_disk(self) -> None:
        """Sample with the weights the engine was started with."""
        self._admit(FROM_DISK)

    async def join_weight_group(self, group: dict[str, Any]) -> None:
        """Blocks until everybody has joined. `group`: see `JoinGroup`."""
        await self._unless_dying(self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=group)))

    async def begin_update(self) -> None:
        """Raises RuntimeError while vLLM samples, unless it is paused. May be called again."""
        self._admitted.clear()
        running = self.llm.get_num_unfinished_requests()
        if running and not await self.llm.is_paused():
            raise RuntimeError(f"{running} rollouts are on their way, and would go on with other weights")
        if not self._has_begun:
            await self._unless_dying(self.llm.start_weight_update())
            self._has_begun = True

    async def _unless_dying(self, call: Awaitable[None]) -> None:
        """A repeatable call of vLLM's. If it fails as a worker has died, nothing is answered: this process ends."""
        try:
            await call
        except Exception:
            for _ in range(int(DYING_S / 0.1)):
                if self.llm.errored:
                    await asyncio.Event().wait()
                await asyncio.sleep(0.1)
            raise

    async def receive_update(
        self, manifest: dict[str, Any], *, sums: bool, is_untrained: bool = False
    ) -> list[list[int]]:
        """Checksums of what each worker has received, if they are asked for. See `Update`.

        Raises RuntimeError where the engine has no use for a tensor.
        """
        update = {"manifest": manifest, "sums": sums, "is_untrained": is_untrained}
        await self.llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        if not sums:
            return []
        # A worker may leave a tensor to the others, such as an expert of theirs.
        first, *others = await self.llm.collective_rpc("unused_tensors")
        unused: list[str] = [name for name in first if all(name in of for of in others)]
        if unused:
            raise RuntimeError(
                f"vLLM has loaded without using them {len(unused)} of the policy's weights, the first: "
                f"{unused[0]}. Its model has no such weights, so it computes something else than the policy. Use "
                f"another model; or, if these weights change nothing and it has no experts, add --ada_verify_sync off"
            )
        return await self.llm.collective_rpc("received_sums")

    async def admit_update(self, version: int) -> None:
        """From now on sample with what was received. Raises RuntimeError if answers of the old weights stay cached."""
        await self.llm.finish_weight_update(str(version))
        await self._empty_cache()
        self._admit(version)

    async def _empty_cache(self) -> None:
        if self.llm.vllm_config.cache_config.enable_prefix_caching and not await self.llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM could not empty its prefix cache, which holds what the old weights made of prompts"
            )
        if self.llm.vllm_config.model_config.is_multimodal_model and not self.llm.get_num_unfinished_requests():
            # What the old weights made of images. A request that goes on might still need it.
            await self.llm.reset_encoder_cache()

    def _admit(self, version: int) -> None:
        self._has_begun = False
        self.version = version
        self._admitted.set()
