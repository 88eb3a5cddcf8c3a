"""A headless Chromium, to look at pages as a reader does: what they show, what they complain of, how they look."""

from __future__ import annotations

import base64
import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

PATIENCE_S = 60.0
"""For a slow machine; a page that is right answers in a fraction of it."""

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)


class Page:
    """One tab, driven by Chromium's DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; what the page says meanwhile is noted."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_S))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, said = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.complaints.append(said["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.complaints.append(" ".join(str(part.get("value", part.get("description"))) for part in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(self, address: str) -> None:
        """Returns when the page is loaded."""
        self.complaints, self.requests = [], []
        self.call("Page.navigate", url=address)
        self.wait_for(f"location.href != 'about:blank' && document.readyState == 'complete' /* {address} */")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']['exception']['description']}")
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The first value that is true; raises TimeoutError."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"never true: {expression}")

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Size of the window in pixels, and whether the reader prefers dark pages."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        """Write what is in the window as a PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A page in a browser of its own, which ends with it. Raises RuntimeError where there is no Chromium."""
    if CHROMIUM is None:
        raise RuntimeError("there is no Chromium on the path")
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *QUIET, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_address(Path(profile) / "DevToolsActivePort"), max_size=None) as socket:
                yield Page(socket)
        finally:
            process.kill()
            process.wait()


class _SilentHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of a server of these files on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_SilentHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _address(port_file: Path) -> str:
    """Of the first tab's socket."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if port_file.exists() and port_file.read_text().count("\n"):
            port = port_file.read_text().split("\n")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise TimeoutError("Chromium did not start")
