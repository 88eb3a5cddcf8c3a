"""The flags of another run, whose weight of prompts is to be matched (--ada_objective matched:NAME)."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.presets import METHODS, OLD_NAMES, nested
from openrlhf_ada.config.schema import MATCHED, AdaConfig


def unreadable(objective: str, reason: str) -> ConfigError:
    """The error for a name that is neither a method's nor the directory of a run."""
    return ConfigError(
        "--ada_objective",
        objective,
        f"what comes after {MATCHED!r} is the name of a method or the directory of a run ({reason})",
        f"Name a run directory, or one of: {', '.join(METHODS)}",
    )


def flags_of(name: str) -> tuple[AdaConfig, dict[str, Any]]:
    """What `resolve` takes, of a method or a run directory.

    Raises ValueError for what is none of these, ConfigError for flags that are wrong.
    """
    record = _record_of(name)
    try:
        ours = {f.name: record["ada"][f.name] for f in fields(AdaConfig) if f.name in record["ada"]}
        rollout, advantage = record["rollout"], str(record["algo"]["advantage"]["estimator"])
        n, batch = int(rollout["n_samples_per_prompt"]), int(rollout["batch_size"])
        actor = record.get("actor", {})
        if actor.get("policy_loss_type") == "gspo" or actor.get("loss_agg_mode", "token-mean") != "token-mean":
            raise ValueError("its loss divides by the length of a rollout, which is a weight as well")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its config.json is not that of a run: {error!r}") from error
    try:
        return AdaConfig(**ours), {"n": n, "batch": batch, "advantage": advantage}
    except TypeError as error:
        raise ValueError(f"its config.json is not that of a run: {error}") from error


def _record_of(name: str) -> dict[str, Any]:
    name = OLD_NAMES.get(name, name)
    if name in METHODS:
        return nested(METHODS[name].flags)
    file = Path(name) / "config.json"
    if not name or not file.is_file():
        raise ValueError(f"there is no {file}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
