"""What a run that failed says of going on."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ada.cli.train_ppo_ray import how_to_resume
from openrlhf_ada.config import program


def args_with(path: Path) -> SimpleNamespace:
    return SimpleNamespace(ckpt=SimpleNamespace(path=str(path)))


def test_the_command_resumes_and_has_no_secret(tmp_path: Path) -> None:
    (tmp_path / "_actor").mkdir()
    (tmp_path / "_actor" / "latest").write_text("global_step4")
    words = [
        "--ada_mode",
        "seq",
        "--logger.wandb.key",
        "canary",
        "--ckpt.load_enable",
        "--data.prompt_dataset",
        "my file",
    ]
    line = how_to_resume(words, args_with(tmp_path))
    head, _, command = line.partition(": ")
    assert head == "Resume it from its last checkpoint, global_step4"
    assert shlex.split(command) == [
        *shlex.split(program.called()), "train", "--ada_mode", "seq",
        "--logger.wandb.key", "<removed>", "--data.prompt_dataset",
        "my file", "--ckpt.load_enable",
    ]  # fmt: skip


def test_without_a_checkpoint_it_says_so(tmp_path: Path) -> None:
    # As a run leaves it that is ended while it writes its first checkpoint.
    (tmp_path / "_actor" / "global_step2").mkdir(parents=True)
    line = how_to_resume([], args_with(tmp_path))
    assert line == f"There is no checkpoint to resume from in {tmp_path} (--ckpt.path, --ckpt.save_steps)."
