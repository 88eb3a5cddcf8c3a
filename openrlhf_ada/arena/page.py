"""Results that are kept with the code, and the part of docs/arena.md that is made from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ada.arena import costs
from openrlhf_ada.arena.campaign import Cell, Result, Results, final_cells
from openrlhf_ada.arena.tables import REFERENCE, Finals, Rank, Row, finals_of, ranks, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST, LAST = "<!-- results: written by `make arena-docs` -->", "<!-- end of results -->"

PAGE_COSTS = ("rollouts", "seconds")
"""What methods are tuned for and compared by on the page."""

THINNED = 2
"""Of the measurements of a trial every second is kept."""

DRAWN = (REFERENCE, "dapo", "pos", "balance", "est")
"""Methods that have a colour of their own in every figure; the cheapest of all gets one as well."""


def cost_model() -> dict[str, Any]:
    """The figures that seconds are computed from, as JSON has them. Settings tuned for seconds depend on them."""
    figures = {name: asdict(hardware) for name, hardware in costs.HARDWARE.items()}
    names = ("SCALE", "PROMPT_TOKENS", "ANSWER_TOKENS", "WAVE_SECONDS", "STREAM_WAIT", "REFILL_WAIT")
    return json.loads(json.dumps(figures | {name: getattr(costs, name) for name in names}))


# -- results in small files -------------------------------------------------------------------------------------------


def pack(results: Results, task: str, methods: Sequence[str], seeds: int, budget: int, file: Path) -> None:
    """Write the trials of a task that count, tuned for each of PAGE_COSTS: each once, thinned, with 4 digits."""
    lines: list[dict[str, Any]] = [{"task": task, "seeds": seeds, "budget": budget, "cost model": cost_model()}]
    kept: dict[Cell, None] = {}
    for cost in PAGE_COSTS:
        finals = finals_of(results, task, methods, seeds, budget, cost)
        lines.append({"cost": cost, "settings": finals.settings})
        kept |= dict.fromkeys(final_cells(results, [task], list(finals.runs), seeds, budget, cost))
    lines += [asdict(cell) | _thinned(results.by_cell[cell]) for cell in kept]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without a time, so that the same results give the same file.
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _thinned(result: Result) -> Result:
    accuracy = [round(value, 4) for value in result["accuracy"][::THINNED]]
    points = result["spent"][::THINNED]
    columns = {
        name: np.diff([point[name] for point in points], prepend=0).tolist() for name in points[0] if name != "batches"
    }
    shape = [len(waves) for waves in points[-1]["batches"]]
    flat = [[count for wave in _padded(point["batches"], shape) for count in wave] for point in points]
    return {
        "accuracy": accuracy,
        "spent": columns,
        "shape": shape,
        "batches": np.diff(flat, axis=0, prepend=0).tolist(),
    }


def _padded(batches: Sequence[Sequence[Sequence[int]]], shape: Sequence[int]) -> Iterator[Sequence[int]]:
    """All waves one after the other, 0 where there was none yet."""
    for batch, waves in enumerate(shape):
        for wave in range(waves):
            colour, label = (colours[name], name) if name in colours else (FAINT, None)
        axes.plot(at, np.mean(curves, axis=0), color=colour, linewidth=2 if label else 1.2, label=label)
    axes.axhline(finals.target(), color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
