"""OpenRLHF's prompt data and its loader.

Contract: test_openrlhf_objects.test_loader_order_follows_the_seed
Contract: test_openrlhf_objects.test_row_numbers_pass_through_the_hosts_loader
"""

from __future__ import annotations

from typing import Any

from torchdata.stateful_dataloader.sampler import RandomSampler


def number_rows(dataset: Any) -> None:
    """Let every row of a `PromptDataset` carry its own position through OpenRLHF's loader.

    The data set hands out (datasource, prompt, label, image), and the training loop ignores the first: it is the one
    slot in which a stable prompt id survives shuffling without a second dataset class.
    """
    dataset.datasources = list(range(len(dataset)))


def seed_order(loader: Any, seed: int) -> None:
    """Let the next iteration of OpenRLHF's loader be in the order of this seed, unless its state is restored.

    A shuffling loader's sampler has a generator of its own, seeded at random when the loader was made.
    """
    if isinstance(loader.sampler, RandomSampler):
        loader.sampler.generator.manual_seed(seed)
