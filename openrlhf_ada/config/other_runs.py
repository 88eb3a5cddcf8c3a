"""The flags of another run, whose weight of prompts is to be matched (--ada_objective matched:NAME)."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
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


def self_contained(objective: str) -> str:
    """`matched:DIR` with what is needed of that run in the place of DIR, so that other machines need no file of it.

    Other objectives as they are. Raises ConfigError where the record cannot be read.
    """
    name = objective.removeprefix(MATCHED)
    if name == objective or name in METHODS or name.startswith("{"):
        return objective
    if name in OLD_NAMES:
        return MATCHED + OLD_NAMES[name]
    try:
        config, host = flags_of(name)
    except (ConfigError, ValueError) as error:
        raise unreadable(objective, str(error)) from error
    defaults = AdaConfig()
    changed = {f.name: getattr(config, f.name) for f in fields(config) if f.name in WEIGHT_FLAGS}
    ada = {name: value for name, value in changed.items() if value != getattr(defaults, name)}
    sizes = {"n_samples_per_prompt": host.rollout.n_samples_per_prompt, "batch_size": host.rollout.batch_size}
    estimator = {"advantage": {"estimator": host.algo.advantage.estimator}}
    return MATCHED + json.dumps({"ada": ada, "rollout": sizes, "algo": estimator})


WEIGHT_FLAGS = (
    *("mode", "exit", "wave", "k_pos", "k_neg", "spread", "policy", "max_samples", "objective", "objective_power"),
    *("correction", "baseline", "select", "estimator", "floor", "loss", "scores", "positive_quantile"),
    *("pilot", "gate_low", "gate_high", "candidates", "choice", "choice_weight"),
)
"""Of our flags, those that decide which weight a prompt has, or that it has no table."""


def flags_of(name: str) -> tuple[AdaConfig, SimpleNamespace]:
    """Our flags, and those of the host that `resolve` reads, of a method, a run directory or a JSON object.

    Raises ValueError for what is none of these, ConfigError for flags that are wrong.
    """
    record = _record_of(name)
    try:
        ours = {f.name: record["ada"][f.name] for f in fields(AdaConfig) if f.name in record["ada"]}
        n, batch = int(record["rollout"]["n_samples_per_prompt"]), int(record["rollout"]["batch_size"])
        estimator = str(record["algo"]["advantage"]["estimator"])
        actor = record.get("actor", {})
        if actor.get("policy_loss_type") == "gspo" or actor.get("loss_agg_mode", "token-mean") != "token-mean":
            raise ValueError("its loss divides by the length of a rollout, which is a weight as well")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its config.json is not that of a run: {error!r}") from error
    host = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=n, batch_size=batch),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator=estimator)),
    )
    try:
        return AdaConfig(**ours), host
    except TypeError as error:
        raise ValueError(f"its config.json is not that of a run: {error}") from error


def _record_of(name: str) -> dict[str, Any]:
    name = OLD_NAMES.get(name, name)
    if name in METHODS:
        return nested(METHODS[name].flags)
    if name.startswith("{"):
        return json.loads(name)
    file = Path(name) / "config.json"
    if not name or not file.is_file():
        raise ValueError(f"there is no {file}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
