"""TensorBoard's files for a run: figures by step, their histograms, a table of samples, and curves over other axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.tracking import COLUMNS, Axes, Row, curves, flat, histograms


class TensorboardTracker:
    """`writer`: torch's SummaryWriter that OpenRLHF has opened. `open_writer(folder)` gives another one.

    TensorBoard knows one x axis, a whole number. So curves over rollouts, tokens and seconds are in folders beside the
    run's files, which TensorBoard shows as runs of their own: `by_rollouts/eval/accuracy`.

    `resumed_after`: a step and what was used up by then; what an earlier start wrote after it is no longer shown.
    """

    def __init__(self, writer: Any, open_writer: Callable[[str], Any], resumed_after: tuple[int, Axes] | None) -> None:
        folder = Path(writer.log_dir)
        self._writer = writer
        self._by_axis = {name: open_writer(str(folder / f"by_{name}")) for name in Axes().by_name()}
        if resumed_after is not None:
            step, axes = resumed_after
            _forget_after(writer, step)
            for name, value in axes.by_name().items():
                _forget_after(self._by_axis[name], math.ceil(value))

    def step(self, step: int, metrics: Row, axes: Axes, samples: Sequence[Row]) -> None:
        for name, value in flat(metrics).items():
            self._writer.add_scalar(f"train/{name}", value, step)
        for name, (counts, edges) in histograms(metrics).items():
            self._add_histogram(f"train/{name}", counts, edges, step)
        if samples:
            self._writer.add_text("train/samples", markdown(samples), step)
        self._add_curves(metrics, axes, "train/")

    def evaluation(self, step: int, metrics: Row, axes: Axes) -> None:
        for name, value in flat(metrics).items():
            self._writer.add_scalar(name, value, step)
        self._add_curves(metrics, axes, "")

    def close(self) -> None:
        for writer in (self._writer, *self._by_axis.values()):
            writer.close()

    def _add_curves(self, metrics: Row, axes: Axes, prefix: str) -> None:
        for axis, at in axes.by_name().items():
            for name, value in curves(metrics).items():
                self._by_axis[axis].add_scalar(f"by_{axis}/{prefix}{name}", value, math.ceil(at))
            self._by_axis[axis].flush()
        self._writer.flush()

    def _add_histogram(self, tag: str, counts: list[float], edges: list[float], step: int) -> None:
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        weighted = list(zip(counts, middles, strict=True))
        # A bucket before the first, empty: TensorBoard takes the first one's lower edge from it.
        self._writer.add_histogram_raw(
            tag,
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(count * middle for count, middle in weighted),
            sum_squares=sum(count * middle**2 for count, middle in weighted),
            bucket_limits=edges,
            bucket_counts=[0.0, *counts],
            global_step=step,
        )


def _forget_after(writer: Any, step: int) -> None:
    """What stands in earlier files after this step is no longer shown.

    A writer says so at the head of a file. So the one that it has begun is ended, and the next write begins another.
    """
    writer.close()
    writer.purge_step = step + 1


def markdown(samples: Sequence[Row]) -> str:
    """A table of samples."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return head + "".join(f"| {' | '.join(_cell(sample.get(name)) for name in COLUMNS)} |\n" for sample in samples)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "" if value is None else str(value)
    for character, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\r", ""), ("\n", "<br>")):
        text = text.replace(character, written)
    return text
