"""A job on a Ray cluster: reach its dashboard, submit, show the log, stop, and say how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.installed import REMEDY
from openrlhf_ada.platforms.job_files import JobFiles

logger = logging.getLogger(__name__)

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 130, 143

ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables from which Ray's client takes an address, even if it is given another one."""


class UnreachableError(RuntimeError):
    """The cluster does not answer, or not as it should."""


class NoReaderError(Exception):
    """The reader of our output has closed it."""


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Raises UnreachableError for what Ray's client raises if a cluster is away, refuses, or is lost."""
    import aiohttp
    from ray.exceptions import RayError

    try:
        yield
    except (RuntimeError, OSError, ValueError, RayError, aiohttp.ClientError) as error:
        raise UnreachableError(" ".join(str(error).split()) or type(error).__name__) from error


def connect(address: str | None) -> Any:
    """Ray's client for jobs; raises ConfigError for an address that does not take any."""
    flag, given = "--address", address or "none given"
    if address is not None:
        if not address.startswith(("http://", "https://")):
            host = address.rpartition("://")[2] or "HEAD:8265"
            raise ConfigError(flag, address, "it is the URL of a dashboard", f"Try {flag} http://{host}")
        for name in ADDRESSES:
            os.environ.pop(name, None)
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError("ray", None, f"it is not installed here ({error})", REMEDY) from error
    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        with cluster_errors():
            return JobSubmissionClient(address)
    except UnreachableError as error:
        raise ConfigError(
            flag, given, f"no Ray takes jobs there ({error})", "Give the URL of the head's dashboard, port 8265"
        ) from error


def new_job_name() -> str:
    """A job name chosen by the client, so that Ctrl-C can stop a job that is not confirmed yet."""
    return f"openrlhf-ada-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def submit(client: Any, entrypoint: str, files: JobFiles, environment: dict[str, str], job: str) -> None:
    """Upload the files and start the job.

    Raises UnreachableError, also if there is a job of that name, and ConfigError for a file that cannot be read.
    """
    # Upload every named file, even if a .gitignore or Ray's own list excludes it.
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"
    os.environ["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""
    with tempfile.TemporaryDirectory(prefix="openrlhf-ada-job-") as folder:
        files.stage(Path(folder))
        with cluster_errors():
            client.submit_job(
                entrypoint=entrypoint, submission_id=job, runtime_env={"working_dir": folder, "env_vars": environment}
            )


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """SIGTERM raises KeyboardInterrupt inside; yields a list that then holds the signal."""
    received: list[int] = []

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def follow(client: Any, job: str) -> int:
    """Show the job's log until it ends; returns its exit status, 1 if it has none, and 128 + N for signal N.

    Raises UnreachableError, and NoReaderError when the log's reader is gone.
    """
    JobLog(client, job).show()
    with cluster_errors():
        info = client.get_job_info(job)
    if info.status.name != "SUCCEEDED":
        print(f"job {job}: {info.status.name.lower()}. {info.message or ''}", file=sys.stderr)
    code = info.driver_exit_code
    if code is None:
        return EXIT_FAILED
    return code if code >= 0 else 128 - code


def stop(client: Any, job: str) -> None:
    """Stop the job and wait until it has ended; raises UnreachableError."""
    with cluster_errors():
        client.stop_job(job)
        while not client.get_job_status(job).is_terminal():
            time.sleep(0.5)


class JobLog:
    """Prints each character of a job's log once, over broken connections too."""

    TRIES, PAUSE_S = 10, 5.0

    def __init__(self, client: Any, job: str) -> None:
        self._client = client
        self._job = job
        self._shown = 0

    def show(self) -> None:
        """Print until the job ends; raises UnreachableError after TRIES failed attempts, and NoReaderError."""
        failures = 0
        while True:
            shown = self._shown
            try:
                with cluster_errors():
                    asyncio.run(self._tail())
                    # A server that shuts down closes the log as cleanly as one whose job has ended.
                    if self._ends():
                        return
            except UnreachableError as error:
                failures = 1 if self._shown > shown else failures + 1
                if failures == self.TRIES:
                    raise
                logger.warning("the log of %s is interrupted (%s); trying again", self._job, error)
                time.sleep(self.PAUSE_S)

    def _ends(self) -> bool:
        """Does the job end within PAUSE_S?"""
        deadline = time.monotonic() + self.PAUSE_S
        while not self._client.get_job_status(self._job).is_terminal():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.5)
        return True

    async def _tail(self) -> None:
        """Print what is new. The cluster sends the log from its beginning."""
        seen = 0
        async for text in self._client.tail_job_logs(self._job):
            try:
                print(text[max(0, self._shown - seen) :], end="", flush=True)
            except BrokenPipeError as error:
                raise NoReaderError from error
            seen += len(text)
            self._shown = max(self._shown, seen)
