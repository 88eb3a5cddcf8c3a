"""Ray's own processes are watched, and one that is lost is named, with real processes in their place."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf_ada.platforms import ray_head
from openrlhf_ada.platforms.ray_head import RayHead
from openrlhf_ada.platforms.signals import unwound_by_signals


@pytest.fixture
def address() -> Iterator[str]:
    """Where somebody takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def gcs(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Stands for it by its name."""
    program = tmp_path / "gcs_server"
    shutil.copy(shutil.which("sleep") or "", program)
    process = subprocess.Popen([program, "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "LOOK_S", 0.05)


def verdict_after(sent: signal.Signals, process: subprocess.Popen[bytes], notes: list[str], address: str) -> str:
    head = RayHead(address, 0.5, 3, notes.append)
    with pytest.raises(KeyboardInterrupt), unwound_by_signals():
        head.start()
        process.send_signal(sent)
        # What waits in one call hears of it when that is over; Ray's looks every second.
        for _ in range(600):
            time.sleep(0.05)
    head.stop()
    head.join(30)
    return head.verdict


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_died_is_named_with_its_signal(
    gcs: subprocess.Popen[bytes], sent: signal.Signals, address: str
) -> None:
    verdict = verdict_after(sent, gcs, [], address)
    assert f"(pid {gcs.pid}) died" in verdict and verdict.endswith(sent.name)
    assert gcs.wait() == -sent, "its status is left to who has started it"


@pytest.mark.slow
def test_one_that_is_stopped_is_told_and_then_lost(gcs: subprocess.Popen[bytes], address: str) -> None:
    notes: list[str] = []
    verdict = verdict_after(signal.SIGSTOP, gcs, notes, address)
    assert f"GCS (pid {gcs.pid})" in verdict and "stopped" in verdict
    assert re.search(r"--ada_dead_after .*\b3 s", verdict)
    assert notes and f"`kill -CONT {gcs.pid}`" in notes[0]


def test_one_that_is_stopped_goes_on_when_the_run_ends(gcs: subprocess.Popen[bytes], address: str) -> None:
    gcs.send_signal(signal.SIGSTOP)
    os.waitpid(gcs.pid, os.WUNTRACED)
    head = RayHead(address, 10, 60, [].append)
    head.stop()
    gcs.terminate()
    assert gcs.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.usefixtures("gcs")
def test_one_that_takes_no_connections_is_lost() -> None:
    """Ray's GCS after SIGTERM: its process stays."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = RayHead(f"127.0.0.1:{server.getsockname()[1]}", 10, 60, [].append)
        with pytest.raises(KeyboardInterrupt), unwound_by_signals():
            head.start()
            time.sleep(0.5)
            assert head.verdict == ""
            server.close()
            for _ in range(600):
                time.sleep(0.05)
    head.stop()
    assert head.verdict == "Ray's GCS takes no connections any more (3 times in a row)"


def test_after_the_end_of_a_run_nothing_is_lost(gcs: subprocess.Popen[bytes], address: str) -> None:
    head = RayHead(address, 0.2, 0.6, [].append)
    head.start()
    head.stop()
    gcs.kill()
    head.join(30)
    assert not head.is_alive() and head.verdict == ""


def test_one_that_was_waited_for_ends_the_watch_without_a_traceback(
    gcs: subprocess.Popen[bytes], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits for its own processes at the end of a run, between two looks or in the middle of one."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    look = RayHead._is_refused

    def in_the_middle(head: RayHead) -> bool:
        gcs.kill()
        gcs.wait()
        return look(head)

    monkeypatch.setattr(RayHead, "_is_refused", in_the_middle)
    head = RayHead(address, 0.2, 0.6, [].append)
    # Somebody waits for it, and interrupts nothing here.
    monkeypatch.setattr(head, "_lose", lambda verdict: None)
    head.start()
    head.join(30)
    head.stop()
    assert not raised


def test_a_cluster_that_was_joined_is_not_watched(address: str) -> None:
    head = RayHead(address, 0.2, 0.6, [].append)
    head.start()
    head.join(30)
    assert not head.is_alive() and head.verdict == ""
