"""What experiment trackers get of a run: every figure of metrics.jsonl, its distributions, and a table of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from openrlhf_ada.reporting.histograms import PASS_RATE_BINS

Row: TypeAlias = Mapping[str, Any]

SAMPLES = "ada_samples"
"""Beside a step's figures, under this name: rows of samples.jsonl that have texts."""

HOST_SAMPLE = "generated_samples"
"""OpenRLHF's own name: text and reward of one answer."""

COLUMNS = (
    *("step", "prompt_id", "prompt", "index", "response", "metric", "reward", "tokens", "kept", "coefficient"),
    "cause",
)
"""Of the table of samples."""

MOST_ROWS = 100
"""Of a step's table."""

CURVES = ("ada/first_wave_metric_mean", "ada/signal_share", "ada/reward_mean", "rollout/reward_mean")
"""Figures that also get a curve over rollouts, tokens and seconds, as those of evaluations do, where a tracker has no
other x axis than the step."""


@dataclass(frozen=True, slots=True)
class Axes:
    """What a run had used up at some time: rollouts and tokens drawn, and seconds."""

    rollouts: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def by_name(self) -> dict[str, float]:
        """Every axis but the step."""
        return asdict(self)


class Tracker(Protocol):
    """One page of a run. Names are those of metrics.jsonl; values are numbers, None, or objects of numbers."""

    def step(self, step: int, metrics: Row, axes: Axes, samples: Sequence[Row]) -> None: ...
    def evaluation(self, step: int, metrics: Row, axes: Axes) -> None: ...
    def close(self) -> None: ...


class Trackers:
    """All trackers of a run, in the place of OpenRLHF's loggers: it calls `log_train`, `log_eval` and `close`."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._latest = Axes()

    def use(self, trackers: Sequence[Tracker], used: Axes) -> None:
        """Log to these from here on. `used`: what the run has used up so far."""
        self._trackers, self._latest = list(trackers), used

    def log_train(self, global_step: int, logs_dict: Row) -> None:
        """A step. `logs_dict`: its row of metrics.jsonl, and what is under SAMPLES or HOST_SAMPLE."""
        metrics = dict(logs_dict)
        samples = table(metrics.pop(SAMPLES, ()))
        if host := metrics.pop(HOST_SAMPLE, None):
            samples = samples or [{"step": global_step, "response": host[0], "reward": host[1]}]
        self._latest = axes_of(metrics)
        for tracker in self._trackers:
            tracker.step(global_step, metrics, self._latest, samples)

    def log_eval(self, global_step: int, logs_dict: Row) -> None:
        """OpenRLHF's own figures of an evaluation, which it names without `eval/`."""
        self.evaluation(global_step, {f"eval/{name}": value for name, value in logs_dict.items()}, self._latest)

    def evaluation(self, step: int, metrics: Row, axes: Axes) -> None:
        """An evaluation's row of metrics.jsonl."""
        for tracker in self._trackers:
            tracker.evaluation(step, metrics, axes)

    def close(self) -> None:
        """OpenRLHF is done; an evaluation after the last step may still come."""

    def finish(self) -> None:
        """The run is over."""
        for tracker in self._trackers:
            tracker.close()


def axes_of(metrics: Row) -> Axes:
    """The totals of a step's row."""
    return Axes(metrics["ada/total_drawn"], metrics["ada/total_drawn_tokens"], metrics["ada/wall_clock_s"])


def flat(metrics: Row, prefix: str = "") -> dict[str, float]:
    """Every number, by its name. An object's are named `name/key`: `ada/draws_histogram/8`. None has no number."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}/")
        elif value is not None and not isinstance(value, str):
            numbers[f"{prefix}{name}"] = float(value)
    return numbers


def flat_texts(config: Row, prefix: str = "") -> dict[str, str]:
    """Every flag of a nested configuration as text, by its dotted name; those that are None are left out."""
    texts: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            texts |= flat_texts(value, f"{prefix}{name}.")
        elif value is not None:
            texts[f"{prefix}{name}"] = str(value)
    return texts


class Histogram(NamedTuple):
    """Counts of bins, and their edges, one more."""

    counts: list[float]
    edges: list[float]


MOST_BINS = 500
"""Weights & Biases takes 512."""


def histograms(metrics: Row) -> dict[str, Histogram]:
    """The distributions of a step: prompts by rollouts drawn, and prompts and rollouts by pass-rate bin (in the order
    of PASS_RATE_BINS, each bin one wide)."""
    found: dict[str, Histogram] = {}
    if draws := metrics.get("ada/draws_histogram"):
        found["ada/draws"] = _of_counts({int(drawn): prompts for drawn, prompts in draws.items()})
    if bins := metrics.get("ada/allocation_by_pass_rate"):
        edges = [float(edge) for edge in range(len(PASS_RATE_BINS) + 1)]
        for what in ("prompts", "rollouts"):
            counts = [float(bins.get(label, {}).get(what, 0)) for label in PASS_RATE_BINS]
            found[f"ada/allocated_{what}"] = Histogram(counts, edges)
    return found


def _of_counts(counts: Mapping[int, int]) -> Histogram:
    """A bin for each whole number from the least to the largest, or wider ones where these are too many."""
    low, high = min(counts) - 0.5, max(counts) + 0.5
    heights, edges = np.histogram(
        list(counts), bins=min(round(high - low), MOST_BINS), range=(low, high), weights=list(counts.values())
    )
    return Histogram([float(height) for height in heights], [float(edge) for edge in edges])


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Recorded samples as rows of COLUMNS. A prompt's text stands in its first recorded row, and here in each."""
    prompts = {row["key"]: row["prompt"] for row in rows if "prompt" in row}
    complete = [{**row, "prompt": prompts.get(row["key"], "")} for row in rows[:MOST_ROWS]]
    return [{name: row.get(name) for name in COLUMNS} for row in complete]


def curves(metrics: Row) -> dict[str, float]:
    """Of a row's figures, those that get a curve over each of `Axes`."""
    return {name: value for name, value in flat(metrics).items() if name in CURVES or name.startswith("eval/")}
