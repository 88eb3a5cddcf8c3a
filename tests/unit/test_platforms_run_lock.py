"""A folder that a run has, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms import folders
from openrlhf_ada.platforms.folders import hold

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from openrlhf_ada.platforms.folders import hold
hold(Path(sys.argv[1]), "--ada_run_dir")
hold(Path(sys.argv[1]) / "." / "", "--ckpt.path")
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_folder_is_free_when_its_process_is_gone(tmp_path: Path) -> None:
    """Killed, with a child that lives on."""
    folder = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(ConfigError, match=rf"process {holder.pid} on {os.uname().nodename}") as error:
            hold(folder, "--ada_run_dir")
        assert error.value.value == str(folder)
        holder.kill()
        holder.wait()
        hold(folder, "--ada_run_dir")
        assert f"process {os.getpid()} " in (folder / folders.LOCK_FILE).read_text()
    finally:
        os.kill(child, 9)
        holder.kill()


def test_where_nothing_can_be_written_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="nothing can be written there") as error:
        hold(tmp_path / "file" / "run", "--ckpt.path")
    assert error.value.flag == "--ckpt.path"
