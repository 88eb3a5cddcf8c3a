"""A server on this machine that speaks OpenAI's protocol, and can misbehave in the ways in which servers do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """`body`: text, or what becomes JSON; `after_s`: seconds until it is sent."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    closes: bool = False


def completion(text: str, reason: str = "stop", **more: Any) -> Reply:
    return Reply(body={"choices": [{"text": text, "finish_reason": reason}], "usage": {"completion_tokens": 3}} | more)


def chat(message: dict[str, Any], reason: str = "stop") -> Reply:
    return Reply(body={"choices": [{"message": message, "finish_reason": reason}], "usage": {"completion_tokens": 3}})


@dataclass
class StandIn:
    """`answer` gets each POST's JSON and the number of POSTs before it. `models`: what GET /v1/models gives."""

    answer: Callable[[dict[str, Any], int], Reply]
    key: str = ""
    models: Reply = field(default_factory=lambda: Reply(body={"data": [{"id": "toy"}]}))
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, path: str, authorization: str, request: dict[str, Any] | None) -> Reply:
        if self.key and authorization != f"Bearer {self.key}":
            return Reply(401, {"error": {"message": f"Incorrect API key provided: {authorization}"}})
        if request is None:
            return self.models if path == "/v1/models" else Reply(404, {"detail": "Not Found"})
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            self.paths.append(path)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            if path not in ("/v1/completions", "/v1/chat/completions"):
                return Reply(404, {"detail": "Not Found"})
            reply = self.answer(request, number)
            time.sleep(reply.after_s)
            return reply
        finally:
            with self._lock:
                self._running -= 1


class _Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


@contextmanager
def running(stand_in: StandIn) -> Iterator[StandIn]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, request: dict[str, Any] | None) -> None:
            reply = stand_in.handle(self.path, self.headers.get("Authorization", ""), request)
            body = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            if reply.closes:
                self.connection.close()
                return
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())
            except OSError:
                # The client has given up.
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
