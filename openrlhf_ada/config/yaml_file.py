"""YAML as flags are written in: plain values under names that are unique. Nothing is ever made into an object."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

from openrlhf_ada.config.flags import ConfigError

LARGEST = 64 * 1024
"""Bytes of a file, far more than all flags take."""

_TAG = "tag:yaml.org,2002:"

_WORDS = {
    "bool": r"true|false|True|False|TRUE|FALSE",
    "int": r"[-+]?(0|[1-9]\d*)",
    "float": r"[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+)",
    "null": r"|~|null",
}
"""What is no text: so `off` and `no` are words, and 1e-6 is a number."""


def read_yaml(path: Path, flag: str, *, typed: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """The names and values of a file, and the lines of names. `typed`: values are numbers, booleans, None and words;
    else all are text. `flag`: that names the file.

    Raises ConfigError, with the line.
    """
    import yaml  # what reads no file needs no YAML

    try:
        if not path.is_file():
            raise wrong(flag, path, None, "there is no such file", "Name a YAML file")
        if path.stat().st_size > LARGEST:
            raise wrong(flag, path, None, f"it has more than {LARGEST // 1024} KiB", "Name a YAML file of flags")
        loader = _loader(typed)(path.read_text(encoding="utf-8"))
        content: Any = loader.get_single_data()
    except OSError as error:
        raise wrong(flag, path, None, f"it cannot be read ({error.strerror})", "Name a YAML file") from error
    except UnicodeDecodeError as error:
        raise wrong(flag, path, None, f"it is no text ({error.reason})", "Name a YAML file") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise wrong(flag, path, line, f"it is not valid YAML: {error.problem}", "Mend it") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, yaml.YAMLError) else "it is nested too deeply"
        raise wrong(flag, path, None, f"it is not valid YAML: {reason}", "Mend it") from error
    if not isinstance(content, dict):
        raise wrong(flag, path, None, "`name: value` lines belong here", "Write one on each line")
    return cast("dict[str, Any]", content), loader.lines


def wrong(flag: str, path: Path, line: int | None, rule: str, remedy: str) -> ConfigError:
    """An error about a file."""
    return ConfigError(flag, str(path), rule if line is None else f"line {line}: {rule}", remedy)


@lru_cache(maxsize=2)
def _loader(typed: bool) -> Any:
    import yaml as untyped

    yaml: Any = untyped
    plain = (None, *(_TAG + kind for kind in ("map", "seq", "str", *_WORDS)))

    class Loader(yaml.SafeLoader):
        # Without the other constructors, a tag that asks for an object is refused.
        yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}
        yaml_constructors: ClassVar[dict[Any, Any]] = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in plain}

        def __init__(self, text: str) -> None:
            yaml.SafeLoader.__init__(self, text)
            self.lines: dict[str, int] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            own: dict[str, int] = {}
            for key, _ in node.value:
                name, line = key.value, key.start_mark.line + 1
                if key.id != "scalar":
                    raise yaml.constructor.ConstructorError(None, None, "a name is one word", key.start_mark)
                if name in own:
                    problem = f"{name} stands there twice, also on line {own[name]}"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                key.tag, own[name] = f"{_TAG}str", line
            self.lines |= own
            return yaml.SafeLoader.construct_mapping(self, node, deep)

    if typed:
        for kind, pattern in _WORDS.items():
            Loader.add_implicit_resolver(_TAG + kind, re.compile(f"^(?:{pattern})$"), None)
    return Loader
