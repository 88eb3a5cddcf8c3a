"""The policy's weights under the names of its checkpoint: sharded ones gathered, adapters merged into copies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import Linear as LoraLinear
from torch.nn import Module, Parameter

from openrlhf_ada.host.sharding import ComputedParameter, Gather, ShapeOf
from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.manifest import BUCKET_BYTES, Manifest, TensorSpec


@dataclass(frozen=True)
class _Tensor:
    """One tensor to be sent: what must be gathered for it, and how it is then had."""

    spec: TensorSpec
    parameters: list[Parameter]
    value: Callable[[], torch.Tensor]


class PolicyWeights:
    """A model's weights for the engines; the model itself stays as it is, to the bit.

    `shape_of`: a parameter's shape when it is whole. `only_trained`: frozen ones are not sent (an image encoder's).
    Raises ValueError for adapters that cannot be merged exactly.
    """

    def __init__(
        self,
        model: Module,
        gather: Gather,
        shape_of: ShapeOf,
        *,
        only_trained: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._gather = gather
        found = _merged(model, shape_of) if isinstance(model, PeftModel) else _plain(model, shape_of, only_trained)
        self._tensors = {tensor.spec.name: tensor for tensor in found}
        specs = tuple(tensor.spec for tensor in self._tensors.values())
        self._manifest = Manifest(specs, is_whole=not only_trained, bucket_bytes=bucket_bytes)

    @property
    def manifest(self) -> Manifest:
        """Names, types and shapes of all."""
        return self._manifest

    def as_parameters(self, sums: dict[str, int] | None = None) -> Iterator[tuple[str, ComputedParameter]]:
        """In place of `named_parameters()`, where the host sends them. `sums` gets their checksums by name."""
        for name, tensor in self._tensors.items():
            dtype = getattr(torch, tensor.spec.dtype)
            yield name, ComputedParameter(tensor.spec.shape, dtype, partial(self._copy, tensor, sums))

    def _copy(self, tensor: _Tensor, sums: dict[str, int] | None) -> torch.Tensor:
        with self._gather(tensor.parameters), torch.no_grad():
            copy = tensor.value().clone()
        if sums is not None:
            (sums[tensor.spec.name],) = checksums([copy])
        return copy

    @contextmanager
    def gathered(self, batch: Sequence[TensorSpec]) -> Generator[list[torch.Tensor]]:
        """These tensors, whole. All processes that hold a part of them must enter."""
        tensors = [self._tensors[spec.name] for spec in batch]
        with self._gather([parameter for tensor in tensors for parameter in tensor.parameters]), torch.no_grad():
            yield [tensor.value() for tensor in tensors]


def _plain(model: Module, shape_of: ShapeOf, only_trained: bool) -> Iterator[_Tensor]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or not only_trained:
            yield _Tensor(_spec(name, parameter, shape_of), [parameter], _data_of(parameter))


def _merged(model: PeftModel, shape_of: ShapeOf) -> Iterator[_Tensor]:
    """Every parameter of the model without adapters, with what they add to it."""
    base = model.get_base_model()
    adapted: dict[Any, _Adapted] = {}
    # torch leaves the annotation of `named_modules` out.
    for name, module in cast(Iterator[tuple[str, Module]], base.named_modules()):
        if isinstance(module, LoraLayer):
            layer = _adapted(name, module)
            if sum(parameter is layer.weight for _, parameter in base.named_parameters(remove_duplicate=False)) > 1:
                raise ValueError(
                    f"the adapter of {name} cannot be merged for the engines: its weight is the embedding's as well "
                    f"(tie_word_embeddings). Leave {name} out of --ds.lora.target_modules"
                )
            adapted[layer.weight] = layer
    for name, parameter in base.named_parameters():
        if ".lora_" in name:
            continue
        spec = _spec(name.replace(".base_layer.", "."), parameter, shape_of)
        layer = adapted.get(parameter)
        if layer is None:
            yield _Tensor(spec, [parameter], _data_of(parameter))
        else:
            yield _Tensor(spec, [parameter, *layer.factors()], layer.merged)


@dataclass(frozen=True)
class _Adapted:
    """A linear layer's weight W and its adapters: A, B and the scale of their product."""

    weight: Parameter
    adapters: list[tuple[Parameter, Parameter, float]]
    is_transposed: bool

    def factors(self) -> list[Parameter]:
        return [factor for a, b, _ in self.adapters for factor in (a, b)]

    def merged(self) -> torch.Tensor:
        """W + scale B A, in single precision and rounded once. Merged in place and taken out again, W would drift."""
        total = self.weight.data.float()
        for a, b, scale in self.adapters:
            delta = b.data.float() @ a.data.float()
            total = total + scale * (delta.T if self.is_transposed else delta)
        return total.to(self.weight.dtype)


def _adapted(name: str, layer: Any) -> _Adapted:
    if type(layer) is not LoraLinear or any(layer.use_dora.values()) or any(layer.lora_bias.values()):
        raise ValueError(f"the adapter of {name} ({type(layer).__name__}) cannot be merged for the engines")
    scaling: Any = layer.scaling  # pyright: ignore[reportUnknownMemberType] - peft says `dict` and no more
    adapters: list[Any] = [
        (layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, scaling[adapter])
        for adapter in layer.active_adapters
    ]
    weight: Any = layer.get_base_layer().weight
    return _Adapted(weight, adapters, layer.fan_in_fan_out)


def _data_of(parameter: Parameter) -> Callable[[], torch.Tensor]:
    return lambda: parameter.data


def _spec(name: str, parameter: Parameter, shape_of: ShapeOf) -> TensorSpec:
    return TensorSpec(name, str(parameter.dtype).removeprefix("torch."), tuple(shape_of(parameter)))
