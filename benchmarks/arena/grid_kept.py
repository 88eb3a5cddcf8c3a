"""Keep the trials of a grid in one small file, which git and the page of results can hold."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.arena.folders import LINES, SETTINGS, read_settings
from benchmarks.arena.grid import Cell, Trials

KEPT = Path(__file__).parent / "results" / "grid.jsonl.gz"


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for a folder that is no grid."""
    args = build_parser(prog).parse_args(argv)
    if not (args.folder / SETTINGS).exists():
        raise ValueError(
            f"{args.folder} holds no grid (no {SETTINGS}). Name the --out of python -m benchmarks.arena grid"
        )
    keep(args.folder, args.out)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("folder", type=Path, help="of a grid")
    parser.add_argument("--out", type=Path, default=KEPT, metavar="FILE", help="default: that of this repository")
    return parser


def keep(folder: Path, file: Path) -> None:
    """Write all trials of the folder, with how they were made."""
    trials = Trials(folder)
    lines = [read_settings(folder, ("trials",)), *(trials.by_cell[cell] for cell in sorted(trials.by_cell))]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    # Without a time, so that the same trials give the same file.
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def begin_with(file: Path, folder: Path) -> None:
    """Let a new folder have the trials of the file. Raises ValueError for one that is not new."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--kept begins a new folder, and {folder} holds something. Leave --kept out to go on there")
    folder.mkdir(parents=True, exist_ok=True)
    settings, _, lines = gzip.decompress(file.read_bytes()).partition(b"\n")
    (folder / LINES).write_bytes(lines)
    (folder / SETTINGS).write_bytes(settings)


def kept(file: Path = KEPT) -> tuple[dict[str, Any], Trials]:
    """(how trials were made, trials)."""
    settings, *lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    trials, names = Trials(file.parent / "none"), [field.name for field in fields(Cell)]
    for line in lines:
        trials.by_cell[Cell(**{name: line[name] for name in names})] = line
    return settings, trials
