"""The policy's weights under the names of its checkpoint: sharded ones gathered, adapters merged into copies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import Linear as LoraLinear
from torch.nn import Module, Parameter

from openrlhf_ada.host.saved_model import as_in_checkpoint, converted
from openrlhf_ada.host.sharding import Gather, ShapeOf
from openrlhf_ada.weights.manifest import BUCKET_BYTES, Manifest, TensorSpec


@dataclass(frozen=True, eq=False)
class _Source:
    """One of the model's tensors: what a checkpoint has of it, what must be gathered, and then `values` by name."""

    specs: list[TensorSpec]
    parameters: list[Parameter]
    values: Callable[[], dict[str, torch.Tensor]]


class PolicyWeights:
    """A model's weights for the engines; the model itself stays as it is, to the bit.

    `shape_of`: a parameter's shape when it is whole. `only_trained`: frozen ones are not sent (an image encoder's).
    `as_saved`: names and shapes of the checkpoint, else of the model, whose experts are joined.
    Raises ValueError for adapters that cannot be merged exactly.
    """

    def __init__(
        self,
        model: Module,
        gather: Gather,
        shape_of: ShapeOf,
        *,
        only_trained: bool = False,
        as_saved: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._gather = gather
        adapts = isinstance(model, PeftModel)
        found = list(_merged(model, shape_of) if adapts else _plain(model, shape_of, only_trained))
        base = model.get_base_model() if adapts else model
        own = [source.specs[0] for source in found]
        shapes = {spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta") for spec in own}
        saved = as_in_checkpoint(base, shapes) if as_saved else {name: {name: t} for name, t in shapes.items()}
        self._sources = {
            spec.name: source
            for source in (_as_saved(base, source, saved[source.specs[0].name]) for source in found)
            for spec in source.specs
        }
        specs = tuple(spec for source in dict.fromkeys(self._sources.values()) for spec in source.specs)
        self.manifest = Manifest(specs, is_whole=not only_trained, bucket_bytes=bucket_bytes)

    @contextmanager
    def gathered(self, batch: Sequence[TensorSpec]) -> Generator[list[torch.Tensor]]:
        """These tensors, whole. All processes that hold a part of them must enter."""
        sources = list(dict.fromkeys(self._sources[spec.name] for spec in batch))
        with self._gather([parameter for source in sources for parameter in source.parameters]), torch.no_grad():
            values = {name: value for source in sources for name, value in source.values().items()}
            yield [values[spec.name] for spec in batch]


def _as_saved(model: Module, source: _Source, saved: dict[str, torch.Tensor]) -> _Source:
    """`saved`: what a checkpoint has of this tensor, on the meta device."""
    (own,) = source.specs
    split = own.name if len(saved) > 1 else ""
    specs = [TensorSpec(name, own.dtype, tuple(meta.shape), split) for name, meta in saved.items()]
    if len(specs) == 1 and specs[0].shape == own.shape:
        return replace(source, specs=specs, values=lambda: {specs[0].name: source.values()[own.name]})
    return replace(source, specs=specs, values=lambda: converted(model, source.values()))


def _plain(model: Module, shape_of: ShapeOf, only_trained: bool) -> Iterator[_Source]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or not only_trained:
            yield _own(name, parameter, shape_of)


def _merged(model: PeftModel, shape_of: ShapeOf) -> Iterator[_Source]:
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
        yield _own(name.replace(".base_layer.", "."), parameter, shape_of, adapted.get(parameter))


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
        raise ValueError(
            f"the adapter of {name} ({type(layer).__name__}) cannot be merged for the engines: only plain ones of "
            f"linear layers can, so none of experts. Name others in --ds.lora.target_modules, such as q_proj v_proj"
        )
    scaling: Any = layer.scaling  # pyright: ignore[reportUnknownMemberType] - peft says `dict` and no more
    adapters: list[Any] = [
        (layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, scaling[adapter])
        for adapter in layer.active_adapters
    ]
    weight: Any = layer.get_base_layer().weight
    return _Adapted(weight, adapters, layer.fan_in_fan_out)


def _own(name: str, parameter: Parameter, shape_of: ShapeOf, layer: _Adapted | None = None) -> _Source:
    spec = TensorSpec(name, str(parameter.dtype).removeprefix("torch."), tuple(shape_of(parameter)))
    if layer is None:
        return _Source([spec], [parameter], lambda: {name: parameter.data})
    return _Source([spec], [parameter, *layer.factors()], lambda: {name: layer.merged()})
