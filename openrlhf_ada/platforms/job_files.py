"""What a job on a cluster needs of this machine: this package, and the files that its command line names.

The nodes need what the package depends on, not the package itself: every job brings its own version, so two jobs on
one cluster may have two.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import openrlhf_ada
from openrlhf_ada.flags import ConfigError

DISTRIBUTION = "openrlhf-ada"

METADATA = ("METADATA", "PKG-INFO", "entry_points.txt")
"""vLLM finds its plugins in the metadata of distributions; an editable installation has PKG-INFO."""

MIB = 1 << 20

UPLOAD = "--upload"


@dataclass(frozen=True)
class JobFiles:
    """Paths relative to `base`; in the job's working folder they are called the same."""

    base: Path
    paths: tuple[Path, ...]

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._files())

    def check(self, limit_mib: float) -> None:
        """Raises ConfigError for more than so many MiB, naming the largest file."""
        if self.num_bytes <= limit_mib * MIB:
            return
        largest = max(self._files(), key=lambda path: path.stat().st_size)
        raise ConfigError(
            "--max-upload",
            limit_mib,
            f"the files to upload have {self.num_bytes / MIB:.0f} MiB, {largest} alone "
            f"{largest.stat().st_size / MIB:.0f}",
            "Put large files on storage that all nodes reach, and name them by absolute paths",
        )

    def stage(self, folder: Path) -> None:
        """Copy them, and this package, into an empty folder."""
        package = Path(openrlhf_ada.__file__).parent
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        _write_metadata(folder)
        for path in self.paths:
            source, target = self.base / path, folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)

    def _files(self) -> Iterable[Path]:
        for path in self.paths:
            source = self.base / path
            yield from (p for p in source.rglob("*") if p.is_file()) if source.is_dir() else (source,)


def _write_metadata(folder: Path) -> None:
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    target = folder / f"openrlhf_ada-{openrlhf_ada.__version__}.dist-info"
    target.mkdir()
    for name in METADATA:
        text = distribution.read_text(name)
        if text is not None:
            (target / name.replace("PKG-INFO", "METADATA")).write_text(text)


def files_of(arguments: Sequence[str], extra: Sequence[str], base: Path) -> JobFiles:
    """The files that exist here under a relative path on a command line, and those of --upload.

    Raises ConfigError for a path of --upload that is not below `base`, or not there, and for a folder on the command
    line that is here and nobody asked to upload.
    """
    asked = [_below(UPLOAD, path, base) for path in extra]
    named: list[Path] = []
    for flag, value in _values(arguments):
        path = Path(value)
        if path.is_absolute() or not (base / path).exists() or any(path.is_relative_to(other) for other in asked):
            continue
        if (base / path).is_dir():
            raise ConfigError(
                flag,
                value,
                "this folder is here and not on the cluster",
                f"Put it on storage that all nodes reach and name its absolute path, or add {UPLOAD} {value}",
            )
        named.append(_below(flag, value, base))
    return JobFiles(base, tuple(dict.fromkeys([*asked, *named])))


def _values(arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
    """(flag, value) of everything that may be a path; values separated by commas come one by one."""
    flag = "the command line"
    for part in arguments:
        value = part
        if part.startswith("--"):
            flag, _, value = part.partition("=")
        yield from ((flag, piece) for piece in value.split(",") if piece)


def _below(flag: str, value: str, base: Path) -> Path:
    path = Path(value)
    if path.is_absolute() or ".." in path.parts:
        raise ConfigError(
            flag,
            value,
            f"what is uploaded keeps its name, so it must lie below {base}",
            "Submit from a folder above it",
        )
    if not (base / path).exists():
        raise ConfigError(flag, value, f"there is no such file or folder in {base}", "Check the path")
    return path
