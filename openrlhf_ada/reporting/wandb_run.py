"""One page of Weights & Biases for a run, however often it is resumed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

ID_FILE = "wandb_run_id"

VARIABLES = ("WANDB_RUN_ID", "WANDB_RESUME")


def run_environment(run_dir: Path, *, resumes: bool) -> dict[str, str]:
    """What wandb must find in its process; a value that the user set wins. Keeps the run's id in its directory."""
    path = run_dir / ID_FILE
    if not (resumes and path.exists()):
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(8))
    own = dict(zip(VARIABLES, (path.read_text(), "allow"), strict=True))
    return {name: os.environ.get(name, value) for name, value in own.items()}


def use_step_axis(wandb: Any) -> None:
    """Evaluations over training steps: the host names an axis for them that it never logs."""
    wandb.define_metric("eval/global_step")
    wandb.define_metric("eval/*", step_metric="eval/global_step", step_sync=True)
