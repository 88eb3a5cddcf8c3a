"""The picture of the live line in docs/tracking.md, from a real run in a terminal of its own.

    pip install pyte
    python benchmarks/live_picture.py --run-dir runs/picture     the toy demo; writes docs/images/live-line.png

Needs Chromium on the path. The terminal has 132 columns. What it shows is kept as of a moment in the middle of the
run, in the terminal's own colours.
"""

from __future__ import annotations

import argparse
import codecs
import html
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from tempfile import TemporaryDirectory

import pyte

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from browser import browser  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "live-line.png"
COLUMNS, LINES = 132, 40
MOMENT = re.compile(r"step +([6-9]|1\d)/.* unresolved, [12]\d done")
"""Seen on the screen: the moment to keep. Half of a step's prompts are done."""

FIRST_LINE = "evaluation before training"
"""What is above it is left out."""

COLOURS = {
    "default": "#d8dee9", "black": "#4c566a", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#eceff4",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", required=True, help="run directory of the demo, which must not exist")
    args = parser.parse_args()
    kept = screen_of(["openrlhf-ada", "demo", "--toy", "--run-dir", args.run_dir])
    with TemporaryDirectory() as folder, browser() as tab:
        page = Path(folder) / "live.html"
        page.write_text(kept, encoding="utf-8")
        tab.look(1130, 40 + 18 * (kept.count("\n") + 1))
        tab.open(page.as_uri())
        tab.picture(PICTURE)
    print(PICTURE)


def screen_of(command: list[str]) -> str:
    """The page of a terminal in which the command runs, as of MOMENT; the command goes on to its end."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream, decoder = pyte.Stream(screen), codecs.getincrementaldecoder("utf-8")("replace")
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    kept = ""
    while True:
        try:
            said = os.read(ours, 65536)
        except OSError:
            break  # how Linux says that nobody has the terminal open any more
        stream.feed(decoder.decode(said))
        if not kept and any(MOMENT.search(line) for line in screen.display):
            kept = page_of(screen)
    if process.wait() or not kept:
        raise SystemExit(
            f"{' '.join(command)}: exit status {process.returncode}; its last screen:\n" + "\n".join(screen.display)
        )
    return kept


def page_of(screen: pyte.Screen) -> str:
    """HTML of the lines down to the last one that is not empty."""
    lines = []
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        lines.append("".join(cell_of(cell) for cell in cells).rstrip())
    while lines and not screen.display[len(lines) - 1].strip():
        lines.pop()
    first = next(y for y, line in enumerate(screen.display) if line.startswith(FIRST_LINE))
    lines = lines[first:]
    style = f"background:#2e3440;color:{COLOURS['default']};font:13px/18px 'DejaVu Sans Mono',monospace;margin:20px"
    return (
        f'<meta charset="utf-8"><body style="{style}"><pre style="margin:0;font:inherit">'
        + "\n".join(lines)
        + "</pre>"
    )


def cell_of(cell: pyte.screens.Char) -> str:
    text = html.escape(cell.data)
    colour = COLOURS.get(cell.fg.removeprefix("bright"), f"#{cell.fg}")
    if cell.fg == "default" and not cell.bold:
        return text
    return f'<span style="color:{colour}{";font-weight:bold" if cell.bold else ""}">{text}</span>'


if __name__ == "__main__":
    main()
