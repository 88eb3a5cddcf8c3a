"""The YAML of a method: names, values and the lines on which they stand. Nothing in it is ever made into an object.

A plain value is a number, true, false or a word: `off` and `no` are words, and 1e-6 is a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.nearest import did_you_mean

Node = Any
"""A node of PyYAML's, which has its kind as `id`."""

LARGEST = 64 * 1024
"""Bytes of a file, far more than all flags take."""

TEXTS = ("summary", "source", "formula", "note", "base")
FLAGS = "flags"

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_PLAIN = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")


@dataclass(frozen=True, slots=True)
class MethodFile:
    """`texts`: by key. `flags`: by dotted name. `lines`: of keys and of flags, from 1."""

    path: Path
    texts: dict[str, str]
    flags: dict[str, Any]
    lines: dict[str, int]

    def place(self, name: str) -> str:
        return f"{self.path}, line {self.lines[name]}"


def dotted(flag: str) -> str:
    """ada.mode of ada_mode, as of ada.mode."""
    return flag.replace("ada_", "ada.", 1) if flag.startswith("ada_") else flag


def read_method_file(path: Path) -> MethodFile:
    """Raises ConfigError, with the line, for what is no method."""
    top = _members(_root(path), path)
    if unknown := [name for name in top if name not in (*TEXTS, FLAGS)]:
        name = unknown[0]
        looks_like_a_flag = "." in name or name.startswith(("ada_", "-"))
        hint = f"Put it under `{FLAGS}:`, two spaces in" if looks_like_a_flag else "Keys are " + ", ".join(top_keys())
        hint += did_you_mean(name, top_keys()).replace(" Did", ". Did").rstrip("?")
        raise _wrong(path, top[name][0], f"no key has the name {name}", hint)
    texts = {name: _text(path, line, value) for name, (line, value) in top.items() if name != FLAGS}
    lines = {name: line for name, (line, _) in top.items()}
    flags: dict[str, Any] = {}
    if FLAGS in top:
        for name, (line, value) in _members(top[FLAGS][1], path).items():
            flag = dotted(name)
            if flag in flags:
                raise _wrong(path, line, f"{name} stands there twice, also on line {lines[flag]}", "Keep one of them")
            flags[flag], lines[flag] = _value(path, line, name, value), line
    elif "base" not in top:
        raise _wrong(path, 1, f"a method has `{FLAGS}:`, or a `base:`", "`openrlhf-ada methods grpo` shows one")
    return MethodFile(path, texts, flags, lines)


def top_keys() -> tuple[str, ...]:
    return (*TEXTS, FLAGS)


def _root(path: Path) -> Node:
    # What reads no method needs no YAML.
    import yaml as untyped

    yaml: Any = untyped

    try:
        if not path.is_file():
            raise _wrong(path, None, "there is no such file", "Name a YAML file, or a method: openrlhf-ada methods")
        if path.stat().st_size > LARGEST:
            raise _wrong(path, None, f"it has more than {LARGEST // 1024} KiB", "Name the YAML file of a method")
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except OSError as error:
        raise _wrong(path, None, f"it cannot be read ({error.strerror})", "Name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise _wrong(path, None, f"it is no text ({error.reason})", "Name the YAML file of a method") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise _wrong(path, line, f"it is not valid YAML: {error.problem}", "Mend it") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, yaml.YAMLError) else "it is nested too deeply"
        raise _wrong(path, None, f"it is not valid YAML: {reason}", "Mend it") from error
    if node is None:
        raise _wrong(path, None, "it is empty", "`openrlhf-ada methods grpo` shows one")
    return node


def _members(node: Node, path: Path) -> dict[str, tuple[int, Node]]:
    """Of a mapping: line and value by name."""
    _check_tag(node, path)
    if node.id != "mapping":
        raise _wrong(path, _line(node), "`name: value` lines belong here", "`openrlhf-ada methods grpo` shows some")
    found: dict[str, tuple[int, Node]] = {}
    for key, value in node.value:
        _check_tag(key, path)
        name = key.value
        if not isinstance(name, str):
            raise _wrong(path, _line(key), "a name is one word", "Mend it")
        if name in found:
            rule = f"{name} stands there twice, also on line {found[name][0]}"
            raise _wrong(path, _line(key), rule, "Keep one of them")
        found[name] = _line(key), value
    return found


def _text(path: Path, line: int, node: Node) -> str:
    _check_tag(node, path)
    if node.id != "scalar" or not node.value.strip():
        raise _wrong(path, line, "a text belongs here", "Write one, or leave the line out")
    return str(node.value).strip()


def _value(path: Path, line: int, name: str, node: Node) -> Any:
    """A number, a boolean, a text, or a tuple of these."""
    _check_tag(node, path)
    if node.id == "sequence" and all(part.id == "scalar" for part in node.value):
        return tuple(_value(path, line, name, part) for part in node.value)
    if node.id != "scalar":
        raise _wrong(path, line, f"{name} has one value, or a list of values", f"Write `{name}: value`")
    text = str(node.value)
    if node.style is not None:  # in quotes
        return text
    if text in ("", "~", "null"):
        raise _wrong(path, line, f"{name} has no value", "Give one, or leave the line out")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _check_tag(node: Node, path: Path) -> None:
    if node.tag not in _PLAIN:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise _wrong(path, _line(node), f"{tag} asks for an object, and a method holds plain values", "Leave it out")


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _wrong(path: Path, line: int | None, rule: str, remedy: str) -> ConfigError:
    return ConfigError("--ada_method", str(path), rule if line is None else f"line {line}: {rule}", remedy)


def wrong_at(file: MethodFile, name: str, rule: str, remedy: str) -> ConfigError:
    """An error about a key or a flag of a file that can be read."""
    return _wrong(file.path, file.lines[name], rule, remedy)


Places = Mapping[str, str]
"""Where flags were said, by dotted name."""
