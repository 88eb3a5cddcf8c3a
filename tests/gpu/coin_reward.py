"""A reward that says nothing and costs nothing: prompts have evenly spread pass rates, answers are coins."""

from __future__ import annotations

from zlib import crc32


def share(text: str) -> float:
    """Between 0 and 1; the same for the same text."""
    return crc32(text.encode()) / 2**32


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, list[float]]:
    scores = [float(share(query) < share(prompt)) for query, prompt in zip(queries, prompts, strict=True)]
    return {"rewards": scores, "scores": scores}
