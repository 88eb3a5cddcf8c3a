"""Python imports this in every process of the parity runs (PYTHONPATH): what makes two runs of OpenRLHF comparable.

OpenRLHF shuffles its prompts with torch's global generator, which it seeds in the model actors but not in the trainer,
and it batches rollouts in the order in which they end. Both would differ between two runs of OpenRLHF itself.
"""

from __future__ import annotations

from typing import Any

from wrapt import register_post_import_hook


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


register_post_import_hook(seed, "openrlhf.trainer.ppo_trainer")
register_post_import_hook(wait_in_order, "ray")
