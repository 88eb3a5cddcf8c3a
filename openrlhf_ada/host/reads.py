"""Which tensors a model's loader in vLLM uses: it drops those whose names it does not know, often without a word.

Contract: test_weight_transfer.test_weights_that_the_model_drops_are_known
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Reads(TorchDispatchMode):
    """While it lasts, notes in `seen` which of these contiguous tensors are copied or computed with, in whole or in
    part. To be looked at is not to be read: cutting and turning touch no data.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.seen = [not tensor.numel() for tensor in tensors]
        places = {tensor.data_ptr(): index for index, tensor in enumerate(tensors) if tensor.numel()}
        self._starts = sorted(places)
        self._indices = [places[start] for start in self._starts]
        self._ends = [start + tensors[places[start]].nbytes for start in self._starts]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                    self._note(leaf.data_ptr())
        return func(*args, **kwargs or {})

    def _note(self, address: int) -> None:
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._ends[place]:
            self.seen[self._indices[place]] = True
