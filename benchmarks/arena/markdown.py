"""Tables of the pages."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = "|".join("---" for _ in head)
    return "\n".join(["| " + " | ".join(head) + " |", f"|{rule}|", *("| " + " | ".join(row) + " |" for row in body)])
