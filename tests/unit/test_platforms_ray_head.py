"""Ray's own processes are watched, and one that is lost is named, with real processes in their place."""

from __future__ import annotations

import shutil
import signal
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


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_died_is_named_with_its_signal(gcs: subprocess.Popen[bytes], sent: signal.Signals) -> None:
    head = RayHead([].append)
    with pytest.raises(KeyboardInterrupt), unwound_by_signals():
        head.start()
        gcs.send_signal(sent)
        # What waits in one call hears of it when that is over; Ray's looks every second.
        for _ in range(600):
            time.sleep(0.05)
    head.stop()
    head.join(30)
    assert f"(pid {gcs.pid}) died" in head.verdict and head.verdict.endswith(sent.name)
    assert gcs.wait() == -sent, "its status is left to who has started it"


def test_after_the_end_of_a_run_nothing_is_lost(gcs: subprocess.Popen[bytes]) -> None:
    head = RayHead([].append)
    head.start()
    head.stop()
    gcs.kill()
    head.join(30)
    assert not head.is_alive() and head.verdict == ""


def test_one_that_was_waited_for_ends_the_watch_without_a_traceback(
    gcs: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits for its own processes at the end of a run, between two looks."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    head = RayHead([].append)
    # Somebody waits for it, and interrupts nothing here.
    lost: list[str] = []
    monkeypatch.setattr(head, "_lose", lost.append)
    gcs.kill()
    gcs.wait()
    head.start()
    head.join(30)
    assert not raised and "not known" in lost[0]


def test_a_cluster_that_was_joined_is_not_watched() -> None:
    head = RayHead([].append)
    head.start()
    head.join(30)
    assert not head.is_alive() and head.verdict == ""
