"""What the driver keeps in the run folder, and what it begins before Ray: the log, the start, pages of trackers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ada.config.preset_flags import is_given
from openrlhf_ada.platforms.folders import hold
from openrlhf_ada.platforms.nvml import NvmlError, read_driver
from openrlhf_ada.reporting.output import LOG_FILE, LogText
from openrlhf_ada.reporting.redaction import plain, secret_values
from openrlhf_ada.reporting.run_log import CONFIG_FILE
from openrlhf_ada.reporting.starts import record_start
from openrlhf_ada.reporting.wandb_run import run_environment
from openrlhf_ada.trainer.resume import resumes


def keep_name(args: SimpleNamespace, words: Sequence[str]) -> None:
    """A resumed run has the name of its first start, whose default is a time: trackers go on with the same page."""
    path = args.ada.resolved_run_dir(args.logger.wandb.run_name) / CONFIG_FILE
    if resumes(args) and path.exists() and not is_given("logger.wandb.run_name", words):
        args.logger.wandb.run_name = json.loads(path.read_bytes())["logger"]["wandb"]["run_name"]


def check_free(args: SimpleNamespace) -> None:
    """Before data are read, which takes long; raises ConfigError where another run has the folders."""
    for flag, folder in _folders(args):
        if folder.exists():
            hold(folder, flag)


def _folders(args: SimpleNamespace) -> list[tuple[str, Path]]:
    """Those that one run alone may write."""
    found = [("--ada_run_dir", args.ada.resolved_run_dir(args.logger.wandb.run_name))]
    ckpt = Path(args.ckpt.path).absolute()
    # Storage of the nodes that train may be missing here.
    is_here = next(place for place in (ckpt, *ckpt.parents) if place.exists()) != Path(ckpt.anchor)
    uses_it = args.ckpt.save_steps > 0 or args.ckpt.load_enable
    return [*found, ("--ckpt.path", ckpt)] if is_here and uses_it else found


def begin_run_folder(args: SimpleNamespace, command: Sequence[str], log: LogText) -> None:
    """Begin the log and note the start. Weights & Biases gets the page of the run.

    Raises ConfigError where another run has the folders.
    """
    for flag, folder in _folders(args):
        hold(folder, flag)
    run_dir = args.ada.resolved_run_dir(args.logger.wandb.run_name)
    log.write_to(run_dir / LOG_FILE, secret_values(plain(args), os.environ))
    record_start(run_dir, command, _gpu_names())
    if args.logger.wandb.key:
        os.environ.update(run_environment(run_dir, resumes=resumes(args)))


def _gpu_names() -> list[str]:
    """Empty without a driver. One that does not answer is reported where GPUs are needed."""
    try:
        return [gpu.name for gpu in read_driver().gpus]
    except NvmlError:
        return []
