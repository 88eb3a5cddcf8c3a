"""openrlhf-ada report: the page of a run directory, finished or not, or of several runs beside each other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ada report",
        description="Write report.html for a run, finished or not; or one page for several runs",
    )
    parser.add_argument(
        "run_dir", type=Path, nargs="+", help="run directory; with several, the page compares them (--out)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="FILE",
        help="where the page goes (default: report.html in the run directory; with several runs comparison.html here)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    args = build_parser().parse_args(argv)
    from openrlhf_ada.reporting.comparison import write_comparison
    from openrlhf_ada.reporting.report import write_report
    from openrlhf_ada.reporting.run_record import read_run

    runs = [read_run(folder) for folder in args.run_dir]
    if args.out is not None and not args.out.parent.is_dir():
        raise FileNotFoundError(f"--out {args.out}: there is no folder {args.out.parent}")
    if args.out is not None and args.out.is_dir():
        raise IsADirectoryError(f"--out {args.out}: it is a folder; name a file in it")
    out = args.out or (args.run_dir[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    if len(runs) == 1:
        write_report(runs[0], out)
    else:
        write_comparison(runs, out)
    print(out)
    return 0
