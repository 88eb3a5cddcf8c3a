"""Write the results in docs/arena.md anew, from the small files that are kept with the code.

With --pack, these files are made first, from the folder of a finished campaign.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ada.arena import agreement, control_page, cost_figure, method_page, real, real_page, short_page
from openrlhf_ada.arena.agreement_page import FIGURE, FIRST, LAST, draw_agreement, render_agreement
from openrlhf_ada.arena.campaign import TRIALS, Results, final_cells
from openrlhf_ada.arena.folders import SETTINGS
from openrlhf_ada.arena.page import PACKED, PAGE_COSTS, draw, inserted, pack, render, task_of, unpack
from openrlhf_ada.arena.tables import REFERENCE
from openrlhf_ada.arena.tasks import TASKS
from openrlhf_ada.config import program
from openrlhf_ada.config.visible import error_text

PROG = "python -m openrlhf_ada.cli.arena_page"
AGREEMENT = "agreement.json"
REAL = "real"
"""Folder of the results on the real stack: the two small files of `arena --real`."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    try:
        if args.pack:
            pack_all(args.pack, args.results, args.seeds, args.budget)
        if args.agreement:
            args.results.mkdir(parents=True, exist_ok=True)
            shutil.copy(args.agreement / AGREEMENT, args.results / AGREEMENT)
        if args.real:
            keep_real(args.real, args.results / REAL)
        page_of(args.results, args.page)
    except (ValueError, FileNotFoundError) as error:
        print(f"{PROG}: error: {error_text(error)}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    add = parser.add_argument
    add("page", type=Path, help="docs/arena.md; figures go to the folder images beside it")
    add(
        "--results",
        type=Path,
        default=PACKED,
        metavar="DIR",
        help="small files of results (default: those of the package)",
    )
    add("--pack", type=Path, metavar="DIR", help="folder of a campaign, whose trials are packed first")
    add("--agreement", type=Path, metavar="DIR", help="folder of `arena --agreement`, whose results are copied first")
    add("--real", type=Path, metavar="DIR", help="folder of `arena --real`, whose results are copied first")
    add("--seeds", type=int, default=10, metavar="N", help="seeds of that campaign (default 10)")
    add("--budget", type=int, default=24_000, metavar="N", help="rollouts of its trials (default 24000)")
    return parser


def pack_all(folder: Path, out: Path, seeds: int, budget: int) -> None:
    """One file per task, with all methods that are finished. Raises ValueError where there is none."""
    results = Results(folder / TRIALS)
    packed = 0
    for task in TASKS:
        names = dict.fromkeys(cell.method for cell in results.by_cell if cell.task == task)
        methods: dict[str, list[str]] = {}
        for cost in PAGE_COSTS:
            done = [name for name in names if is_finished(results, task, name, seeds, budget, cost)]
            for name in names.keys() - set(done):
                print(f"{task}, {cost}: {name} is not finished and left out", file=sys.stderr)
            if REFERENCE in done:
                methods[cost] = done
        if methods:
            pack(results, task, methods, seeds, budget, out / f"{task}.jsonl.gz")
            packed += 1
    if not packed:
        raise ValueError(
            f"--pack {folder}: {REFERENCE} is not finished on any task with --seeds {seeds} and --budget {budget}. "
            f"Run {program.called()} arena --cost {','.join(PAGE_COSTS)} --out {folder}"
        )


def is_finished(results: Results, task: str, method: str, seeds: int, budget: int, cost: str) -> bool:
    """Are all trials there, tuning included?"""
    try:
        cells = final_cells(results, [task], [method], seeds, budget, cost)
    except KeyError:
        return False
    return all(cell in results.by_cell for cell in cells)


def keep_real(folder: Path, out: Path) -> None:
    """Copy what is to be kept. Raises FileNotFoundError where no run has ended, before anything is written."""
    kept = {name: (folder / name).read_bytes() for name in (SETTINGS, real.CELLS)}
    out.mkdir(parents=True, exist_ok=True)
    for name, content in kept.items():
        (out / name).write_bytes(content)


def page_of(folder: Path, page: Path) -> None:
    """Write text and figures. Raises ValueError where there are no results."""
    files = [folder / f"{task}.jsonl.gz" for task in TASKS]
    by_task = [unpack(file) for file in files if file.exists()]
    if not by_task:
        raise ValueError(f"--results {folder}: there are no files like {files[0].name}. Make them with --pack DIR")
    text = inserted(page.read_text(encoding="utf-8"), render(by_task))
    if short_page.FIRST in text:
        text = inserted(text, short_page.render_short(by_task), (short_page.FIRST, short_page.LAST))
    if control_page.FIRST in text:
        text = inserted(text, control_page.render_controls(by_task), (control_page.FIRST, control_page.LAST))
    if method_page.FIRST in text:
        text = inserted(text, method_page.render_methods(), (method_page.FIRST, method_page.LAST))
    if (folder / AGREEMENT).exists():
        kept = agreement.unpack(folder / AGREEMENT)
        text = inserted(text, render_agreement(*kept), (FIRST, LAST))
        draw_agreement(*kept, page.parent / "images" / FIGURE)
    conditions = real.read_conditions(folder / REAL)
    if conditions is not None:
        results = real.Results(folder / REAL, conditions, resumes=False)
        text = inserted(text, real_page.render_real(results), (real_page.FIRST, real_page.LAST))
        real_page.draw_real(results, page.parent / "images" / real_page.FIGURE)
    page.write_text(text, encoding="utf-8")
    for by_cost in by_task:
        draw(by_cost, page.parent / "images" / f"arena-{task_of(by_cost)}.png")
    cost_figure.draw_costs(by_task, page.parent / "images" / cost_figure.FIGURE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
