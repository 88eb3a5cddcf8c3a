"""What is said of the language model on the real stack, beside its committed results."""

from __future__ import annotations

from functools import cache

from documents import ROOT

from openrlhf_ada.arena import real, real_page
from openrlhf_ada.arena.page import inserted
from openrlhf_ada.cli.arena_page import REAL

PACKED, PAGE = ROOT / "openrlhf_ada" / "arena" / "results", ROOT / "docs" / "arena.md"


@cache
def language_model() -> real.Results:
    conditions = real.read_conditions(PACKED / REAL)
    assert conditions is not None
    return real.Results(PACKED / REAL, conditions, resumes=False)


def test_committed_page_is_of_the_committed_results() -> None:
    text, marks = PAGE.read_text(encoding="utf-8"), (real_page.FIRST, real_page.LAST)
    assert inserted(text, real_page.render_real(language_model()), marks) == text, "write it anew: make arena-docs"
