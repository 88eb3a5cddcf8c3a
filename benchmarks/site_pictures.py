"""The pictures of the documentation site.

    python benchmarks/site_pictures.py                 writes docs/images/site-*.png
    python benchmarks/site_pictures.py --all DIR       every page, light, dark and narrow, to be looked at

Needs Chromium on the path.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from browser import Page, browser, served  # noqa: E402

IMAGES = ROOT / "docs" / "images"

LOOKS = {"light": (1280, False), "dark": (1280, True), "narrow": (390, True)}
"""Width in pixels, and whether the reader prefers dark pages."""

HEIGHT = 900
TALLEST = 6000
SETTLE_MS = 500
"""The theme moves its header and its table of contents when a page is loaded."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="DIR", help="pictures of every page go there")
    args = parser.parse_args()
    with TemporaryDirectory() as folder, browser() as tab:
        mkdocs = Path(sys.executable).parent / "mkdocs"
        # Not strict: README shows pictures that may not be there yet.
        command = [mkdocs, "build", "--quiet", "--site-dir", folder]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
        with served(Path(folder)) as address:
            if args.all is None:
                take(tab, f"{address}/concepts.html", IMAGES / "site-light.png", "light")
                take(tab, f"{address}/concepts.html", IMAGES / "site-narrow.png", "narrow")
                return
            args.all.mkdir(parents=True, exist_ok=True)
            for page in sorted(Path(folder).glob("*.html")):
                for look in LOOKS:
                    take(tab, f"{address}/{page.name}", args.all / f"{page.stem}-{look}.png", look, whole=True)


def take(tab: Page, page: str, picture: Path, look: str, *, whole: bool = False) -> None:
    """A picture of the page's first window, or of the whole page as far as TALLEST. Says so if it is too wide."""
    width, dark = LOOKS[look]
    tab.look(width, HEIGHT, dark=dark)
    tab.open(page)
    tab.evaluate(f"new Promise((done) => setTimeout(done, {SETTLE_MS}))")
    if (wide := tab.evaluate("document.documentElement.scrollWidth")) > width:
        print(f"{page}, {look}: {wide} pixels wide, the window has {width}", file=sys.stderr)
    if whole:
        tab.look(width, min(TALLEST, tab.evaluate("document.documentElement.scrollHeight")), dark=dark)
    tab.picture(picture)
    print(picture)


if __name__ == "__main__":
    main()
