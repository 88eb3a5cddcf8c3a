"""Python imports this in every process of the parity runs (PYTHONPATH): what makes two runs of the host comparable.

The host shuffles its prompts with torch's global generator, which it seeds in the model actors but not in the trainer,
and it batches rollouts in the order in which they end. Both would differ between two runs of the host itself.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

# Not by way of its package: processes are forked from one that has not imported that.
ROOM = Path(__file__).parents[2] / "openrlhf_ada" / "platforms" / "without_gpu"
on_import = runpy.run_path(str(ROOM / "import_hooks.py"))["on_import"]


def seed(_trainer: Any) -> None:
    """The default seed of torch is random, in every process another one."""
    import torch

    torch.manual_seed(0)


def wait_in_order(ray: Any) -> None:
    """`ray.wait` for one result returns the first that was asked for, not the first that ends."""
    wait = ray.wait

    def first_of(refs: list[Any], *, num_returns: int = 1, **options: Any) -> tuple[list[Any], list[Any]]:
        if num_returns != 1:
            return wait(refs, num_returns=num_returns, **options)
        ready, pending = wait(refs[:1], **options)
        return ready, pending + refs[1:]

    ray.wait = first_of


on_import({"openrlhf.trainer.ppo_trainer": seed, "ray": wait_in_order})
