"""What the driver keeps in the run folder, and what it begins before Ray: the log, the start, pages of trackers."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.preset_flags import is_given
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.platforms.folders import hold
from openrlhf_ada.platforms.nvml import NvmlError, read_driver
from openrlhf_ada.platforms.signals import TerminatedError
from openrlhf_ada.reporting.output import LOG_FILE, LogText
from openrlhf_ada.reporting.redaction import plain, redact, secret_values
from openrlhf_ada.reporting.run_log import CONFIG_FILE
from openrlhf_ada.reporting.starts import record_start
from openrlhf_ada.reporting.track_mlflow import begin_run, end_run
from openrlhf_ada.reporting.track_wandb import run_environment
from openrlhf_ada.reporting.tracking import flat_texts
from openrlhf_ada.trainer.resume import resumes

logger = logging.getLogger(__name__)


def keep_name(args: SimpleNamespace, config: AdaConfig, words: Sequence[str]) -> None:
    """A resumed run has the name of its first start, whose default is a time: trackers go on with the same page."""
    path = config.resolved_run_dir(args.logger.wandb.run_name) / CONFIG_FILE
    if resumes(args) and path.exists() and not is_given("logger.wandb.run_name", words):
        args.logger.wandb.run_name = json.loads(path.read_bytes())["logger"]["wandb"]["run_name"]


def check_free(args: SimpleNamespace, config: AdaConfig) -> None:
    """Before data are read, which takes long; raises ConfigError where another run has the folders."""
    for flag, folder in _folders(args, config):
        if folder.exists():
            hold(folder, flag)


def _folders(args: SimpleNamespace, config: AdaConfig) -> list[tuple[str, Path]]:
    """Those that one run alone may write."""
    found = [("--ada_run_dir", config.resolved_run_dir(args.logger.wandb.run_name))]
    ckpt = Path(args.ckpt.path).absolute()
    # Storage of the nodes that train may be missing here.
    is_here = next(place for place in (ckpt, *ckpt.parents) if place.exists()) != Path(ckpt.anchor)
    uses_it = args.ckpt.save_steps > 0 or args.ckpt.load_enable
    return [*found, ("--ckpt.path", ckpt)] if is_here and uses_it else found


@contextmanager
def run_folder(
    args: SimpleNamespace, config: AdaConfig, command: Sequence[str], log: LogText
) -> Iterator[dict[str, Any]]:
    """Begin the log and note the start; yields the start's entry. Trackers get their page; MLflow's is ended with the
    block, as finished, failed or killed.

    Raises ConfigError where another run has the folders, and where MLflow cannot be used.
    """
    for flag, folder in _folders(args, config):
        hold(folder, flag)
    run_dir = config.resolved_run_dir(args.logger.wandb.run_name)
    log.write_to(run_dir / LOG_FILE, secret_values(plain(args), os.environ))
    start = record_start(run_dir, command, _gpu_names())
    if args.logger.wandb.key:
        os.environ.update(run_environment(run_dir, resumes=resumes(args)))
    if config.mlflow is None:
        yield start
        return
    _begin_mlflow(args, config.mlflow, config.mlflow_experiment, run_dir, start)
    status = "FAILED"
    try:
        yield start
        status = "FINISHED"
    except (KeyboardInterrupt, TerminatedError):
        status = "KILLED"
        raise
    finally:
        _end_mlflow(config.mlflow, run_dir, status)


def _gpu_names() -> list[str]:
    """Empty without a driver. One that does not answer is reported where GPUs are needed."""
    try:
        return [gpu.name for gpu in read_driver().gpus]
    except NvmlError:
        return []


def _begin_mlflow(
    args: SimpleNamespace, uri: str, experiment: str | None, run_dir: Path, start: dict[str, Any]
) -> None:
    wandb = args.logger.wandb
    tags = {"host": start["host"]["name"]} | {f"version.{name}": text for name, text in start["versions"].items()}
    if start["git"]:
        tags |= {"mlflow.source.git.commit": start["git"]["commit"], "git.dirty": str(start["git"]["dirty"])}
    begin_run(
        uri,
        experiment or wandb.project,
        wandb.run_name,
        run_dir,
        resumes=resumes(args),
        params=flat_texts(redact(plain(args))),
        tags=tags,
    )


def _end_mlflow(uri: str, run_dir: Path, status: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        end_run(uri, run_dir, status)
    except MlflowException as error:
        logger.warning("MLflow was not told that the run is %s: %s", status, error)
