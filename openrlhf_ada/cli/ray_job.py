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

from openrlhf_ada.flags import ConfigError
from openrlhf_ada.platforms.job_files import JobFiles

logger = logging.getLogger(__name__)

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 130, 143


class UnreachableError(RuntimeError):
    """The cluster does not answer, or not as it should."""


@contextlib.contextmanager
def reaching() -> Iterator[None]:
    """What Ray's client raises for a cluster that is away, refuses or is lost, as UnreachableError."""
    import aiohttp
    from ray.exceptions import RayError

    try:
        yield
    except (RuntimeError, OSError, ValueError, RayError, aiohttp.ClientError) as error:
        raise UnreachableError(" ".join(str(error).split()) or type(error).__name__) from error


def connect(address: str | None) -> Any:
    """Ray's client for jobs; raises ConfigError for an address that does not take any."""
    flag, given = "--address", address or "none given"
    if address is not None and not address.startswith(("http://", "https://")):
        raise ConfigError(flag, address, "it is the URL of a dashboard", f"Try {flag} http://{address}")
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError("ray", None, f"it is not installed here ({error})", 'pip install "ray[default]"') from error
    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        with reaching():
            return JobSubmissionClient(address)
    except UnreachableError as error:
        raise ConfigError(
            flag, given, f"no Ray takes jobs there ({error})", "Give the URL of the head's dashboard, port 8265"
        ) from error


def new_name() -> str:
    """Known before the job is, so that it can be stopped whenever it begins to be."""
    return f"openrlhf-ada-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def submit(client: Any, entrypoint: str, files: JobFiles, environment: dict[str, str], job: str) -> None:
    """Upload and start; raises UnreachableError, also where there is a job of that name."""
    # What is named is wanted, whatever some .gitignore says.
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"
    with tempfile.TemporaryDirectory(prefix="openrlhf-ada-job-") as folder, reaching():
        files.stage(Path(folder))
        client.submit_job(
            entrypoint=entrypoint, submission_id=job, runtime_env={"working_dir": folder, "env_vars": environment}
        )


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """SIGTERM raises KeyboardInterrupt meanwhile; yields a list that then holds it."""
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
    """Show the job's log until it ends; returns its exit status, 1 if it has none. Raises UnreachableError."""
    JobLog(client, job).show()
    status = _end(client, job)
    with reaching():
        info = client.get_job_info(job)
    if status.name != "SUCCEEDED":
        print(f"job {job}: {status.name.lower()}. {info.message or ''}", file=sys.stderr)
    return EXIT_FAILED if info.driver_exit_code is None else info.driver_exit_code


def stop(client: Any, job: str) -> None:
    """And wait until it has ended; raises UnreachableError."""
    with reaching():
        client.stop_job(job)
    _end(client, job)


def _end(client: Any, job: str) -> Any:
    with reaching():
        while not (status := client.get_job_status(job)).is_terminal():
            time.sleep(0.5)
    return status


class JobLog:
    """Prints each character of a job's log once, over broken connections too."""

    TRIES, PAUSE_S = 10, 5.0

    def __init__(self, client: Any, job: str) -> None:
        self._client = client
        self._job = job
        self._shown = 0

    def show(self) -> None:
        """Until the job ends; raises UnreachableError when the cluster does not answer for long."""
        for attempt in range(1, self.TRIES + 1):
            try:
                with reaching():
                    asyncio.run(self._tail())
                return
            except UnreachableError as error:
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
