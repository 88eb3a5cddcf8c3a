"""The pictures of docs/report.md, from two real demo runs.

    make demo-toy RUN_DIR=runs/balance
    openrlhf-ada demo --toy --run-dir runs/fixed --ada_exit fixed --ada_max_samples 8
    python benchmarks/report_pictures.py runs/balance runs/fixed

Needs Chromium on the path. Writes docs/images/report-*.png.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from openrlhf_ada.reporting.comparison import write_comparison
from openrlhf_ada.reporting.report import write_report
from openrlhf_ada.reporting.run_record import read_run

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from browser import Page, browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"

SETTLE_MS = 2500
"""Charts that come into a higher window are drawn one after the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory for the pictures of one run")
    parser.add_argument("other", type=Path, help="run directory to compare it with")
    args = parser.parse_args()
    runs = [read_run(args.run), read_run(args.other)]
    with TemporaryDirectory() as folder, browser() as tab:
        report, both = Path(folder) / "report.html", Path(folder) / "both.html"
        write_report(runs[0], report)
        write_comparison(runs, both)
        take(tab, report, IMAGES / "report-light.png", 1200, 1420)
        take(tab, report, IMAGES / "report-dark.png", 1200, 1000, dark=True, at="#filters")
        take(tab, report, IMAGES / "report-narrow.png", 390, 1300, at=".plot")
        take(tab, both, IMAGES / "report-two-runs.png", 1200, 1420)


def take(tab: Page, page: Path, picture: Path, width: int, height: int, *, dark: bool = False, at: str = "") -> None:
    """A picture of the page's top, or of what begins at an element, there with the first sample opened."""
    tab.look(width, height, dark=dark)
    tab.open(page.as_uri())
    if at:
        tab.evaluate("document.querySelector('#visits details summary')?.click()")
        tab.evaluate(f"document.querySelector({at!r}).closest('section').scrollIntoView()")
    tab.evaluate(f"new Promise((done) => setTimeout(done, {SETTLE_MS}))")
    if tab.complaints:
        raise SystemExit(f"{page}: {tab.complaints}")
    tab.picture(picture)
    print(picture)


if __name__ == "__main__":
    main()
