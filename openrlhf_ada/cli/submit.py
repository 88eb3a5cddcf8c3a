"""Run `train`, `eval` or `prepare-data` as a job on a Ray cluster: the same command line with `submit` before it.

This package and the files that the command line names by relative paths are uploaded. OpenRLHF, vLLM and their
dependencies must be installed on the nodes. The job's log is shown here, and its exit status is this command's.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.ray_job import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    NoReaderError,
    UnreachableError,
    connect,
    follow,
    new_job_name,
    sigterm_interrupts,
    stop,
    submit,
)
from openrlhf_ada.cli.verbs import VERBS
from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.config.other_runs import self_contained
from openrlhf_ada.config.schema import MATCHED
from openrlhf_ada.config.visible import REMOVED
from openrlhf_ada.platforms.job_files import MIB, PATH_FLAGS, POSITIONAL, JobFiles, files_of
from openrlhf_ada.reporting.redaction import FROM_ENVIRONMENT, hides_secret, looks_secret

logger = logging.getLogger(__name__)

PROG = "openrlhf-ada submit"

OUTPUTS = {
    "train": ("--ada_run_dir", "--ckpt.path", "--ckpt.output_dir"),
    "eval": ("--out",),
    "prepare-data": ("--out",),
}
"""Verbs that can be submitted, and their flags that name where results go."""

STOP_WAIT_S = "30"
"""Seconds that a stopped run has to end its processes. Ray's default of 3 is too short for large models."""

EXIT_BAD_INPUT = 2


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
        help="URL of the cluster's dashboard. Default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or http://127.0.0.1:8265",
    )
    parser.add_argument(
        "--upload",
        action="append",
        default=[],
        metavar="PATH",
        help="upload this file or folder as well; may be repeated",
    )
    parser.add_argument("--max-upload", type=float, default=100.0, metavar="MIB", help="largest upload in MiB (100)")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable for all processes of the job; a name alone takes its value from here. No other "
        "variables are passed. May be repeated. Ray's dashboard shows them",
    )
    parser.add_argument("--python", default="python", help="Python interpreter on the nodes (python)")
    parser.add_argument("--id", help="name of the job on the cluster. Default: Ray chooses one")
    parser.add_argument("--no-wait", action="store_true", help="return as soon as the job is submitted")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the job's exit status (1: it has none, 2: bad input, 130: Ctrl-C, 143: SIGTERM)."""
    args = build_parser().parse_args(argv)
    try:
        verb, arguments = _verb(args.command)
        if arguments in (["-h"], ["--help"]):
            return _help(verb)
        arguments = [_without_directory(word) for word in with_outputs(verb, arguments)]
        check_arguments(verb, arguments)
        files = files_of(verb, with_paths_only(verb, arguments), args.upload, Path.cwd())
        files.check(args.max_upload)
        environment = environment_of(args.env)
        client = connect(args.address)
        entrypoint = shlex.join([args.python, "-m", "openrlhf_ada.cli.main", verb, *arguments])
        return _run(client, entrypoint, files, environment, args.id or new_job_name(), waits=not args.no_wait)
    except ConfigError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(client: Any, entrypoint: str, files: JobFiles, environment: dict[str, str], job: str, *, waits: bool) -> int:
    with sigterm_interrupts() as received:
        try:
            submit(client, entrypoint, files, environment, job)
            print(f"job {job}: {len(files.files)} files uploaded ({files.num_bytes / MIB:.1f} MiB)", file=sys.stderr)
            if not waits:
                print(f"  ray job logs --follow {job}\n  ray job stop {job}", file=sys.stderr)
                return 0
            print("its log follows; Ctrl-C stops the job, closing the terminal does not", file=sys.stderr)
            return follow(client, job)
        except UnreachableError as error:
            print(
                f"{PROG}: {error}\nIf job {job} was started, it continues: ray job logs --follow {job}",
                file=sys.stderr,
            )
            return EXIT_FAILED
        except NoReaderError:
            # Python would print another error when it flushes stdout at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            print(
                f"{PROG}: the log has no reader any more; the job continues: ray job logs --follow {job}",
                file=sys.stderr,
            )
            return EXIT_FAILED
        except KeyboardInterrupt:
            return _stop(client, job, EXIT_TERMINATED if received else EXIT_INTERRUPTED)


def _stop(client: Any, job: str, status: int) -> int:
    print(f"{PROG}: stopping {job}", file=sys.stderr)
    try:
        stop(client, job)
    except (UnreachableError, KeyboardInterrupt) as error:
        # Not started yet, not reachable, or the user pressed Ctrl-C again.
        print(f"{PROG}: {job} may still run ({error}): ray job stop {job}", file=sys.stderr)
    return status


def _help(verb: str) -> int:
    return VERBS[verb].run(["--help"])


def _without_directory(word: str) -> str:
    """`matched:DIR` of --ada_objective with that run's figures in place of DIR, which exists on this machine only."""
    flag, _, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if not value.startswith(MATCHED):
        return word
    return f"{flag}={self_contained(value)}" if flag else self_contained(value)


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
    """The arguments, with checkpoints and model below the run directory unless flags name other places.

    Raises ConfigError for results that would go into the job's working folder, which Ray deletes.
    """
    named = {flag: words[0] if words else "" for flag, words in words_by_flag(arguments)}
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


def check_arguments(verb: str, arguments: Sequence[str]) -> None:
    """Check the flags. Files are checked by the job, because they may be on the nodes only. Raises ConfigError."""
    for flag, words in words_by_flag(arguments):
        if any(hides_secret(word) for word in words):
            raise ConfigError(
                flag or POSITIONAL,
                REMOVED,
                "its address has a login or a key, and Ray's dashboard shows the command lines of jobs to everyone",
                "Let a file of yours read it from a variable that --env passes on",
            )
        if flag and looks_secret(flag) and set(words) - {"", FROM_ENVIRONMENT}:
            raise ConfigError(
                flag,
                REMOVED,
                "Ray's dashboard shows the command lines of jobs to everyone who reaches it",
                f"Give {flag} {FROM_ENVIRONMENT}, and the key with --env (WANDB_API_KEY)",
            )
    if not _can_check():
        logger.warning("OpenRLHF is not installed here: the flags are checked on the cluster")
        return
    if verb != "train":
        _parsed(verb, arguments)
        return
    from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
    from openrlhf_ada.trainer.preflight import check_without_files

    try:
        parse(arguments, check_without_files)
    except USER_ERRORS as error:
        raise (
            error if isinstance(error, ConfigError) else ConfigError("train", "...", str(error), "See above")
        ) from error


def _can_check() -> bool:
    try:
        importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _parsed(verb: str, arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments as the verb's own parser and checks read them; raises ConfigError or SystemExit."""
    from openrlhf_ada.cli import evaluate, prepare_data

    module = {"eval": evaluate, "prepare-data": prepare_data}[verb]
    parsed = module.build_parser().parse_args(arguments)
    try:
        module.check_flags(parsed)
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(verb, "...", str(error), "See above") from error
    return parsed


def with_paths_only(verb: str, arguments: Sequence[str]) -> list[str]:
    """The arguments of `eval` and `prepare-data` that may be files, positional ones first."""
    if verb == "train" or not _can_check():
        return list(arguments)
    values = vars(_parsed(verb, arguments))
    words = list(values.get("source", ()))
    for flag in PATH_FLAGS[verb]:
        value = values.get(flag.removeprefix("--"))
        if value:
            words += [flag, *([value] if isinstance(value, str) else value)]
    return words


def environment_of(names: Sequence[str]) -> dict[str, str]:
    """The job's environment variables; raises ConfigError for one that is not set here."""
    environment = {"RAY_JOB_STOP_WAIT_TIME_S": STOP_WAIT_S}
    for word in names:
        name, has_value, value = word.partition("=")
        if not name:
            raise ConfigError("--env", word, "it has no name", "Give NAME, or NAME=VALUE")
        if not has_value and name not in os.environ:
            raise ConfigError("--env", name, "it is not set here", "Set it, or give its value: --env NAME=VALUE")
        environment[name] = value if has_value else os.environ[name]
    return environment
