"""Methods by name (`--ada_method`): defaults of our flags and of OpenRLHF's, one YAML file for each.

Ours are the files of openrlhf_ada/methods; a path names a file of the user's own. A method only moves defaults, so
whatever is given on the command line wins (`preset_flags.py`). A start reads the file that is named, and what it rests
on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_file import MethodFile, Places, read_method_file, wrong_at
from openrlhf_ada.config.nearest import did_you_mean, nearest

Flags = dict[str, Any]
"""By the flag's name without dashes, sections separated by dots: "ada.mode", "rollout.batch_size"."""

FOLDER = Path(__file__).parents[1] / "methods"
PARTS = FOLDER / "parts"
"""Files that methods rest on."""

OLD_NAMES = {"raft-1-twice": "raft-n1-e2", "first-right": "first-success-8", "counted": "spo-n2"}
"""Names that a method had until 0.3, and its name now."""


@dataclass(frozen=True, slots=True)
class Method:
    """One named setting. `source`: what it reproduces. `note`: where it differs from that or from the recipe, or what
    the source does not say. `files`: it was read from, its own first. `places`: where each flag was said.
    """

    name: str
    summary: str
    source: str
    flags: Flags
    note: str = ""
    formula: str = ""
    files: tuple[Path, ...] = ()
    places: Places = field(default_factory=dict[str, str])

    @property
    def is_own(self) -> bool:
        """Is it a file of the user's, which may change or go?"""
        return self.name not in METHODS

    @property
    def recorded(self) -> str:
        """For --ada_method in a run's record: the name; of a user's file all that it said, without the file."""
        if not self.is_own:
            return self.name
        return json.dumps({"name": self.name, "summary": self.summary, "source": self.source, "flags": self.flags})


def method_named(name: str) -> Method:
    """Of a name, an old name, a path, or what a record has of a file. Raises ConfigError."""
    name = OLD_NAMES.get(name, name)
    if name in METHODS:
        return METHODS[name]
    if name.startswith("{"):
        return _of_record(name)
    if is_path(name):
        return _read(name, Path(name), ())
    near = nearest(name, [*METHODS, *OLD_NAMES])
    remedy = f"Try --ada_method {OLD_NAMES.get(near, near)}" if near else "Leave it out for your own flags"
    rule = f"expected one of: {', '.join(METHODS)}; or a file, such as ./mine.yaml"
    raise ConfigError("--ada_method", name, rule, remedy)


class _Methods(Mapping[str, Method]):
    """Ours, by name. Names are those of the files; a file is read when its method is looked up."""

    def __getitem__(self, name: str) -> Method:
        if name not in _names():
            raise KeyError(name)
        return _ours(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())

    def __contains__(self, name: object) -> bool:
        return name in _names()


METHODS: Mapping[str, Method] = _Methods()


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


@lru_cache(maxsize=64)
def _ours(name: str) -> Method:
    return _read(name, FOLDER / f"{name}.yaml", ())


@lru_cache(maxsize=4)
def part(name: str) -> Method:
    """What methods rest on, such as the `recipe` that all of ours share."""
    return _read(name, PARTS / f"{name}.yaml", ())


def is_path(name: str) -> bool:
    """Is it a file of the user's that --ada_method names?"""
    return "/" in name or name.endswith((".yaml", ".yml"))


def _read(name: str, path: Path, above: tuple[Path, ...]) -> Method:
    """`above`: files that rest on this one."""
    file = read_method_file(path)
    base = _base(file, (*above, path.resolve()))
    texts = {key: text for key, text in file.texts.items() if key != "base"}
    return Method(
        name=name,
        summary=texts.pop("summary", ""),
        source=texts.pop("source", ""),
        flags=base.flags | file.flags,
        files=(path, *base.files),
        places={**base.places, **{flag: file.place(flag) for flag in file.flags}},
        **texts,
    )


def _base(file: MethodFile, above: tuple[Path, ...]) -> Method:
    name = file.texts.get("base")
    if name is None:
        return Method("", "", "", {})
    parts = [path.stem for path in PARTS.glob("*.yaml")]
    if is_path(name):
        path = file.path.parent / name
        if not path.is_file():
            raise wrong_at(file, "base", f"there is no file {path}", "A path begins at the folder of the file")
        if path.resolve() in above:
            raise wrong_at(file, "base", f"{name} rests on this very file", "Let one of the two have no base")
        return _read(name, path, above)
    name = OLD_NAMES.get(name, name)
    if name in METHODS:
        return METHODS[name]
    if name in parts:
        return part(name)
    hint = did_you_mean(name, [*parts, *METHODS]).strip() or "`openrlhf-ada methods` lists them"
    raise wrong_at(
        file, "base", f"there is no method {name}", f"{hint.rstrip('?')}; or name a file, such as ./mine.yaml"
    )


def _of_record(text: str) -> Method:
    try:
        said: Any = json.loads(text)
        flags: Flags = {flag: _tuple(value) for flag, value in said["flags"].items()}
        return Method(str(said["name"]), str(said["summary"]), str(said["source"]), flags)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        rule = f"it is not what a run's record has of a method ({error!r})"
        raise ConfigError("--ada_method", text, rule, "Name a method or a file") from error


def _tuple(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def nested(flags: Flags) -> dict[str, Any]:
    """The same by section, as in a run's config.json: {"ada": {"mode": ...}}."""
    record: dict[str, Any] = {}
    for dotted, value in flags.items():
        *sections, name = dotted.split(".")
        section = record
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return record
