"""DeepSpeed's parameters: whole from their shards.

Contract: test_sharded_weights.test_weights_in_two_processes_are_one_model
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from deepspeed.module_inject.layers import GatherReplacedLayerParams
from deepspeed.runtime.zero import GatheredParameters
from torch.nn import Module, Parameter

Gather = Callable[[list[Parameter]], AbstractContextManager[Any]]
"""Makes sharded parameters whole while the context lasts."""

ShapeOf = Callable[[Parameter], Sequence[int]]
"""A parameter's shape when it is whole."""


def sharding(args: Any, model: Module) -> tuple[Gather, ShapeOf]:
    """How the parameters of a policy become whole, and what shape they then have. ZeRO-3 leaves an empty tensor with
    its shape in `ds_shape`; of tensor parallelism only a gather tells it."""
    if args.ds.tensor_parallel_size > 1:

        @contextmanager
        def gather(parameters: list[Parameter]) -> Iterator[None]:
            with ExitStack() as stack:
                for parameter in parameters:
                    stack.enter_context(GatherReplacedLayerParams([parameter], model, enabled=True))
                yield

        def shape_of(parameter: Parameter) -> Sequence[int]:
            with gather([parameter]):
                return tuple(parameter.shape)

        return gather, shape_of
    is_split = args.ds.zero_stage == 3

    def gather_shards(parameters: list[Parameter]) -> AbstractContextManager[Any]:
        if not is_split or torch.distributed.get_backend() == "nccl":
            return GatheredParameters(parameters, enabled=is_split)
        # Of several gathers DeepSpeed waits for the last, which is enough only where a stream keeps their order.
        stack = ExitStack()
        for parameter in parameters:
            stack.enter_context(GatheredParameters([parameter]))
        return stack

    def whole_shape(parameter: Any) -> Sequence[int]:
        return parameter.ds_shape if is_split else parameter.shape

    return gather_shards, whole_shape
