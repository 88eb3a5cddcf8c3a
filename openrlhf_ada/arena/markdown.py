"""Tables of docs/arena.md."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of these cells."""
    rule = "|".join("---" for _ in head)
    return "\n".join(["| " + " | ".join(head) + " |", f"|{rule}|", *("| " + " | ".join(row) + " |" for row in body)])
