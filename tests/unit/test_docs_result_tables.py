"""Tables of measured figures in the pages are the saved results of the benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.result_tables import DOCS, TABLES, written


@pytest.mark.parametrize("page", sorted({page for page, _ in TABLES}))
def test_tables_are_made_anew(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert written(text, page) == text, "python benchmarks/result_tables.py"


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gpu\.md has no place"):
        written("# GPUs\n", "gpu.md")
