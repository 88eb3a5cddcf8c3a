"""A reward server in OpenRLHF's protocol, which can fail in several ways."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAILURES = ("hangs", "answers nonsense", "answers 500")


class _Rewards(BaseHTTPRequestHandler):
    """Compares the answer with the label."""

    server: RewardServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        failure = self.server.failure(asked["labels"][0])
        if failure == "hangs":
            self.server.goes_on.wait()
        elif failure == "answers 500":
            self.send_error(500)
            return
        answer = asked["query"][0].removeprefix(asked["prompts"][0]).removesuffix("<eos>")
        body = json.dumps({"rewards": [float(answer.strip() == asked["labels"][0])]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"<html>nonsense" if failure == "answers nonsense" else body.encode())

    def log_message(self, *args: object) -> None: ...


class RewardServer(ThreadingHTTPServer):
    """Serves in a thread of its own until it is closed.

    `failure`: how it fails for a label, of FAILURES; "" if it does not. What hangs waits for `goes_on`.
    """

    # OpenRLHF opens a connection for every answer. A full queue drops them, and TCP waits for up to a minute.
    request_queue_size = 512
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        self.failure: Callable[[str], str] = lambda label: ""
        self.goes_on = threading.Event()
        super().__init__(("127.0.0.1", port), _Rewards)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of clients that have given up."""
