"""Receives weight updates in the engine's workers, through vLLM's own interface (start, update, finish).

Imported by name inside vLLM's processes, as `worker_extension_cls` of the engine, which also registers the backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,  # pyright: ignore[reportUnknownVariableType] - its decorator drops the signature
    initialize_layerwise_reload,
)

from openrlhf_ada.host.vllm_engine import Reads, lacks_weights, pack_experts_anew, packed_weights
from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.gloo import join
from openrlhf_ada.weights.manifest import Bucket, Manifest, TensorSpec, as_bytes, unpack
from openrlhf_ada.weights.transport import Group, Membership

BACKEND = "openrlhf_ada"
"""Our name among vLLM's weight transfer backends."""


@dataclass
class JoinGroup(WeightTransferInitInfo):
    """`group`: a `Membership` without its rank. `first_rank`: of this engine's workers in it."""

    group: dict[str, Any]
    first_rank: int


@dataclass
class Update(WeightTransferUpdateInfo):
    """An announced update. `manifest`: see `Manifest.to_plain`; `sums`: compute checksums, and check what is loaded.

    `is_untrained`: the weights are those that the engine has loaded from the policy's folder.
    """

    manifest: dict[str, Any]
    sums: bool
    is_untrained: bool = False


class WeightReceiver(WeightTransferEngine[JoinGroup, Update]):
    """Receives buckets and loads what is in them; vLLM re-packs a layer for its kernels as soon as it is complete."""

    init_info_cls = JoinGroup
    update_info_cls = Update

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group: Group | None = None
        self._growing: torch.Tensor | None = None
        self._untrained: dict[str, tuple[torch.Tensor, int]] = {}
        self.sums: list[int] = []
        self.unused: list[str] = []

    def init_transfer_engine(self, init_info: JoinGroup) -> None:
        """Leave the group of before, if there was one, and join this one."""
        self.shutdown()
        rank = init_info.first_rank + self.parallel_config.rank
        self._group = join(Membership(**init_info.group, rank=rank), self.device)

    def start_weight_update(self) -> None:
        """The model cannot be used from here on until `finish_weight_update`."""
        pack_experts_anew(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """Receive and load all buckets. A loading error is raised at the end, or the sender would wait for ever."""
        if self._group is None:
            raise RuntimeError("weights were announced before this engine has joined the policy's group")
        manifest = Manifest.from_plain(update_info.manifest)
        self.sums, self.unused, self._growing = [], [], None
        self._untrained = self._held(manifest) if update_info.sums and update_info.is_untrained else {}
        failure: Exception | None = None
        buckets = manifest.buckets()

        def take(packed: torch.Tensor) -> None:
            nonlocal failure
            bucket = next(buckets)
            if failure is None:
                try:
                    self._take(bucket, packed, sums=update_info.sums)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure, self._growing = error, None

        with disable_mtp_completeness_check():
            self._group.receive([bucket.size for bucket in manifest.buckets()], take)
        if failure is not None:
            raise failure
        self._check_complete(all_expected=manifest.is_whole and update_info.sums)

    def _take(self, bucket: Bucket, packed: torch.Tensor, *, sums: bool) -> None:
        """Load what a bucket holds. vLLM loads whole tensors only, so parts of one are put together first."""
        if bucket.start is None:
            self._load(bucket.tensors, unpack(bucket, packed), sums=sums)
            return
        (spec,) = bucket.tensors
        if self._growing is None:
            self._growing = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=self.device)
        part = bucket.part
        as_bytes(self._growing)[part].copy_(packed[: part.stop - part.start])
        if part.stop == spec.num_bytes:
            tensor, self._growing = self._growing, None
            self._load(bucket.tensors, [tensor], sums=sums)

    def _load(self, specs: Sequence[TensorSpec], tensors: list[torch.Tensor], *, sums: bool) -> None:
        model: Any = self.model
        named = ((spec.name, tensor) for spec, tensor in zip(specs, tensors, strict=True))
        if not sums:
            model.load_weights(named)
            return
        # Of the received tensors: vLLM repacks them, and they cannot be read back.
        self.sums += checksums(tensors)
        with Reads(tensors) as reads:
            model.load_weights(named)
        self.unused += [spec.name for spec, is_read in zip(specs, reads.seen, strict=True) if not is_read]

    def _held(self, manifest: Manifest) -> dict[str, tuple[torch.Tensor, int]]:
        """The engine's weights by name, with checksums; without those that are more precise than what is sent."""
        precision = min(getattr(torch, spec.dtype).itemsize for spec in manifest.tensors)
        held = {name: t for name, t in packed_weights(self.model).items() if t.numel() and t.itemsize <= precision}
        return {name: (t, total) for (name, t), total in zip(held.items(), checksums([*held.values()]), strict=True)}

    def _check_unchanged(self) -> None:
        """Raises RuntimeError. Whatever vLLM makes of weights to pack them, it makes of the same ones again."""
        tensors, before = zip(*self._untrained.values(), strict=True)
        pairs = zip(self._untrained, before, checksums(tensors), strict=True)
        changed = [name for name, one, other in pairs if one != other]
        if changed:
            raise RuntimeError(
                f"the policy is untrained, yet {len(changed)} of the engine's weights are no longer those of the "
                f"policy's folder, the first: {changed[0]}. Either vLLM loads new weights of this model wrongly, or "
                f"the folder lacks weights, which then have random values. Use another model, or engines on other "
                f"devices"
            )

    def _check_complete(self, *, all_expected: bool) -> None:
        """Raises RuntimeError: vLLM fills up partly received layers with anything, and others keep old weights."""
        present = {parameter.data_ptr() for parameter in self.model.parameters() if not parameter.is_meta}
        # torch leaves the annotation of `named_modules` out.
        layers = list(cast(Iterator[tuple[str, torch.nn.Module]], self.model.named_modules()))
        partly = [name for name, layer in layers if lacks_weights(layer, present, got_some=True)]
        if partly:
            raise RuntimeError(f"not all weights came for {', '.join(partly)}")
        without = [name for name, layer in layers if lacks_weights(layer, present, got_some=False)]
        if without and all_expected:
            raise RuntimeError(
                f"no weights came for {', '.join(without)}. Where they are to stay as the engine has loaded them, add "
                f"--ada_verify_sync off (not for mixtures of experts)"
            )

    def finish_weight_update(self) -> None:
        """The model can be used again."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self._untrained:
            self._check_unchanged()
            self._untrained = {}
        if self.device.type == "cuda":
            # Give the buckets' memory back: vLLM's KV cache needs it.
            torch.cuda.empty_cache()

    def shutdown(self) -> None:
        """Leave the group. A communicator that is only forgotten may keep the next one from being formed."""
        if self._group is not None:
            self._group.close()
        self._group = None


class PolicyWeightsExtension:
    """Methods that are added to vLLM's workers."""

    weight_transfer_engine: WeightReceiver

    def received_sums(self) -> list[int]:
        """Checksums of the tensors of the last update, as they came."""
        return self.weight_transfer_engine.sums

    def unused_tensors(self) -> list[str]:
        """Names of the last update's tensors of which this worker's model has read nothing."""
        return self.weight_transfer_engine.unused


# vLLM's signature names the engine without its type parameters.
WeightTransferEngineFactory.register_engine(BACKEND, WeightReceiver)  # pyright: ignore[reportUnknownMemberType]
