"""`openrlhf-ada init DIR`: the files of a first run of one's own, to be changed."""

from __future__ import annotations

import argparse
import shlex
import string
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from openrlhf_ada.config import program
from openrlhf_ada.platforms import without_gpu

TEMPLATE = "run.yaml"
COPIED = ("reward.py", "prompts.jsonl", "heldout.jsonl")

ON_GPU = {
    "machine": "gpu.yaml",
    "model": "Qwen/Qwen2.5-0.5B-Instruct",
    "learning_rate": "1e-6",
    "max_new_tokens": "256",
}
ON_CPU = {"machine": "cpu.yaml", "model": "model", "learning_rate": "2e-5", "max_new_tokens": "16"}
"""The second model is written by `demo-model`, since a machine without GPU can train only a very small one."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ada init",
        description="Write run.yaml, reward.py, prompts.jsonl (ten rows) and heldout.jsonl: a first run of your own.",
    )
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder for them; files that are there stay as they are")
    return parser


def main(argv: Sequence[str]) -> int:
    """Returns the exit status. Raises FileExistsError rather than replacing a file, and NotADirectoryError."""
    folder: Path = build_parser().parse_args(argv).dir
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder")
    chosen = ON_CPU if without_gpu.is_needed() else ON_GPU
    texts = {name: _text(name) for name in COPIED} | {TEMPLATE: _filled(chosen)}
    for name in texts:
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} exists already; name another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder}: {', '.join(sorted(texts))}\n\nNext:")
    print("\n".join(f"  {line}" for line in _next_commands(folder, chosen)))
    return 0


def _text(name: str) -> str:
    return (resources.files("openrlhf_ada.demo") / "first_run" / name).read_text(encoding="utf-8")


def _filled(chosen: Mapping[str, str]) -> str:
    return string.Template(_text(TEMPLATE)).substitute({**chosen, "machine": _text(chosen["machine"]).strip()})


def _next_commands(folder: Path, chosen: Mapping[str, str]) -> list[str]:
    ours = program.called(elsewhere=True)
    make_model = [f"{ours} demo-model model   # SmolLM2-135M-Instruct, 269 MB"] if chosen is ON_CPU else []
    return [f"cd {shlex.quote(str(folder))}", *make_model, f"{ours} train --config {TEMPLATE}"]
