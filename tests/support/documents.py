"""Markdown as far as tests read it: links, headings, code, tables, command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from openrlhf_ada.cli.verbs import VERBS

STARTERS = ("ray", "srun", "docker", "apptainer", "nohup", "exec", "time")
"""Programs that start others."""

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/arena/RESULTS.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Block:
    """Fenced code. `line`: where it begins in its document, from 1."""

    language: str
    text: str
    line: int


def name_of(path: Path) -> str:
    """For ids of tests."""
    return str(path.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def prose(text: str) -> str:
    """Without fenced code."""
    return _FENCE.sub("", text)


def spans(text: str) -> list[str]:
    """Code within lines, as GitHub shows it: in tables, a pipe is written with a backslash."""
    return [span.replace("\\|", "|") for span in _SPAN.findall(prose(text))]


def links(text: str) -> list[str]:
    """Targets of links and pictures."""
    return _LINK.findall(_SPAN.sub("", prose(text)))


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *$", prose(text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def tables(text: str) -> Iterator[list[list[str]]]:
    """Every table as rows of cells, the header first and the line below it left out."""
    for lines in re.findall(r"(?:^\|.*\|$\n?)+", prose(text), re.M):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines.splitlines()]
        yield [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]


def section(text: str, title: str) -> str:
    """From a heading to the next of its level or above."""
    # Comments in code look like headings.
    plain = _FENCE.sub(lambda fence: " " * len(fence[0]), text)
    start = re.search(rf"^(#+) {re.escape(title)}$", plain, re.M)
    assert start, f"there is no heading {title!r}"
    end = re.compile(rf"^#{{1,{len(start[1])}}} ", re.M).search(plain, start.end())
    return text[start.end() : end.start() if end else None]


def command_lines(block: str) -> list[list[str]]:
    """Words of every line, comments left out; lines that end in a backslash go on."""
    lines = re.sub(r"\\\n", " ", block).splitlines()
    return [words for line in lines if (words := _words(line))]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()  # output of a program, with a lone quote


def program(words: list[str]) -> list[str]:
    """A command without what stands before it: a prompt, settings of the environment, and what it is started by."""
    while words and (words[0] == "$" or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    if words and words[0] in STARTERS:
        # What follows is ours where one of our names does: others may mean an image or a job.
        for at, (word, after) in enumerate(pairwise(words[1:]), start=1):
            name = word.rpartition("/")[2]
            if (name == "openrlhf-ada" and after in VERBS) or (name.startswith("python") and after in ("-m", "-c")):
                return program(words[at:])
            if name.startswith("openrlhf-ada:") and after in VERBS:
                # An image's entrypoint is the command.
                return ["openrlhf-ada", *words[at + 1 :]]
        return words
    if words:
        # .venv/bin/python is python.
        words = [re.sub(r"^python3(\.\d+)?$", "python", words[0].rpartition("bin/")[2]), *words[1:]]
    return words
