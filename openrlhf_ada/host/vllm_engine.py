"""vLLM's engine where it has no public way to ask.

Contract: test_vllm_engine.test_abort_finds_a_request_by_the_id_that_we_look_for
Contract: test_vllm_engine.test_the_exit_code_of_a_core_is_known
Contract: test_weight_transfer.test_a_cpus_experts_are_packed_where_they_have_no_kernel
Contract: test_weight_transfer.test_a_layer_without_all_of_its_weights_is_named
Contract: test_weight_transfer.test_weights_that_the_model_drops_are_known
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.v1.engine.utils import CoreEngineProcManager


def knows_request(llm: Any, request_id: str) -> bool:
    """Is a request on its way? vLLM ignores an abort of one that it does not know yet."""
    return request_id in llm.output_processor.external_req_ids


def ended_cores(llm: Any) -> dict[str, int]:
    """Exit codes, by name, of the engine's processes that have ended; vLLM says no more than that one has."""
    manager = llm.engine_core.resources.engine_manager
    return manager.finished_procs() if isinstance(manager, CoreEngineProcManager) else {}


def lacks_weights(layer: Module, present: set[int], *, got_some: bool) -> bool:
    """Does this layer, in a layerwise reload, lack weights: all of them (then it keeps its old ones), or some
    (`got_some`; vLLM completes it with anything)? `present`: where in memory the weights lie that came."""
    info = get_layerwise_info(layer)
    if not info.can_load() or info.kernel_tensors is None or bool(info.load_numel) is not got_some:
        return False
    if isinstance(layer, VocabParallelEmbedding) and info.load_numel:
        # Padded to a round number of rows, for which nothing comes.
        return False
    parameters, _ = info.kernel_tensors
    # An output layer may share its weights with the embedding.
    return any(parameter.data_ptr() not in present for parameter in parameters.values())


def pack_experts_anew(model: Module) -> None:
    """Before a layerwise reload: let vLLM pack experts for a CPU's kernels, as it did when it loaded them first. With
    new weights it would copy them to where the packed ones lie."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        backend = getattr(method, "unquantized_backend", None)
        if backend is not None and backend.name == "CPU":
            method.moe_kernel = None


def packed_weights(model: Module) -> dict[str, Tensor]:
    """By name, the parameters that kernels use. Call it after a layerwise reload has begun, when the model's own are
    placeholders; the reload writes into these."""
    # torch leaves the annotation of `named_modules` out.
    layers = cast(Iterator[tuple[str, Module]], model.named_modules())
    return {
        f"{prefix}.{name}": parameter
        for prefix, layer in layers
        if (kernel_tensors := get_layerwise_info(layer).kernel_tensors) is not None
        for name, parameter in kernel_tensors[0].items()
    }


class Reads(TorchDispatchMode):
    """Notes in `seen` which of these contiguous tensors a model's loader copies or computes with, in whole or in part:
    it drops those whose names it does not know. To be looked at is not to be read: cutting and turning touch no
    data."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.seen = [not tensor.numel() for tensor in tensors]
        places = {tensor.data_ptr(): index for index, tensor in enumerate(tensors) if tensor.numel()}
        self._starts = sorted(places)
        self._indices = [places[start] for start in self._starts]
        self._ends = [start + tensors[places[start]].nbytes for start in self._starts]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor) and not leaf.is_meta:
                    self._note(leaf.data_ptr())
        return func(*args, **kwargs or {})

    def _note(self, address: int) -> None:
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._ends[place]:
            self.seen[self._indices[place]] = True
