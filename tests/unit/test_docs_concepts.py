"""docs/concepts.md: its tables are what the policies and the scheduler do, its pictures are drawn from the same."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from documents import ROOT

TEXT = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
IMAGES = ROOT / "docs" / "images"

pytestmark = pytest.mark.slow


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import concept_figures

    return concept_figures


@pytest.mark.parametrize("table", ["pools_table", "split_table", "seconds_table"])
def test_tables_match_the_script(table: str, figures: ModuleType) -> None:
    assert getattr(figures, table)() in TEXT, "print them anew: python benchmarks/concept_figures.py"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="drawn by Python 3.11, whose sum() rounds otherwise")
def test_pictures_are_the_ones_that_the_script_draws(figures: ModuleType, tmp_path: Path) -> None:
    figures.write_pictures(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in IMAGES.glob("concepts-*"))
    for name in drawn:
        assert (tmp_path / name).read_bytes() == (IMAGES / name).read_bytes(), f"draw it anew: {name}"


@pytest.mark.parametrize("path", sorted(IMAGES.glob("concepts-*.svg")), ids=lambda path: path.name)
def test_pictures_have_no_ground_of_their_own(path: Path) -> None:
    """They stand on light and on dark pages; each page shows the one that is made for it."""
    first = next(node for node in ElementTree.parse(path).iter() if node.get("id") == "patch_1")
    (ground,) = first
    assert "opacity: 0" in (ground.get("style") or "")
    theme = "light" if path.stem.endswith("light") else "dark"
    assert f"{path.name}#gh-{theme}-mode-only" in TEXT
