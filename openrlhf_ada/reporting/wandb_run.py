"""One page of Weights & Biases for a run, however often it is resumed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import secrets
from pathlib import Path

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reporting.redaction import FROM_ENVIRONMENT, REMOVED

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
        shown = key if key == FROM_ENVIRONMENT else REMOVED
        rule = f"no key of {LEAST_CHARACTERS} characters is in WANDB_API_KEY, of `wandb login` or in the flag"
        raise ConfigError(FLAG, shown, rule, "Give one of them. WANDB_MODE=offline writes files only")


def run_environment(run_dir: Path, *, resumes: bool) -> dict[str, str]:
    """What wandb must find in its process; a value that the user set wins. Keeps the run's id in its directory."""
    path = run_dir / ID_FILE
    if not (resumes and path.exists()):
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(8))
    own = dict(zip(VARIABLES, (path.read_text(), "allow"), strict=True))
    return {name: os.environ.get(name, value) for name, value in own.items()}
