"""Our flags as a run has them, without a command line."""

from __future__ import annotations

from typing import Any

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, resolve


def settings_with(*, n: int = 4, advantage: str = "dr_grpo", batch: int = 6, **flags: Any) -> Settings:
    return resolve(AdaConfig(**flags), n=n, advantage=advantage, batch=batch)
