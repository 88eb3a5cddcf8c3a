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

from openrlhf_ada.config.flags import ConfigError, dotted
from openrlhf_ada.config.nearest import did_you_mean, nearest
from openrlhf_ada.config.yaml_file import read_yaml, wrong

Flags = dict[str, Any]
"""By the flag's name without dashes, sections separated by dots: "ada.mode", "rollout.batch_size"."""

DEVICES: dict[str, dict[str, Any]] = {
    "gpu": {},
    "cpu": {f"{model}.num_gpus_per_node": 1 for model in ("actor", "ref", "critic", "reward")}
    # With one process ZeRO has nothing to shard, and its copies of all gradients cost seconds a step.
    | {"vllm.num_engines": 1, "vllm.sync_backend": "gloo", "ds.attn_implementation": "sdpa", "ds.zero_stage": 0},
}
"""--ada_device, with OpenRLHF's flags that it sets. "GPUs" are places for processes on a CPU."""

FLAG = "--ada_method"
FOLDER = Path(__file__).parents[1] / "methods"
PARTS = FOLDER / "parts"
"""Files that methods rest on."""

OLD_NAMES = {"raft-1-twice": "raft-n1-e2", "first-right": "first-success-8", "counted": "spo-n2"}
"""Names that a method had until 0.3, and its name now."""

TEXTS = ("summary", "source", "formula", "note")
KEYS = (*TEXTS, "base", "flags")


@dataclass(frozen=True, slots=True)
class Method:
    """One named setting. `source`: what it reproduces. `note`: where it differs from that or from the recipe, or what
    the source does not say. `files`: it was read from, its own first. `places`: file and line by flag.
    """

    name: str
    summary: str
    source: str
    flags: Flags
    note: str = ""
    formula: str = ""
    files: tuple[Path, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict[str, str])

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
    if _is_path(name):
        return _read(name, Path(name), ())
    near = nearest(name, METHODS)
    remedy = f"Try {FLAG} {near}" if near else "Leave it out for your own flags"
    raise ConfigError(FLAG, name, f"expected one of: {', '.join(METHODS)}; or a file, such as ./mine.yaml", remedy)


class _Methods(Mapping[str, Method]):
    """Ours, by name. Names are those of the files; a file is read when its method is looked up."""

    def __getitem__(self, name: str) -> Method:
        if name not in _names():
            raise KeyError(name)
        return _of_folder(FOLDER, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())


METHODS: Mapping[str, Method] = _Methods()


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


@lru_cache(maxsize=64)
def _of_folder(folder: Path, name: str) -> Method:
    return _read(name, folder / f"{name}.yaml", ())


def part(name: str) -> Method:
    """What methods rest on, such as the `recipe` that all of ours share."""
    return _of_folder(PARTS, name)


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _read(name: str, path: Path, above: tuple[Path, ...]) -> Method:
    """`above`: files that rest on this one."""
    content, lines = read_yaml(path, FLAG, typed=True)
    if unknown := [key for key in content if key not in KEYS]:
        key = unknown[0]
        inside = "Put it under `flags:`, two spaces in." if "." in key or key.startswith(("ada_", "-")) else ""
        remedy = f"{inside}{did_you_mean(key, KEYS)}".strip().rstrip("?") or f"Keys are {', '.join(KEYS)}"
        raise wrong(FLAG, path, lines[key], f"no key has the name {key}", remedy)
    for key in ("base", *TEXTS):
        if key in content and (not isinstance(content[key], str) or not content[key].strip()):
            raise wrong(FLAG, path, lines[key], "a text belongs here", "Write one, or leave the line out")
    if not {"flags", "base"} & set(content):
        raise wrong(FLAG, path, 1, "a method has `flags:`, or a `base:`", "`openrlhf-ada methods grpo` shows one")
    base = _base(path, content["base"], lines["base"], (*above, path.resolve())) if "base" in content else None
    own, places = _flags_of(path, content.get("flags", {}), lines)
    return Method(
        name=name,
        flags=(base.flags if base else {}) | own,
        files=(path, *(base.files if base else ())),
        places={**(base.places if base else {}), **places},
        **{key: content.get(key, "").strip() for key in TEXTS},
    )


def _flags_of(path: Path, said: Any, lines: Mapping[str, int]) -> tuple[Flags, dict[str, str]]:
    """Values and places by dotted name. A list becomes a tuple."""
    if not isinstance(said, dict):
        raise wrong(FLAG, path, lines["flags"], "`name: value` lines belong here", "`openrlhf-ada methods grpo` shows")
    flags, places = Flags(), dict[str, str]()
    for name, value in cast("dict[str, Any]", said).items():
        parts: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
        if any(part is None or isinstance(part, dict | list) for part in parts):
            rule = f"{name} has one value, or a list of values"
            raise wrong(FLAG, path, lines[name], rule, f"Write `{name}: value`, or leave the line out")
        if dotted(name) in flags:
            raise wrong(FLAG, path, lines[name], f"{name} stands there twice", "Keep one of them")
        flags[dotted(name)] = _tuple(value)
        places[dotted(name)] = f"{path}, line {lines[name]}"
    return flags, places


def _base(file: Path, name: str, line: int, above: tuple[Path, ...]) -> Method:
    if _is_path(name):
        path = file.parent / name
        if not path.is_file():
            raise wrong(FLAG, file, line, f"there is no file {path}", "A path begins at the folder of the file")
        if path.resolve() in above:
            raise wrong(FLAG, file, line, f"{name} rests on this very file", "Let one of the two have no base")
        return _read(name, path, above)
    name, parts = OLD_NAMES.get(name, name), [path.stem for path in PARTS.glob("*.yaml")]
    if name in METHODS or name in parts:
        return METHODS[name] if name in METHODS else part(name)
    hint = did_you_mean(name, [*parts, *METHODS]).strip().rstrip("?") or "`openrlhf-ada methods` lists them"
    raise wrong(FLAG, file, line, f"there is no method {name}", f"{hint}; or name a file, such as ./mine.yaml")


def _of_record(text: str) -> Method:
    try:
        said: Any = json.loads(text)
        flags: Flags = {flag: _tuple(value) for flag, value in said["flags"].items()}
        return Method(str(said["name"]), str(said["summary"]), str(said["source"]), flags)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        rule = f"it is not what a run's record has of a method ({error!r})"
        raise ConfigError(FLAG, text, rule, "Name a method or a file") from error


def _tuple(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def nested(flags: Flags) -> dict[str, Any]:
    """The same by section, as in a run's config.json: {"ada": {"mode": ...}}."""
    record: dict[str, Any] = {}
    for name, value in flags.items():
        *sections, last = name.split(".")
        section = record
        for one in sections:
            section = section.setdefault(one, {})
        section[last] = value
    return record
