"""Run `train`, `eval` or `prepare-data` on a Ray cluster: the same command line with `submit` before it.

The job brings this package and the files that the command line names by relative paths; the nodes need OpenRLHF, vLLM
and what they need. Its log is shown here, and its exit status is this command's.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import logging
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from openrlhf_ada.flags import ConfigError
from openrlhf_ada.platforms.job_files import MIB, JobFiles, files_of

logger = logging.getLogger(__name__)

PROG = "openrlhf-ada submit"

OUTPUTS = {
    "train": ("--ada_run_dir", "--ckpt.path", "--ckpt.output_dir"),
    "eval": ("--out",),
    "prepare-data": ("--out",),
}
"""Verbs that can be submitted, and their flags that name where results go."""

STOP_WAIT_S = "30"
"""Seconds that a stopped run gets for ending its processes; Ray's own three are few for large models."""

EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def build_parser() -> argparse.ArgumentParser:
    """Flags of `submit` itself; what follows the verb is the verb's."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description=__doc__,
        usage=f"{PROG} [options] train|eval|prepare-data ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--address",
        metavar="URL",
        help="of the cluster's dashboard. Default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or http://127.0.0.1:8265",
    )
    parser.add_argument(
        "--upload",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder besides those that the command names; may be repeated",
    )
    parser.add_argument("--max-upload", type=float, default=100.0, metavar="MIB", help="refuse to send more (100)")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable of all of the job's processes; a name alone takes its value from here. No others "
        "go along. May be repeated. Ray's dashboard shows them",
    )
    parser.add_argument("--python", default="python", help="the interpreter on the nodes (python)")
    parser.add_argument("--id", help="name of the job on the cluster. Default: given by Ray")
    parser.add_argument("--no-wait", action="store_true", help="return when the job is submitted")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the job's exit status (1: it has none, 2: bad input, 130: Ctrl-C)."""
    args = build_parser().parse_args(argv)
    try:
        verb, arguments = _verb(args.command)
        arguments = with_outputs(verb, arguments)
        _check_arguments(verb, arguments)
        files = files_of(arguments, args.upload, Path.cwd())
        files.check(args.max_upload)
        environment = environment_of(args.env)
        client = _client(args.address)
    except ConfigError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    entrypoint = shlex.join([args.python, "-m", "openrlhf_ada.cli.main", verb, *arguments])
    job = _submit(client, entrypoint, files, environment, args.id)
    print(f"job {job}: {len(files.paths)} files uploaded ({files.num_bytes / MIB:.1f} MiB)", file=sys.stderr)
    if args.no_wait:
        print(f"  ray job logs --follow {job}\n  ray job stop {job}", file=sys.stderr)
        return 0
    print("its log follows; Ctrl-C stops the job, closing the terminal does not", file=sys.stderr)
    return follow(client, job)


def _verb(command: Sequence[str]) -> tuple[str, list[str]]:
    words = list(command[1:] if command[:1] == ["--"] else command)
    if words[:1] == ["openrlhf-ada"]:
        del words[0]
    if not words or words[0] not in OUTPUTS:
        raise ConfigError(
            "the command", " ".join(words[:1]), f"expected one of: {', '.join(OUTPUTS)}", f"Try {PROG} train --help"
        )
    return words[0], words[1:]


def with_outputs(verb: str, arguments: Sequence[str]) -> list[str]:
    """The arguments, with checkpoints and model below the run directory where nothing else is said.

    Raises ConfigError for results that would go into the job's working folder, which Ray deletes.
    """
    named = {name.replace("--ada.", "--ada_"): value for name, value in _named(arguments)}
    added: list[str] = []
    run_dir = named.get("--ada_run_dir")
    if verb == "train" and run_dir:
        for flag, name in (("--ckpt.path", "ckpt"), ("--ckpt.output_dir", "model")):
            if flag not in named:
                named[flag] = f"{run_dir}/{name}"
                added += [flag, named[flag]]
    for flag in OUTPUTS[verb]:
        if not os.path.isabs(named.get(flag, "")):
            raise ConfigError(
                flag,
                named.get(flag),
                "the job's working folder is deleted after it, with all that is written there",
                "Name an absolute path on storage that all nodes reach",
            )
    return [*arguments, *added]


def _named(arguments: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if part.startswith("--"):
            name, is_joined, value = part.partition("=")
            pairs.append((name, value if is_joined else following))
    return pairs


def _check_arguments(verb: str, arguments: Sequence[str]) -> None:
    """Settings are checked here, files by the job: they may be on the nodes only."""
    if verb != "train":
        return
    try:
        importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        logger.warning("OpenRLHF is not installed here: the flags are checked on the cluster")
        return
    from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
    from openrlhf_ada.trainer.preflight import check_settings

    try:
        parse(arguments, check_settings)
    except USER_ERRORS as error:
        raise (
            error if isinstance(error, ConfigError) else ConfigError("train", "...", str(error), "See above")
        ) from error


def environment_of(names: Sequence[str]) -> dict[str, str]:
    """The variables that go along; raises ConfigError for one that is not set here."""
    environment = {"RAY_JOB_STOP_WAIT_TIME_S": STOP_WAIT_S}
    for word in names:
        name, has_value, value = word.partition("=")
        if not has_value and name not in os.environ:
            raise ConfigError("--env", name, "it is not set here", "Set it, or give its value: --env NAME=VALUE")
        environment[name] = value if has_value else os.environ[name]
    return environment


def _client(address: str | None) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError("ray", None, f"it is not installed here ({error})", 'pip install "ray[default]"') from error
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        where = address or "none given"
        raise ConfigError(
            "--address", where, f"no Ray answers there ({error})", "Give the URL of the head's dashboard, port 8265"
        ) from error


def _submit(client: Any, entrypoint: str, files: JobFiles, environment: dict[str, str], name: str | None) -> str:
    # What is named is wanted, whatever some .gitignore says.
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"
    logging.getLogger("ray").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="openrlhf-ada-job-") as folder:
        files.stage(Path(folder))
        return client.submit_job(
            entrypoint=entrypoint, submission_id=name, runtime_env={"working_dir": folder, "env_vars": environment}
        )


def follow(client: Any, job: str) -> int:
    """Show the job's log until it ends; stop it on Ctrl-C and SIGTERM. Returns its exit status."""

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signum)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        JobLog(client, job).show()
        status = _wait_for_end(client, job)
    except KeyboardInterrupt:
        print(f"{PROG}: stopping {job}", file=sys.stderr)
        client.stop_job(job)
        _wait_for_end(client, job)
        return EXIT_INTERRUPTED
    except (RuntimeError, OSError) as error:
        print(f"{PROG}: {error}\nThe job may go on: ray job logs --follow {job}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    info = client.get_job_info(job)
    if status.name != "SUCCEEDED":
        print(f"{PROG}: job {job}: {status.name.lower()}. {info.message or ''}", file=sys.stderr)
    return EXIT_FAILED if info.driver_exit_code is None else info.driver_exit_code


class JobLog:
    """Prints each character of a job's log once, over broken connections too."""

    TRIES, PAUSE_S = 10, 5.0

    def __init__(self, client: Any, job: str) -> None:
        self._client = client
        self._job = job
        self._shown = 0

    def show(self) -> None:
        """Until the job ends; raises RuntimeError or OSError when the cluster does not answer for long."""
        for attempt in range(1, self.TRIES + 1):
            try:
                asyncio.run(self._tail())
                return
            except (RuntimeError, OSError) as error:
                if attempt == self.TRIES:
                    raise
                logger.warning("the log of %s is interrupted (%s); trying again", self._job, error)
                time.sleep(self.PAUSE_S)

    async def _tail(self) -> None:
        """The cluster sends the log from its beginning."""
        seen = 0
        async for text in self._client.tail_job_logs(self._job):
            print(text[max(0, self._shown - seen) :], end="", flush=True)
            seen += len(text)
            self._shown = max(self._shown, seen)


def _wait_for_end(client: Any, job: str) -> Any:
    while not (status := client.get_job_status(job)).is_terminal():
        time.sleep(0.5)
    return status
