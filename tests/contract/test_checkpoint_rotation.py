"""Which checkpoints are kept is what OpenRLHF keeps; only the order differs: it removes first and writes then."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime.engine import DeepSpeedEngine
from openrlhf.utils.deepspeed import deepspeed as host

from openrlhf_ada.trainer.checkpoints import Origin, commit, rotate


class Engine(DeepSpeedEngine):
    """Writes a folder."""

    def __init__(self) -> None: ...

    def __del__(self) -> None: ...

    def save_checkpoint(self, save_dir: Any, tag: Any = None, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        write(Path(save_dir) / tag)


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "weights.pt").write_text(folder.name)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_kept_are_those_that_openrlhf_keeps(
    keep: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "torch_dist_barrier_and_cuda_sync", lambda: None)
    # A busy disk takes long, and nothing is lost here.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    strategy: Any = host.DeepspeedStrategy.__new__(host.DeepspeedStrategy)
    strategy.is_rank_0 = lambda: True
    strategy.print = lambda *_: None
    rng, theirs, ours = random.Random(seed), tmp_path / "theirs", tmp_path / "ours"
    for step in range(12):
        metric = rng.choice([None, round(rng.random(), 1), round(rng.random(), 1)])
        tag = f"best_global_step{step}" if metric is not None and rng.random() < 0.3 else f"global_step{step}"
        strategy.save_ckpt(Engine(), str(theirs), tag, keep, 1000, metric_value=metric, metric_key="accuracy")
        write(ours / "_actor" / tag)
        commit(ours, tag, metric, Origin({}, ""))
        rotate(ours, keep, 1000)
        kept = [
            sorted(path.name for path in folder.iterdir() if path.is_dir()) for folder in (theirs, ours / "_actor")
        ]
        assert kept[0] == kept[1], f"after {tag}"
