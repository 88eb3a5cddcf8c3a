"""A running Ray cluster is joined, and one that is too small is refused instead of waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import LIMIT_S, ROOT, Toy, check_ledger, pools_of_step, read_jsonl, steps_of, toy_flags

pytestmark = pytest.mark.e2e


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Ray started with `ray start`, with as many logical GPUs as the test asks for."""
    port = free_port()
    ray = Path(sys.executable).with_name("ray")
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ada-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [
            ray, "start", "--head", "--block", f"--port={port}", f"--temp-dir={folder}", "--num-cpus=4",
            f"--num-gpus={request.param}", "--include-dashboard=false", "--object-store-memory=1000000000",
        ]  # fmt: skip
        head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started = []
        try:
            wait_for(port)
            yield f"127.0.0.1:{port}"
            started = psutil.Process(head.pid).children(recursive=True)
        finally:
            head.terminate()
            head.wait(timeout=60)
            for process in psutil.wait_procs(started, timeout=30)[1]:
                process.kill()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("Ray did not start")


def train_on(address: str, flags: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *flags],
        env=os.environ | {"RAY_ADDRESS": address}, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_cluster_with_too_few_slots_is_refused(cluster: str, toy: Toy, tmp_path: Path) -> None:
    """The host would wait for its placement groups for ever."""
    done = train_on(cluster, toy_flags(toy, tmp_path / "run", ada_mode="seq"))
    assert done.returncode == 2, done.stderr[-4000:]
    assert "GPU 2 needed, 1 present" in done.stderr
    assert "1 policy + 1 vLLM engine" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_running_cluster_is_joined_and_left_running(cluster: str, toy: Toy, tmp_path: Path) -> None:
    """And `rloo` takes the other samples of the whole pool for its baseline."""
    run = tmp_path / "run"
    flags = toy_flags(
        toy, run, ada_mode="seq", ada_exit="pos", ada_wave=4, ada_max_samples=16, algo__advantage__estimator="rloo"
    )
    done = train_on(cluster, flags)
    assert done.returncode == 0, done.stderr[-4000:]
    wait_for(int(cluster.rsplit(":", 1)[1]))
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    assert {row["ada/group_scale"] for row in steps_of(run)} == {1.0}
    pools = pools_of_step(run, 1)
    for sample in read_jsonl(run / "samples.jsonl"):
        if sample["step"] == 1 and sample["kept"]:
            others = sum(pools[sample["key"]]) - sample["reward"]
            expected = sample["reward"] - others / (len(pools[sample["key"]]) - 1)
            assert sample["coefficient"] == pytest.approx(expected)
