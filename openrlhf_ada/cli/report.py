"""openrlhf-ada report: the pages of a run directory, finished or not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ada report", description="Write report.html and plot.png for a run, finished or not"
    )
    parser.add_argument("run_dir", type=Path, help="run directory; both files are written there")
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    args = build_parser().parse_args(argv)
    from openrlhf_ada.reporting.plots import plot_run
    from openrlhf_ada.reporting.report import write_report
    from openrlhf_ada.reporting.run_record import read_run

    run = read_run(args.run_dir)
    print(plot_run(run, args.run_dir / "plot.png"))
    print(write_report(run, args.run_dir / "report.html"))
    return 0
