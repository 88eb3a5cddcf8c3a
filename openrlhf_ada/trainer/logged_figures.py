"""Logged losses: means over all that a training step trains, however it is cut into micro-batches.

OpenRLHF divides the losses of a micro-batch by the totals of the whole optimizer step. Then it averages them as if
each were the mean of its micro-batch, so what it logs depends on --train.micro_batch_size; what it trains does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class StepMeans:
    """Sums of a training step in this process, and of how many tokens or samples they are."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, name: str, total: float, count: float) -> None:
        for key, value in ((name, total), (f"{name}/count", count)):
            self._sums[key] = self._sums.get(key, 0.0) + value

    def add_loss(self, name: str, loss: Any, mask: torch.Tensor, totals: dict[str, Any], *, by_token: bool) -> None:
        """A micro-batch's loss as OpenRLHF has computed it. `totals`: its own, by which that was divided."""
        divisor = totals["batch_num_tokens" if by_token else "global_batch_size"] / totals["dp_size"]
        count = mask.sum() if by_token else mask.any(dim=-1).sum()
        self.add(name, float(loss) * float(divisor), float(count))

    def take(self, add_up: Callable[[dict[str, float]], dict[str, float]]) -> dict[str, float]:
        """The means; the next step begins anew. `add_up`: over all processes, which all have the same names."""
        sums, self._sums = add_up(self._sums), {}
        counts = {name: sums[f"{name}/count"] for name in sums if not name.endswith("/count")}
        return {name: sums[name] / count if count else 0.0 for name, count in counts.items()}
