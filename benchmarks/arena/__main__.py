"""python -m benchmarks.arena VERB; each of VERBS has --help."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from benchmarks.arena.trainings import UnfinishedTrainingError
from openrlhf_ada.config.visible import error_text

PROG = "python -m benchmarks.arena"

VERBS = {
    "campaign": ("run_campaign", "compare methods at equal cost, with a small model that learns in seconds"),
    "grid": ("run_grid", "compare methods of equal epochs and updates on tasks with luck and many right ways"),
    "agreement": ("run_agreement", "train one small language model in one process and on the real stack"),
    "real": ("run_real", "train SmolLM2-135M with each method on the real stack"),
    "start": ("supervised_start", "teach SmolLM2-135M running totals, and measure its pass rates"),
    "weights": ("measured_weights", "measure which weight methods give a prompt, in training"),
    "seconds": ("seconds", "derive the figures that seconds are computed from"),
    "pack": ("packed", "keep the trials of a finished campaign in small files"),
    "keep": ("grid_kept", "keep the trials of a grid in one small file"),
    "page": ("page", "write the table of docs/arena.md, GRID.md and RESULTS.md from the results that are kept"),
}
"""Module and summary."""


def main(argv: Sequence[str]) -> int:
    """Returns the exit status (1: a training failed, 2: bad input, 130: interrupted)."""
    if argv and argv[0] == "--quick":
        argv = ["grid", *argv]
    if not argv or argv[0] not in VERBS:
        known = "".join(f"  {name:10} {summary}\n" for name, (_, summary) in VERBS.items())
        print(
            f"usage: {PROG} --quick | VERB ...\n\n{known}", end="", file=sys.stdout if "--help" in argv else sys.stderr
        )
        return 0 if "--help" in argv else 2
    prog = f"{PROG} {argv[0]}"
    verb = import_module(f"benchmarks.arena.{VERBS[argv[0]][0]}")
    try:
        with _sigterm_as_interrupt():
            verb.main(prog, argv[1:])
    except (ValueError, OSError) as error:
        print(f"{prog}: error: {error_text(error)}", file=sys.stderr)
        return 2
    except UnfinishedTrainingError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted; the same call goes on", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
