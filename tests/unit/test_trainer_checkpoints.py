"""Checkpoints on disk: which of them count, after a kill at any moment of writing one; and which are kept."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.trainer.checkpoints import (
    MANIFESTS,
    NoWholeCheckpointError,
    Origin,
    average_of,
    commit,
    discard,
    go_on_from,
    has_checkpoint,
    manifests,
    newest_whole,
    rotate,
)

ORIGIN = Origin({"train.seed": "1"}, "prompts")
FILES = ("_actor/{}/weights.pt", "_actor/{}/optimizer.pt", "_critic/{}/weights.pt", "_average/{}.safetensors")


def write(root: Path, tag: str) -> None:
    """As policy and critic do: nothing counts yet."""
    discard(root, tag)
    for name in FILES:
        path = root / name.format(tag)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for part in range(3):
                stream.write(f"{tag} {name} {part}".encode())
                stream.flush()


def save(root: Path, tag: str, *, keep: int = 9, metric: float | None = None, max_mem: float = 1000.0) -> None:
    write(root, tag)
    commit(root, tag, metric, ORIGIN)
    rotate(root, keep, max_mem)


def kept(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "_actor").iterdir() if path.is_dir())


def chosen(root: Path) -> str:
    choice = newest_whole(root)
    assert choice is not None
    return choice[0].tag


# -- a kill at any moment ---------------------------------------------------------------------------------------------


def killed_at(moment: int, root: Path, what: Callable[[], None]) -> bool:
    """Do it in a process of its own, which is killed at its n-th use of the file system. Was it?"""
    child = os.fork()
    if child == 0:
        count = 0

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event.split(".")[0] in ("open", "os", "shutil") and any(str(root) in str(each) for each in arguments):
                count += 1
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        try:
            what()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
def test_whenever_it_is_killed_a_whole_checkpoint_is_left(tmp_path: Path) -> None:
    """With one to keep. Before the new one counts it is the former; from then on the new one."""
    found: list[str] = []
    for moment in range(1, 1000):
        root = tmp_path / str(moment)
        save(root, "global_step1", keep=1)
        if not killed_at(moment, root, lambda root=root: save(root, "global_step2", keep=1)):
            break
        found.append(chosen(root))
        go_on_from(root, found[-1])
        assert (root / "_actor/latest").read_text() == (root / "_critic/latest").read_text() == found[-1]
        # A resumed run goes on and saves.
        save(root, "global_step3", keep=1)
        assert (chosen(root), kept(root)) == ("global_step3", ["global_step3"])
    assert len(found) >= 20
    switch = found.index("global_step2")
    assert found == ["global_step1"] * switch + ["global_step2"] * (len(found) - switch)
    assert min(switch, len(found) - switch) >= 8


@pytest.mark.slow
def test_whenever_the_first_is_killed_the_run_starts_anew_or_goes_on(tmp_path: Path) -> None:
    for moment in range(1, 1000):
        root = tmp_path / str(moment)
        if not killed_at(moment, root, lambda root=root: save(root, "global_step1")):
            assert moment > 20
            return
        if has_checkpoint(root):
            assert chosen(root) == "global_step1"
        # What was not finished is in nobody's way.
        save(root, "global_step2", keep=1)
        assert (chosen(root), kept(root)) == ("global_step2", ["global_step2"])


# -- damage -----------------------------------------------------------------------------------------------------------


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda root: flip_a_bit(root / "_actor/b/optimizer.pt"),
        "_actor/b/optimizer.pt was changed after it was written",
    ),
    (lambda root: flip_a_bit(root / "_average/b.safetensors"), "_average/b.safetensors was changed"),
    (lambda root: os.truncate(root / "_critic/b/weights.pt", 5), "_critic/b/weights.pt has 5 bytes instead of"),
    (lambda root: (root / "_critic/b/weights.pt").unlink(), "_critic/b/weights.pt is missing"),
    (lambda root: os.truncate(root / MANIFESTS / "b.json", 40), "_manifests/b.json cannot be read"),
    (lambda root: (root / MANIFESTS / "b.json").write_text("[]"), "_manifests/b.json cannot be read"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=["bit", "average", "cut", "missing", "manifest", "foreign"])
def test_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b")
    damage(tmp_path)
    choice = newest_whole(tmp_path)
    assert choice is not None and choice[0].tag == "a"
    ((tag, why),) = choice[1]
    assert tag == "b" and why.startswith(said)


def test_without_a_whole_one_all_are_named(tmp_path: Path) -> None:
    for tag in ("a", "b"):
        save(tmp_path, tag)
        flip_a_bit(tmp_path / f"_actor/{tag}/weights.pt")
    with pytest.raises(NoWholeCheckpointError, match=r"^b: _actor/b/weights.pt was .*; a: _actor/a/weights.pt was "):
        newest_whole(tmp_path)


def test_without_manifests_there_is_no_choice(tmp_path: Path) -> None:
    write(tmp_path, "a")
    assert newest_whole(tmp_path) is None and not has_checkpoint(tmp_path)
    (tmp_path / "_actor/latest").write_text("a")
    assert has_checkpoint(tmp_path), "one that OpenRLHF wrote"


def test_order_is_that_of_writing_whatever_the_clock_says(tmp_path: Path) -> None:
    """A run that went back to step 1 writes step 2 again; step 9 was of its former life."""
    save(tmp_path, "global_step9")
    save(tmp_path, "global_step2")
    for path in tmp_path.rglob("*global_step2*"):
        os.utime(path, (0, 0))
    assert chosen(tmp_path) == "global_step2"


def test_manifest_has_every_file_and_where_it_comes_from(tmp_path: Path) -> None:
    save(tmp_path, "a", metric=0.5)
    (manifest,) = manifests(tmp_path)
    assert sorted(manifest.files) == sorted(name.format("a") for name in FILES)
    assert (manifest.metric, manifest.origin) == (0.5, ORIGIN)
    row = json.loads((tmp_path / MANIFESTS / "a.json").read_text())
    assert {name: size for name, (size, _) in row["files"].items()} == {
        name: (tmp_path / name).stat().st_size for name in row["files"]
    }


# -- which are kept ---------------------------------------------------------------------------------------------------


def test_the_oldest_goes_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, f"global_step{step}", keep=2)
    assert kept(tmp_path) == ["global_step2", "global_step3"]
    assert not list(tmp_path.rglob("*global_step1*"))


def test_the_worst_goes_before_the_oldest_and_the_newest_stays(tmp_path: Path) -> None:
    for step, metric in enumerate((0.5, 0.2, 0.9, 0.1)):
        save(tmp_path, f"global_step{step}", keep=2, metric=metric)
    assert kept(tmp_path) == ["global_step2", "global_step3"]


def test_one_that_was_not_finished_goes_first(tmp_path: Path) -> None:
    save(tmp_path, "global_step1", keep=2)
    write(tmp_path, "global_step2")
    save(tmp_path, "global_step3", keep=2)
    assert kept(tmp_path) == ["global_step1", "global_step3"]


def test_the_best_stays_until_a_better_one_is_whole(tmp_path: Path) -> None:
    save(tmp_path, "best_global_step1", keep=1, metric=0.3)
    save(tmp_path, "global_step1", keep=1, metric=0.3)
    write(tmp_path, "best_global_step2")
    assert kept(tmp_path) == ["best_global_step1", "best_global_step2", "global_step1"]
    commit(tmp_path, "best_global_step2", 0.4, ORIGIN)
    rotate(tmp_path, 1, 1000)
    assert kept(tmp_path) == ["best_global_step2", "global_step1"]


def test_too_much_on_disk_leaves_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, f"global_step{step}", max_mem=1e-9)
    assert kept(tmp_path) == ["global_step3"]


def test_average_lies_beside_them(tmp_path: Path) -> None:
    assert average_of(tmp_path, "a") == tmp_path / "_average/a.safetensors"
