"""What a cluster job needs from this machine: this package, and the files that its command line names.

The nodes need what the package depends on, not the package itself: every job brings its own version, so two jobs on
one cluster may have two.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import openrlhf_ada
from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.reward.reward_function import MIXED, NAMED, file_and_function

DISTRIBUTION = "openrlhf-ada"

METADATA = ("METADATA", "PKG-INFO", "entry_points.txt")
"""vLLM finds its plugins in the metadata of distributions; an editable installation has PKG-INFO."""

MIB = 1 << 20

UPLOAD = "--upload"

POSITIONAL = "the command"

PATH_FLAGS = {
    "train": (
        "--actor.model_name_or_path",
        "--critic.model_name_or_path",
        "--reward.model_name_or_path",
        "--data.prompt_dataset",
        "--eval.dataset",
        "--reward.remote_url",
        "--train.agent_func_path",
        "--ada_policy",
        "--ada_reward_map",
    ),
    "eval": ("--model", "--benchmark", "--reward", "--reward_map"),
    "prepare-data": (POSITIONAL, "--model", "--reward", "--reward_map"),
}
"""By command: the flags whose values may be files. Values of other flags are never taken for files."""


_LISTS = ("--reward", "--reward_map", "--ada_reward_map")
"""Flags of ours whose values are lists with commas. In a map, a grader follows what it grades."""


@dataclass(frozen=True)
class JobFiles:
    """Files, relative to `base`; they have the same paths in the job's working folder."""

    base: Path
    files: tuple[Path, ...]

    @property
    def num_bytes(self) -> int:
        return sum((self.base / file).stat().st_size for file in self.files)

    def check(self, limit_mib: float) -> None:
        """Raises ConfigError for more than so many MiB, naming the largest file."""
        if self.num_bytes <= limit_mib * MIB:
            return
        largest = max((self.base / file for file in self.files), key=lambda path: path.stat().st_size)
        raise ConfigError(
            "--max-upload",
            limit_mib,
            f"the files to upload have {self.num_bytes / MIB:.0f} MiB, {largest} alone "
            f"{largest.stat().st_size / MIB:.0f}",
            "Put large files on storage that all nodes reach, and name them by absolute paths",
        )

    def stage(self, folder: Path) -> None:
        """Copy them, and this package, into an empty folder; raises ConfigError for what cannot be read."""
        package = Path(openrlhf_ada.__file__).parent
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        _write_metadata(folder)
        for file in self.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(self.base / file, folder / file)
            except (OSError, shutil.Error) as error:
                raise ConfigError(
                    UPLOAD, str(file), f"it cannot be read ({error.strerror or error})", "Leave it out"
                ) from error


def _write_metadata(folder: Path) -> None:
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    target = folder / f"openrlhf_ada-{openrlhf_ada.__version__}.dist-info"
    target.mkdir()
    for name in METADATA:
        text = distribution.read_text(name)
        if text is not None:
            (target / name.replace("PKG-INFO", "METADATA")).write_text(text)


def files_of(verb: str, arguments: Sequence[str], extra: Sequence[str], base: Path) -> JobFiles:
    """The existing files that a command names by relative paths, and those of --upload.

    `arguments`: positional ones (the problems of prepare-data) first.
    Raises ConfigError for a path of --upload that is not below `base` or not there, for a link to nothing, and for a
    folder that the command names and that exists here, but is not named by --upload.
    """
    asked = [_below(UPLOAD, path, base) for path in extra]
    named: list[Path] = []
    for flag, value in _paths(verb, arguments):
        for path in sorted(path.relative_to(base) for path in base.glob(value)) if "*" in value else [Path(value)]:
            if not (base / path).exists() or any(path.is_relative_to(other) for other in asked):
                continue
            if (base / path).is_dir():
                raise ConfigError(
                    flag,
                    value,
                    "this folder is here and not on the cluster",
                    f"Put it on storage that all nodes reach and name its absolute path, or add {UPLOAD} {value}",
                )
            named.append(_below(flag, str(path), base))
    return JobFiles(base, tuple(dict.fromkeys(file for path in (*asked, *named) for file in _files(path, base))))


def _files(path: Path, base: Path) -> Iterator[Path]:
    """The file, or all files below the folder; links are followed, as in a copy."""
    if not (base / path).is_dir():
        yield path
        return
    for folder, folders, names in os.walk(base / path, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            file = Path(folder, name)
            if not file.exists():
                raise ConfigError(UPLOAD, str(path), f"{file} is a link to nothing", "Remove it, or upload files")
            yield file.relative_to(base)


def _paths(verb: str, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(flag, relative path) of all that may be a file. Values of OpenRLHF's flags are lists with commas, ours may be
    `name=path`.
    """
    for flag, words in words_by_flag(arguments):
        if (flag or POSITIONAL) not in PATH_FLAGS[verb]:
            continue
        values = list(words)
        if verb == "train" or flag in _LISTS:
            values = [piece.strip() for word in words for piece in word.split(",")]
        if flag in _LISTS:
            values = [value.rpartition("=")[2] for value in values]
        elif verb != "train":
            values = [value.partition("=")[2] or value for value in values]
        for value in values:
            value = (file_and_function(value) or (value,))[0]
            if value and not os.path.isabs(value) and value not in (*NAMED, MIXED):
                yield flag or POSITIONAL, os.path.normpath(value)


def _below(flag: str, value: str, base: Path) -> Path:
    path = Path(os.path.normpath(value))
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
