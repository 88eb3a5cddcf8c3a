"""Writes generated files and model directories so that nobody sees a half-written one."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.jsonl import write_atomically

logger = logging.getLogger(__name__)

MARKER = "openrlhf_ada_build.json"
"""Written last into a generated directory: its recipe and the size of every file, so that damage is noticed."""


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line (UTF-8), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def build_directory(out_dir: Path, recipe: Mapping[str, Any], fill: Callable[[Path], None]) -> Path:
    """Return `out_dir` with what `fill` writes; at once when it already holds a complete build of the same `recipe`.

    `fill` gets an empty directory beside `out_dir`, which is renamed once it is complete, so a killed build leaves no
    directory that looks finished. A build of another recipe, or a damaged one, is replaced; a directory that we did
    not make is not touched (FileExistsError).
    """
    out_dir = Path(out_dir)
    if _is_complete(out_dir, recipe):
        logger.info("%s is up to date", out_dir)
        return out_dir
    _check_replaceable(out_dir)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=out_dir.parent, prefix=f".{out_dir.name}.", ignore_cleanup_errors=True
    ) as name:
        fresh = Path(name) / "new"
        fresh.mkdir()
        fill(fresh)
        files = {str(p.relative_to(fresh)): p.stat().st_size for p in sorted(fresh.rglob("*")) if p.is_file()}
        content = json.dumps({"recipe": dict(recipe), "files": files}, indent=2)
        (fresh / MARKER).write_text(content + "\n", encoding="utf-8")
        # Two processes may build the same directory at once: the later one keeps what the first has built.
        if not _is_complete(out_dir, recipe):
            if out_dir.exists():
                out_dir.replace(Path(name) / "old")
            fresh.replace(out_dir)
    return out_dir


def _check_replaceable(out_dir: Path) -> None:
    if not out_dir.exists() or (out_dir / MARKER).is_file():
        return
    if not out_dir.is_dir() or any(out_dir.iterdir()):
        raise FileExistsError(
            f"{out_dir} is no empty folder and was not made by this program (no {MARKER}): remove it or name another"
        )


def _is_complete(directory: Path, recipe: Mapping[str, Any]) -> bool:
    try:
        content = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # absent or damaged: build (again)
    paths = {directory / name: size for name, size in content["files"].items()}
    whole = all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
    return whole and content["recipe"] == dict(recipe)
