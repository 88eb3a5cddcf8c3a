"""Mixtures of experts, by their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Where a model's config.json says how many experts a layer has: the names that vLLM reads."""


def has_experts(config: Mapping[str, Any]) -> bool:
    """Is a model a mixture of experts? `config`: its config.json."""
    text: Any = config.get("text_config") or config
    # Models whose layers differ say it per layer.
    sections: list[Any] = [text, *(text.get("block_configs") or [])]
    return any(section.get(name) for section in sections for name in EXPERTS)
