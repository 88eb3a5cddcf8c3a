"""Real Ray clusters of several nodes on this machine: one raylet each, with logical GPUs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from shared_start import OF_SHARED_RAY

from openrlhf_ada.platforms.processes import kill_rest
from openrlhf_ada.platforms.vllm_plugin import RUN_VARIABLE

RAY = Path(sys.executable).with_name("ray")

START_S = 240.0

CLUSTER_VARIABLE = "CLUSTER_OF_TEST"
"""Folder of the cluster, in the environment of all of its processes but forked ones, whose stand-ins have it."""

NODE_VARIABLE = "NODE_OF_TEST"
"""Address of the node, likewise."""

IP_FLAG = "--node-ip-address="


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_until(condition: Callable[[], object], what: str, seconds: float = START_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


class Cluster:
    """`address`: of Ray. `dashboard`: the URL that takes jobs.

    As separate machines have, each node has its own address and its own folder for what Ray unpacks there.
    """

    def __init__(self, folder: str, *, gpus: int, cpus: int, dashboard: bool) -> None:
        port, self._dashboard_port = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.dashboard = f"http://127.0.0.1:{self._dashboard_port}"
        has_dashboard = (f"--dashboard-port={self._dashboard_port}",) if dashboard else ("--include-dashboard=false",)
        self._folder, self._next_ip = folder, 0
        # Other clusters of this machine may have the usual ports.
        ports = f"--port={port}", f"--ray-client-server-port={free_port()}"
        head = self._start(gpus, cpus, "--head", "--disable-usage-stats", *ports, *has_dashboard)
        self.nodes = [head]
        wait_until(lambda: listens(port) and (not dashboard or self._takes_jobs()), "Ray did not start")

    def add_node(self, *, gpus: int, cpus: int) -> subprocess.Popen[bytes]:
        """Returns when it has joined: two that join one machine at the same time get into each other's way."""
        # By their ids: of a node that was just lost, Ray says for a while that it lives.
        before = {row["node_id"] for row in self.living_nodes()}
        node = self._start(gpus, cpus, f"--address={self.address}")
        self.nodes.append(node)
        wait_until(lambda: {row["node_id"] for row in self.living_nodes()} - before, "the node did not join")
        return node

    def add_node_that_counts_its_gpus(self, *, cpus: int, **variables: str) -> None:
        """Returns at once, and needs no dashboard. `variables`: of its environment."""
        self.nodes.append(self._start(None, cpus, f"--address={self.address}", **variables))

    def living_nodes(self) -> list[dict[str, Any]]:
        return [row for row in self.get("/api/v0/nodes?detail=1&limit=100") if row["state"] == "ALIVE"]

    def living_actors(self) -> list[dict[str, Any]]:
        """Of all jobs: class_name, node_id, pid, ..."""
        return [row for row in self.get("/api/v0/actors?detail=1&limit=1000") if row["state"] == "ALIVE"]

    def get(self, path: str) -> list[dict[str, Any]]:
        """Rows of Ray's state API. On a busy machine it closes a connection now and then."""
        for _ in range(3):
            try:
                with urllib.request.urlopen(self.dashboard + path, timeout=30) as answer:
                    return json.load(answer)["data"]["result"]["result"]
            except OSError as error:
                failed = error
                time.sleep(1.0)
        raise AssertionError(
            f"the dashboard does not answer ({failed}); the ends of its logs:\n{self._dashboard_logs()}"
        )

    def _dashboard_logs(self) -> str:
        logs = sorted(Path(self._folder).glob("**/session_latest/logs/dashboard*"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs if log.is_file())

    def node_of(self, actor: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """`actor`: a row of `living_actors`."""
        (ip,) = [row["node_ip"] for row in self.living_nodes() if row["node_id"] == actor["node_id"]]
        return next(node for node in self.nodes if _ip_of(node) == ip)

    def lose(self, node: subprocess.Popen[bytes]) -> None:
        """All of its processes at once, as when a machine loses its power."""
        for process in psutil.process_iter(["environ"]):
            environment = process.info["environ"] or {}
            if (environment.get(CLUSTER_VARIABLE), environment.get(NODE_VARIABLE)) == (self._folder, _ip_of(node)):
                kill_rest([process], 0.0)
        node.wait()
        self.nodes.remove(node)

    def stop(self) -> None:
        started = [child for node in self.nodes for child in psutil.Process(node.pid).children(recursive=True)]
        for node in reversed(self.nodes):
            node.terminate()
            node.wait(timeout=60)
        kill_rest(started, 30.0)

    def _start(self, gpus: int | None, cpus: int, *flags: str, **variables: str) -> subprocess.Popen[bytes]:
        self._next_ip += 1
        ip = f"127.0.0.{self._next_ip}"
        command = [
            RAY, "start", "--block", *([] if gpus is None else [f"--num-gpus={gpus}"]), f"--num-cpus={cpus}",
            "--object-store-memory=500000000",
            f"--temp-dir={tempfile.mkdtemp(dir=self._folder)}", f"{IP_FLAG}{ip}",
            # Another Ray of this machine may have the usual port, and jobs go through the agent behind it.
            f"--dashboard-agent-listen-port={free_port()}", *flags,
        ]  # fmt: skip
        mine = os.environ | {CLUSTER_VARIABLE: self._folder, NODE_VARIABLE: ip} | variables
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=mine)

    def workers_of_runs(self) -> list[str]:
        """Command lines of its workers that run something, and of vLLM's processes: none is left after a run."""
        busy: list[str] = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            environment = process.info["environ"] or {}
            if environment.get(CLUSTER_VARIABLE) == self._folder and RUN_VARIABLE in environment:
                busy.append(" ".join(process.info["cmdline"] or ()))
        return busy

    def _takes_jobs(self) -> bool:
        try:
            with urllib.request.urlopen(self.dashboard + "/api/jobs/", timeout=5):
                return bool(self.living_nodes())
        except (urllib.error.URLError, OSError):
            return False


def _ip_of(node: subprocess.Popen[bytes]) -> str:
    assert isinstance(node.args, list)
    return next(str(part).removeprefix(IP_FLAG) for part in node.args if str(part).startswith(IP_FLAG))


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def cluster(*, gpus: int, cpus: int = 4, dashboard: bool = False) -> Iterator[Cluster]:
    """A head alone; ended with everything below it. Meanwhile nothing joins the Ray that tests share."""
    # Ray's sockets need a short path.
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ada-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        for name in OF_SHARED_RAY:
            patch.delenv(name, raising=False)
        started = Cluster(folder, gpus=gpus, cpus=cpus, dashboard=dashboard)
        try:
            yield started
        finally:
            started.stop()
