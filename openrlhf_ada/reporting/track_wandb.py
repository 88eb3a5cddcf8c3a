"""One page of Weights & Biases for a run, however often it is resumed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reporting.redaction import FROM_ENVIRONMENT, REMOVED
from openrlhf_ada.reporting.tracking import COLUMNS, Axes, Row, flat, histograms

FLAG = "--logger.wandb.key"
ID_FILE = "wandb_run_id"

VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME")

LEAST_CHARACTERS = 40
"""Of a key: wandb refuses shorter ones."""


def check_key(key: str) -> None:
    """Raises ConfigError where OpenRLHF's logger, which opens the page once everything has started, could not log in.

    `key`: of --logger.wandb.key. OpenRLHF takes it where wandb finds none by itself.
    """
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError(FLAG, FROM_ENVIRONMENT, "wandb is not installed", "pip install wandb")
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled"):
        return
    # wandb says that this place is deprecated; OpenRLHF asks there.
    with contextlib.redirect_stderr(io.StringIO()):
        import wandb

        found = wandb.api.api_key or key
    if len(found) < LEAST_CHARACTERS:
        raise ConfigError(
            FLAG,
            key if key == FROM_ENVIRONMENT else REMOVED,
            f"no key of {LEAST_CHARACTERS} characters is in WANDB_API_KEY, of `wandb login` or in the flag",
            "Give one of them. WANDB_MODE=offline writes files only",
        )


def run_environment(run_dir: Path, *, resumes: bool) -> dict[str, str]:
    """What wandb must find in its process; a value that the user set wins. Keeps the run's id in its directory."""
    path = run_dir / ID_FILE
    if not (resumes and path.exists()):
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(8))
    own = dict(zip(VARIABLES, (path.read_text(), "allow"), strict=True))
    return {name: os.environ.get(name, value) for name, value in own.items()}


class WandbTracker:
    """`wandb`: the module, with a run open. Figures are named as OpenRLHF's: `train/<name>` and `eval/<name>`.

    `axis/...` stands in every row, so that a chart of anything can have it as its x axis.
    """

    def __init__(self, wandb: Any) -> None:
        self._wandb = wandb
        # Evaluations over training steps: OpenRLHF names an axis for them that it never logs.
        wandb.define_metric("eval/global_step")
        wandb.define_metric("eval/*", step_metric="eval/global_step", step_sync=True)

    def step(self, step: int, metrics: Row, axes: Axes, samples: Sequence[Row]) -> None:
        row: dict[str, Any] = {f"train/{name}": value for name, value in flat(metrics).items()}
        for name, (counts, edges) in histograms(metrics).items():
            row[f"train/{name}"] = self._wandb.Histogram(np_histogram=(counts, edges))
        if samples:
            cells = [[sample.get(name) for name in COLUMNS] for sample in samples]
            row["train/samples"] = self._wandb.Table(columns=list(COLUMNS), data=cells)
        self._wandb.log(row | {"train/global_step": step} | _axes(step, axes))

    def evaluation(self, step: int, metrics: Row, axes: Axes) -> None:
        self._wandb.log(flat(metrics) | {"eval/global_step": step} | _axes(step, axes))

    def close(self) -> None:
        self._wandb.finish()


def _axes(step: int, axes: Axes) -> dict[str, Any]:
    return {"axis/steps": step} | {f"axis/{name}": value for name, value in axes.by_name().items()}
