"""Messages that documents quote are messages of the code; what docs/operations.md guarantees has its tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT, section, spans, tables

DOCS = ROOT / "docs"
ANY = "\0"
"""Stands in a text for what is filled in."""

_FILLED_IN = re.compile(r"%(?:\.\d+)?[sdrgf]|\{[^{}]*\}")
_FILLED_IN_BY_SHELL = re.compile(r"\$\{[^}]*\}|\$\w+|\$\([^)]*\)")

BASH = {"`openrlhf-ada: command not found`", "`No module named 'psutil'` while flash-attn is built"}
"""Said by the shell and by pip."""


@cache
def texts() -> tuple[str, ...]:
    """Every text of the package and of the set-up, with ANY where something is filled in."""
    found = [_FILLED_IN_BY_SHELL.sub(ANY, (ROOT / "requirements" / "setup.sh").read_text(encoding="utf-8"))]
    for path in (ROOT / "openrlhf_ada").rglob("*.py"):
        found += _texts_of(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(found)


def _texts_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _FILLED_IN.sub(ANY, node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else ANY for part in node.values)
            yield "".join(map(str, parts))


def is_said(message: str) -> bool:
    """Does the code say this? Three dots in the message stand for what is filled in."""
    words = [re.escape(part.strip(" ")) for part in re.split(r"\s*\.\.\.\s*", message) if part.strip(" ")]
    pattern = re.compile(rf"[^\n]*{ANY}[^\n]*".join(words))
    return any(pattern.search(text) for text in texts())


def quoted(text: str, head: str) -> list[str]:
    """The messages in the first column of tables with this head; notes without code are left out."""
    found = [row[0] for table in tables(text) if table[0][0] == head for row in table[1:]]
    return [span for cell in found if cell not in BASH for span in spans(cell)]


MESSAGES = quoted((DOCS / "operations.md").read_text(encoding="utf-8"), "Message")
SET_UP = quoted((DOCS / "install.md").read_text(encoding="utf-8"), "You see")


def test_the_tables_are_read() -> None:
    assert len(MESSAGES) >= 20 and len(SET_UP) >= 10


@pytest.mark.parametrize("message", sorted({*MESSAGES, *SET_UP}))
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    assert is_said(message)


def test_a_message_that_nobody_says_is_found() -> None:
    assert not is_said("this machine has no GPU and no CPU")
    assert not is_said("... is not a message of ... at all")
    assert not is_said("and torch cannot use them"), "what is filled in must be marked"


def test_every_guarantee_has_its_tests() -> None:
    (table,) = tables(section((DOCS / "operations.md").read_text(encoding="utf-8"), "What is guaranteed"))
    assert len(table) > 10
    for _, _, named in table[1:]:
        files = spans(named)
        assert files and all(Path(file).parts[0] == "tests" and (ROOT / file).is_file() for file in files), named
