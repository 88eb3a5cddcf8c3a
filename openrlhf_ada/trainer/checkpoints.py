"""Checkpoints that count only when they are whole, and the one from which a resumed run goes on.

Policy and critic write a folder each, the average a file. A checkpoint counts as soon as its manifest is there, which
is written last and in one step: the size and checksum of every file, and the flags and data of its run. Older ones are
removed after that. So whenever a run is killed, the newest checkpoint with a manifest is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openrlhf_ada.host.checkpoints import CRITIC, POLICY, latest_tag, name_latest
from openrlhf_ada.reporting.jsonl import write_atomically
from openrlhf_ada.reporting.recorded_flags import NO_DIFFERENCE

MANIFESTS = "_manifests"
AVERAGE = "_average"

GIB = 1 << 30
CHUNK = 1 << 24
THREADS = 8
"""For checksums: `crc32` gives Python's lock free."""


class NoWholeCheckpointError(RuntimeError):
    """All checkpoints of a folder are damaged."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint is of. `flags`: values by dotted name. `data`: fingerprint of the training prompts."""

    flags: dict[str, str]
    data: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """`number`: of checkpoints in the order in which they were written, whatever the clock says. `metric`: of the
    evaluation before it, if there was one. `files`: (bytes, CRC-32) by path below --ckpt.path."""

    tag: str
    number: int
    metric: float | None
    files: dict[str, tuple[int, int]]
    origin: Origin


def average_of(root: Path, tag: str) -> Path:
    """Where the average of a checkpoint is (--train.enable_ema). `root`: --ckpt.path."""
    return root / AVERAGE / f"{tag}.safetensors"


def discard(root: Path, tag: str) -> None:
    """From here on a checkpoint of this name does not count: it is about to be written anew, or removed."""
    _manifest_of(root, tag).unlink(missing_ok=True)


def commit(root: Path, tag: str, metric: float | None, origin: Origin) -> None:
    """Let a checkpoint count whose files are all written."""
    number = 1 + sum(manifest.number for manifest in manifests(root)[-1:])
    found = Manifest(tag, number, metric, _checksums(root, _files_of(root, tag)), origin)
    path = _manifest_of(root, tag)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(found), indent=1).encode())
    go_on_from(root, tag)


def rotate(root: Path, max_num: float, max_mem: float) -> None:
    """Remove what is too much, by OpenRLHF's rules: of those that are not the best, first those without a metric, then
    the worst, then the oldest. The newest stays. `max_mem`: GiB of all checkpoints together."""
    known = {manifest.tag: manifest for manifest in manifests(root)}
    for tag in [tag for tag in known if tag.startswith("best")][:-1]:
        _remove(root, tag)
    newest = list(known)[-1]
    while True:
        tags = _tags(root)
        regular = [tag for tag in tags if not tag.startswith("best")]
        candidates = [tag for tag in regular if tag != newest]
        too_many = len(regular) > max(max_num, 1)
        size = sum(path.stat().st_size for tag in tags for path in _files_of(root, tag))
        if not candidates or not (too_many or size > max_mem * GIB):
            return
        _remove(root, min(candidates, key=lambda tag: _worth(known.get(tag))))


def _worth(manifest: Manifest | None) -> tuple[bool, float, int]:
    if manifest is None:
        return False, 0.0, 0
    return manifest.metric is not None, manifest.metric or 0.0, manifest.number


def newest_whole(root: Path) -> tuple[Manifest, list[tuple[str, str]]] | None:
    """The checkpoint to go on from, and newer ones with what is wrong with them; None where there is no manifest.

    Reads all of its files. Raises NoWholeCheckpointError.
    """
    passed_over = [(path.stem, found) for path in _paths(root) if isinstance(found := _read(path), str)]
    for manifest in reversed(manifests(root)):
        if (damage := _damage(root, manifest)) is None:
            return manifest, passed_over
        passed_over.append((manifest.tag, damage))
    if passed_over:
        raise NoWholeCheckpointError("; ".join(f"{tag}: {damage}" for tag, damage in passed_over))
    return None


def go_on_from(root: Path, tag: str) -> None:
    """Let policy and critic load this checkpoint."""
    for group in (POLICY, CRITIC):
        if (root / group / tag).is_dir():
            name_latest(root / group, tag)


def last_checkpoint(root: Path) -> str | None:
    """The newest of ours, whole or not; else one that names itself the latest, as OpenRLHF's do."""
    if known := manifests(root):
        return known[-1].tag
    return latest_tag(root / POLICY)


def has_checkpoint(root: Path) -> bool:
    """Is there one to go on from, or a damaged one to be told of?"""
    return bool(_paths(root)) or last_checkpoint(root) is not None


def manifests(root: Path) -> list[Manifest]:
    """Those that can be read, in the order in which they were written."""
    found = [found for path in _paths(root) if isinstance(found := _read(path), Manifest)]
    return sorted(found, key=lambda manifest: manifest.number)


def _paths(root: Path) -> list[Path]:
    return sorted((root / MANIFESTS).glob("*.json"))


def _read(path: Path) -> Manifest | str:
    """Or why it cannot be read."""
    try:
        row: dict[str, Any] = json.loads(path.read_bytes())
        files = {name: (int(size), int(crc)) for name, (size, crc) in row["files"].items()}
        return Manifest(row["tag"], row["number"], row["metric"], files, Origin(**row["origin"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFESTS}/{path.name} cannot be read ({error!r})"


def _manifest_of(root: Path, tag: str) -> Path:
    return root / MANIFESTS / f"{tag}.json"


def _tags(root: Path) -> list[str]:
    """Of all checkpoints, finished or not."""
    return sorted({path.name for group in (POLICY, CRITIC) for path in (root / group).glob("*") if path.is_dir()})


def _files_of(root: Path, tag: str) -> list[Path]:
    folders = [root / group / tag for group in (POLICY, CRITIC)]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [*files, *([average_of(root, tag)] if average_of(root, tag).is_file() else [])]


def _remove(root: Path, tag: str) -> None:
    """The manifest first: without it, what is half removed does not count."""
    discard(root, tag)
    for group in (POLICY, CRITIC):
        if (root / group / tag).is_dir():
            shutil.rmtree(root / group / tag)
    average_of(root, tag).unlink(missing_ok=True)


def _checksums(root: Path, files: Sequence[Path]) -> dict[str, tuple[int, int]]:
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip((str(path.relative_to(root)) for path in files), threads.map(_checksum, files), strict=True))


def _checksum(path: Path) -> tuple[int, int]:
    """(bytes, CRC-32), of what the disk has got."""
    crc = size = 0
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        while chunk := stream.read(CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return size, crc


def _damage(root: Path, manifest: Manifest) -> str | None:
    """What is wrong with the files of a checkpoint; sizes first, which cost nothing."""
    for name, (size, _) in manifest.files.items():
        if not (root / name).is_file():
            return f"{name} is missing"
        if (found := (root / name).stat().st_size) != size:
            return f"{name} has {found} bytes instead of {size}"
    found = _checksums(root, [root / name for name in manifest.files])
    changed = [name for name in manifest.files if found[name] != manifest.files[name]]
    return f"{changed[0]} was changed after it was written (checksum)" if changed else None


def differences(then: Origin, now: Origin) -> list[tuple[str, str, str]]:
    """(flag, value of the checkpoint's run, value now) of flags that both have and that change what is trained."""
    both = [name for name in then.flags if name in now.flags and not name.startswith(NO_DIFFERENCE)]
    return [(name, then.flags[name], now.flags[name]) for name in both if then.flags[name] != now.flags[name]]
