"""What a reward function was grading is known when its process is gone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from openrlhf_ada.rollout import running_rewards
from openrlhf_ada.rollout.running_rewards import RunningRewards

HANGS = """
import sys
from pathlib import Path
from openrlhf_ada.rollout.running_rewards import RunningRewards

running = RunningRewards(Path(sys.argv[1]), ["slow.py"])
with running.call("1+1= 2", "1+1=", "2"):
    pass
with running.call("9+9= " + "x" * 100_000, "9+9=", "18"):
    print("hangs", flush=True)
    # Keeps Python's lock, as a regular expression that never ends does.
    sum(range(10**12))
"""


def test_what_a_killed_process_was_grading_is_told_to_the_next(tmp_path: Path) -> None:
    file = tmp_path / "rewards.jsonl"
    process = subprocess.Popen([sys.executable, "-c", HANGS, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "hangs\n"
    process.kill()
    process.wait()
    left = RunningRewards(file, ["slow.py"]).left
    assert left.startswith("slow.py was grading the answer to '9+9=' (label '18') since ") and "1+1" not in left
    kept = tmp_path / f"rewards-of-pid-{process.pid}.jsonl"
    assert f"Whole: {kept} on " in left
    (call,) = map(json.loads, kept.read_text().splitlines())
    assert call["query"] == "9+9= " + "x" * 100_000
    assert RunningRewards(file, ["slow.py"]).left == "", "it is told once"


def test_the_first_process_has_nothing_before_it(tmp_path: Path) -> None:
    assert RunningRewards(tmp_path / "rewards.jsonl", ["slow.py"]).left == ""


def test_a_call_that_raises_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "rewards.jsonl"
    running = RunningRewards(file, ["slow.py"])
    with pytest.raises(KeyError), running.call("q", "p", None):
        raise KeyError
    assert RunningRewards(file, ["slow.py"]).left == ""


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rewards.jsonl"
    running = RunningRewards(file, ["slow.py"])
    with running.call("q", "p", None):
        with file.open("ab") as more:
            more.write(b'{"call": 2, "sin')
        assert "grading the answer to 'p' (label 'None')" in RunningRewards(file, ["slow.py"]).left


def test_calls_of_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written anew many times meanwhile, and names those that run, in the order in which they began."""
    monkeypatch.setattr(running_rewards, "FULL_BYTES", 2_000)
    file = tmp_path / "rewards.jsonl"
    running = RunningRewards(file, ["slow.py"])
    end = threading.Event()

    def stay(number: int) -> None:
        with running.call("", f"stays {number}", None):
            begun.release()
            end.wait()

    begun = threading.Semaphore(0)
    threads = [threading.Thread(target=stay, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
        begun.acquire()
    short_calls = [threading.Thread(target=lambda: [_pass(running) for _ in range(200)]) for _ in range(4)]
    for thread in short_calls:
        thread.start()
    for thread in short_calls:
        thread.join()
    assert file.stat().st_size < 4_000
    left = RunningRewards(_copy(file), ["slow.py"]).left
    assert all(f"'stays {number}'" in left for number in range(3)) and ", and 2 more. Whole: " in left
    end.set()
    for thread in threads:
        thread.join()
    assert file.read_bytes() == b""


def _pass(running: RunningRewards) -> None:
    with running.call("q" * 50, "short", None):
        pass


def _copy(file: Path) -> Path:
    copy = file.with_name("copy.jsonl")
    copy.write_bytes(file.read_bytes())
    return copy
