"""What a reward function was grading is known when its process is gone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

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
    folder = tmp_path / "rewards"
    process = subprocess.Popen([sys.executable, "-c", HANGS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "hangs\n"
    process.kill()
    process.wait()
    (folder / "cut.json").touch()
    left = RunningRewards(folder, ["slow.py"]).left
    assert left.startswith("slow.py was grading the answer to '9+9=' (label '18'). ") and "1+1" not in left
    (kept,) = set(tmp_path.iterdir()) - {folder}
    assert f"{kept} on " in left
    assert [json.loads(file.read_text())["query"] for file in kept.glob("0*")] == ["9+9= " + "x" * 100_000]
    assert RunningRewards(folder, ["slow.py"]).left == "", "it is told once"


def test_a_call_that_raises_has_ended(tmp_path: Path) -> None:
    running = RunningRewards(tmp_path / "rewards", ["slow.py"])
    assert running.left == "", "nothing was before it"
    with pytest.raises(KeyError), running.call("q", "p", None):
        raise KeyError
    assert RunningRewards(tmp_path / "rewards", ["slow.py"]).left == ""


def test_calls_of_many_threads(tmp_path: Path) -> None:
    """Those that run are named in the order in which they began."""
    folder, copy = tmp_path / "rewards", tmp_path / "copy"
    running = RunningRewards(folder, ["slow.py"])

    def call_often() -> None:
        for _ in range(200):
            with running.call("q" * 50, "short", None):
                pass

    with ExitStack() as stack:
        for number in range(5):
            stack.enter_context(running.call("", f"stays {number}", None))
        threads = [threading.Thread(target=call_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shutil.copytree(folder, copy)
    left = RunningRewards(copy, ["slow.py"]).left
    assert all(f"'stays {number}'" in left for number in range(3)) and ", and 2 more" in left and "short" not in left
    assert list(folder.iterdir()) == []
