"""Just enough of Dockerfiles and .dockerignore to assert things of ours."""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    keyword: str
    value: str
    """One line: continuations joined, comments left out."""

    @property
    def exec_form(self) -> list[str]:
        """The words of `["a", "b"]`; raises ValueError for the shell form."""
        return json.loads(self.value)

    @property
    def copied(self) -> list[str]:
        """Sources of a COPY from the build's context; none if it copies from another stage."""
        words = self.value.split()
        if any(word.startswith("--from=") for word in words):
            return []
        return [word for word in words if not word.startswith("--")][:-1]


def instructions(dockerfile: Path) -> list[Instruction]:
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [Instruction(keyword.upper(), value.strip()) for keyword, value in pairs]


def last_stage(dockerfile: Path) -> list[Instruction]:
    found = instructions(dockerfile)
    starts = [at for at, instruction in enumerate(found) if instruction.keyword == "FROM"]
    return found[starts[-1] :]


def is_ignored(path: str, dockerignore: Path) -> bool:
    """Whether .dockerignore keeps a path of the context out: the last rule that matches it or a folder above it."""
    ignored = False
    parts = path.split("/")
    for line in dockerignore.read_text().splitlines():
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        pattern = rule.removeprefix("!").strip("/")
        ancestors = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        if any(_matches(name, pattern) for name in ancestors):
            ignored = not rule.startswith("!")
    return ignored


def _matches(name: str, pattern: str) -> bool:
    """As the builder does: `*` stays within a folder, `**/` is any number of them."""
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(name.rpartition("/")[2], pattern[3:])
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)


def pins(requirements: Path) -> dict[str, str]:
    """Package -> version; raises ValueError for a line that is not `name==version`."""
    lines = [line for line in requirements.read_text().splitlines() if line and not line.startswith("#")]
    found = dict(line.split("==") for line in lines)
    if any(set(version) & set("*<>;, ") for version in found.values()):
        raise ValueError(f"{requirements}: not every line is one exact version")
    return found
