"""The documentation site: builds without complaint and without a network, links hold, its search finds pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Page, browser, served

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_document_is_a_page(site: Path) -> None:
    pages = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "reference"} <= pages


def test_language_models_find_every_page(site: Path) -> None:
    lines = re.findall(r"^- \[.+\]\((.+)\): .+\.?$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert set(lines) == {path.name for path in site.glob("*.html")} - {"404.html"}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in site.glob("*.html"))
    loaded = re.findall(r'(?:<script[^>]* src|<link[^>]* href|<img[^>]* src)="((?:https?:)?//[^"]+)', text)
    assert loaded == []


def test_public_names_have_their_docstrings(site: Path) -> None:
    text = (site / "reference.html").read_text(encoding="utf-8")
    assert 'id="openrlhf_ada.core.types.PromptPool.count_positives"' in text
    assert "in index order whatever the order of arrival" in text


def test_links_to_files_outside_the_pages_lead_to_their_text(site: Path) -> None:
    script = ROOT / "examples" / "scripts" / "common.sh"
    assert (site / "files" / "examples" / "scripts" / "common.sh.txt").read_text() == script.read_text()


def test_nothing_of_markdown_is_left(site: Path) -> None:
    """Lists are lists, and a pipe in a table's code has no backslash before it."""
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<code>(?:(?!</code>).)*\\\|", text), path.name
        shown = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\*\*|\]\(|```", shown), path.name
        items = [
            said for said in re.findall(r"<p>(.*?)</p>", shown, re.DOTALL) if re.search(r"\n([-*]|[1-9]\.) ", said)
        ]
        assert not items, path.name
        assert not re.search(r"\S\s+[2-9]\. <em>", shown), f"{path.name}: a numbered list in one item"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as address:
        yield address


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with browser() as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ada_wave", "flags.html"),
        ("resume a run", "operations.html"),
        ("wrong build of torch", "install.html"),
        ("unresolved", "glossary.html"),
        ("what messages mean", "operations.html"),
        ("pool wave group", "concepts.html"),
    ],
)
def test_search_finds_pages(page: Page, address: str, words: str, found: str) -> None:
    page.open(f"{address}/index.html?q={words.replace(' ', '%20')}")
    page.wait_for("document.querySelector('.md-search-result__item') != null")
    hits = page.evaluate("[...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)")
    assert any(found in hit for hit in hits)


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_window(page: Page, site: Path, address: str, width: int) -> None:
    page.look(width)
    for name in sorted(path.name for path in site.glob("*.html")):
        page.open(f"{address}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert [said for said in page.complaints if "favicon" not in said] == [], name


@pytest.mark.parametrize("width", [390, 1280])
def test_flags_and_names_are_not_broken(page: Page, address: str, width: int) -> None:
    """Each piece of a name is on one line, and copying a name copies the whole of it."""
    page.look(width)
    for name in ("flags", "gpu", "rewards"):
        page.open(f"{address}/{name}.html")
        pieces = "[...document.querySelectorAll('article table code > span')].filter(s => s.innerText)"
        assert page.evaluate(f"{pieces}.length") > 20, name
        assert page.evaluate(f"{pieces}.filter(s => s.getClientRects().length > 1).map(s => s.innerText)") == [], name
    page.open(f"{address}/flags.html")
    flags = page.evaluate(
        "[...document.querySelectorAll('article table td:first-child code')].map(c => c.textContent)"
    )
    assert "--ada_positive_threshold" in [flag.split()[0] for flag in flags]


def test_the_search_is_seen(page: Page, address: str) -> None:
    page.look(1280)
    page.open(f"{address}/index.html")
    assert page.evaluate("document.querySelector('.md-search__input').offsetWidth") > 100


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pictures_suit_the_page(page: Page, address: str, dark: bool) -> None:
    """Of each pair one is shown, and it has been loaded."""
    page.look(1280, dark=dark)
    page.open(f"{address}/concepts.html")
    pictures = "[...document.querySelectorAll('article img[src*=concepts-]')]"
    shown = page.evaluate(f"{pictures}.filter(i => i.offsetParent !== null && i.naturalWidth > 0).map(i => i.src)")
    assert len(shown) == 3 and page.evaluate(f"{pictures}.length") == 6
    assert all(f"-{'dark' if dark else 'light'}.svg" in source for source in shown)


def test_the_pages_are_found_from_the_navigation(site: Path) -> None:
    """None is reached by search alone."""
    text = (site / "index.html").read_text(encoding="utf-8")
    sidebar = set(
        re.findall(r'class="md-nav__link"[^>]*href="([\w-]+\.html)"|href="([\w-]+\.html)" class="md-nav__link', text)
    )
    linked = {name for pair in sidebar for name in pair if name} | {"index.html"}
    assert {path.name for path in site.glob("*.html")} - {"404.html"} <= linked
