"""Prompts as they leave the data loader, each with an identity that its rollouts keep to the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openrlhf_ada.core.types import PromptKey


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt visit. `key` counts visits since the start of the run; `row` is the position in the training set."""

    key: PromptKey
    row: int
    prompt: str
    label: str
    image: Any


def number_rows(dataset: Any) -> None:
    """Let every row carry its own position through the host's loader.

    The host's PromptDataset hands out (datasource, prompt, label, image), and the training loop ignores the first: it
    is the one slot in which a stable prompt id survives shuffling without a second dataset class.
    """
    dataset.datasources = list(range(len(dataset)))


def take_prompts(loader: Iterator[Any], count: int, first_key: PromptKey) -> tuple[list[PromptRequest], bool]:
    """Up to `count` prompts and whether the loader ended before that. Needs `number_rows` on the loader's dataset."""
    requests: list[PromptRequest] = []
    for rows, prompts, labels, images in loader:
        for row, prompt, label, image in zip(rows, prompts, labels, images, strict=True):
            requests.append(PromptRequest(first_key + len(requests), int(row), prompt, label, image))
        if len(requests) >= count:
            return requests, False
    return requests, True
