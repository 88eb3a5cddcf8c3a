"""A checkpoint that does not fit on its disk is refused before anything of it is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openrlhf_ada.platforms.folders import GIB, NoSpaceError, check_space, said_of_full
from openrlhf_ada.trainer.policy import AdaPolicyActor


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that every disk has free."""
    left = [10 * GIB]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=left[0]))
    return left


def test_room_is_looked_for_where_the_folder_will_be(free: list[int], tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet" / "there", 10 * GIB, "checkpoint 1")
    with pytest.raises(
        NoSpaceError, match=rf"checkpoint 1 takes about 10.50 GiB, and 10.00 GiB are free in {tmp_path} "
    ):
        check_space(tmp_path / "not" / "yet" / "there", 21 * GIB // 2, "checkpoint 1")


def test_a_full_folder_of_rays_is_named(free: list[int], tmp_path: Path) -> None:
    assert said_of_full(tmp_path) == ""
    free[0] = 1 << 20
    said = said_of_full(tmp_path)
    assert f"{tmp_path} is full (1 MiB free)" in said and "RAY_TMPDIR" in said


def test_a_relative_folder_is_looked_for_too(free: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_space(Path("checkpoints"), GIB, "checkpoint 1")


def policy(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, rank: int = 0, nodes: int = 1, without: bool = False
) -> Any:
    """1,000 trained numbers and 1,000 frozen ones, in half precision: 16,000 bytes."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    module = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(10, 100, dtype=torch.bfloat16)) for _ in range(2)])
    module[1].requires_grad_(False)
    actor: Any = AdaPolicyActor.__new__(AdaPolicyActor)
    args = SimpleNamespace(ckpt=SimpleNamespace(path=str(folder)), actor=SimpleNamespace(num_nodes=nodes))
    args.ds = SimpleNamespace(zero_stage=2, tensor_parallel_size=1)
    actor.strategy = SimpleNamespace(args=args)
    actor.actor = SimpleNamespace(model=SimpleNamespace(module=module))
    actor.disable_ds_ckpt = without
    return actor


def test_a_checkpoint_is_weights_and_what_adam_keeps_of_the_trained_ones(
    free: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free[0] = 16_000
    policy(monkeypatch, tmp_path)._check_space("checkpoint 1")
    free[0] = 15_999
    with pytest.raises(NoSpaceError, match=r"checkpoint 1 takes about 0\.00 GiB"):
        policy(monkeypatch, tmp_path)._check_space("checkpoint 1")


@pytest.mark.parametrize("otherwise", [{"nodes": 2}, {"rank": 1}, {"without": True}])
def test_nobody_is_refused_who_may_have_room(
    otherwise: dict[str, Any], free: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nodes may each have a disk; the first process looks; without DeepSpeed's states there is nothing to write."""
    free[0] = 8_000
    policy(monkeypatch, tmp_path, **otherwise)._check_space("checkpoint 1")
