"""Adaptive rollout allocation for OpenRLHF: decide per prompt how many answers to sample (Reinforce-Ada)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["HOST_VERSION", "Trained", "TrainingError", "__version__", "train"]

__version__ = "0.1.0"

HOST_VERSION = "0.11.2"
"""The one OpenRLHF version this package extends; `host.parser` refuses any other."""


class TrainingError(RuntimeError):
    """A training that was started failed. The message has its last lines and where its log is."""


@dataclass(frozen=True)
class Trained:
    """A training that is over. `openrlhf_ada.reporting.run_record.read_run` reads all of its record.

    `metrics`: the row of the last step, by the names of docs/metrics.md. `evaluation`: the row of the last evaluation;
    None if there was none. `summary`: the figures of summary.json.
    """

    run_dir: Path
    metrics: dict[str, Any]
    evaluation: dict[str, Any] | None
    summary: dict[str, Any]


def train(config: Mapping[str, Any] | str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Trained:
    """Train as `openrlhf-ada train` does, and return when it is over.

    The training has a process of its own, which ends with this one. So it may be called any number of times, one after
    the other, and leaves nothing in this process. Without a terminal its lines are printed.

    Args:
        config: flags by name, flat (`{"rollout.batch_size": 16}`) or nested, True for a switch; or a YAML file, or the
            config.json of a run.
        overrides: flags that win over those of `config`.

    Raises:
        ValueError: wrong flags, files or data, with the message of the command. Nothing was started.
        TrainingError: the training failed.
        KeyboardInterrupt: it was interrupted, and has ended.
    """
    return importlib.import_module("openrlhf_ada.cli.train_function").train(config, overrides or {})
