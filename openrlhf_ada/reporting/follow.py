"""The report of a run that is going on: a server on this machine, whose page takes each new step by itself."""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from openrlhf_ada.reporting.jsonl import RunDamageError
from openrlhf_ada.reporting.report import report_page
from openrlhf_ada.reporting.run_log import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE
from openrlhf_ada.reporting.run_record import read_run

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class FollowedRun:
    """Page of a run, made anew when its record has grown."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._lock = run_dir, Lock()
        self._made_of, self._page = "", ""

    def version(self) -> str:
        """Another text for each state of the record."""
        files = [self._run_dir / name for name in (CONFIG_FILE, METRICS_FILE, SUMMARY_FILE)]
        return "-".join(str(file.stat().st_size) if file.exists() else "0" for file in files)

    def page(self) -> str:
        """Raises RunDamageError and FileNotFoundError as `read_run` does."""
        with self._lock:
            if (version := self.version()) != self._made_of:
                self._page, _ = report_page(read_run(self._run_dir), version)
                self._made_of = version
            return self._page


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, run: FollowedRun, *arguments: object) -> None:
        self._run = run
        super().__init__(*arguments)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        # A page of another site that has its name point here would ask for that name.
        if self.headers.get("Host", "").partition(":")[0] not in (LOOPBACK, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        try:
            made = {"/": self._run.page, "/version": self._run.version}.get(self.path)
            text = made() if made else None
        except (RunDamageError, FileNotFoundError) as error:
            logger.warning("%s", error)
            return self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))
        if text is None:
            return self.send_error(HTTPStatus.NOT_FOUND)
        body = text.encode("utf-8")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"text/{'html' if self.path == '/' else 'plain'}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing: a line every two seconds helps nobody."""


def server_of(run_dir: Path, port: int) -> ThreadingHTTPServer:
    """On this machine's loopback address alone; `serve_forever` runs it. `port`: 0 takes a free one.

    Raises FileNotFoundError and RunDamageError as `read_run` does, OSError where the port is taken.
    """
    run = FollowedRun(run_dir)
    run.page()
    return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, run))
