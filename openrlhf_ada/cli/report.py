"""openrlhf-ada report: the page of a run directory, finished or not, or of several runs beside each other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ada.cli import plan
from openrlhf_ada.reporting.other_logs import is_log

FOLLOW_PORT = 9265
"""Beside that of Ray's dashboard."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ada report",
        description="Write report.html for a run, finished or not; or one page for several runs. Of rollouts that "
        "verl, TRL, prime-rl or slime have logged, say what `openrlhf-ada plan` says",
    )
    parser.add_argument(
        "run_dir", type=Path, nargs="+", help="run directory, or log; of several runs, the page compares them (--out)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="FILE",
        help="where the page goes (default: report.html in the run directory; with several runs comparison.html here)",
    )
    parser.add_argument(
        "--follow",
        type=int,
        nargs="?",
        const=FOLLOW_PORT,
        metavar="PORT",
        help="serve the page of a run that goes on, on this machine alone; it takes new steps by itself (default port "
        f"{FOLLOW_PORT}; 0: a free one)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    args = build_parser().parse_args(argv)
    if all(map(is_log, args.run_dir)):
        if args.follow is not None or args.out is not None:
            raise ValueError("--follow and --out are for runs of ours. Leave them out for a log")
        return max(plan.main([str(log)]) for log in args.run_dir)
    from openrlhf_ada.reporting.comparison import write_comparison
    from openrlhf_ada.reporting.report import write_report
    from openrlhf_ada.reporting.run_record import read_run

    if args.follow is not None:
        return _follow(args)
    runs = [read_run(folder) for folder in args.run_dir]
    if args.out is not None and not args.out.parent.is_dir():
        raise FileNotFoundError(f"--out {args.out}: there is no folder {args.out.parent}")
    if args.out is not None and args.out.is_dir():
        raise IsADirectoryError(f"--out {args.out}: it is a folder; name a file in it")
    out = args.out or (args.run_dir[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    if len(runs) == 1:
        if said := write_report(runs[0], out):
            print(said)
    else:
        write_comparison(runs, out)
    print(out)
    return 0


def _follow(args: argparse.Namespace) -> int:
    """Until Ctrl-C. Raises ValueError for several runs."""
    if len(args.run_dir) > 1 or args.out is not None:
        raise ValueError("--follow is for one run, and writes no file. Name one, without --out")
    from openrlhf_ada.reporting.follow import server_of

    with server_of(args.run_dir[0], args.follow) as server:
        host, port = server.server_address[:2]
        print(f"http://{host}:{port}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
