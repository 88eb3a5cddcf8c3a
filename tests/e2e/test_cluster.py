"""A running Ray cluster that is too small is refused; test_two_nodes.py has those that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import cluster
from conftest import LIMIT_S, ROOT, Toy, toy_flags

pytestmark = pytest.mark.e2e


def test_cluster_with_too_few_slots_is_refused(toy: Toy, tmp_path: Path) -> None:
    """The host would wait for its placement groups for ever."""
    flags = toy_flags(toy, tmp_path / "run", ada_mode="seq", ada_cluster_wait=2)
    with cluster(gpus=1) as started:
        done = subprocess.run(
            [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *flags],
            env=os.environ | {"RAY_ADDRESS": started.address}, cwd=ROOT, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr[-4000:]
    assert "waiting for nodes to join the Ray cluster: GPU 2 needed, 1 present" in done.stderr
    assert "error: the Ray cluster is too small: GPU 2 needed, 1 present" in done.stderr
    assert "1 policy + 1 vLLM engine" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
