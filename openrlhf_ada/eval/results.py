"""Results of one or several models on several benchmarks, as tables, as JSON and as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_ada.eval.measures import (
    Answered,
    Difference,
    Estimate,
    Floats,
    difference,
    estimate,
    per_problem,
    pooled,
)
from openrlhf_ada.reporting.charts import COLORS, Chart, Section, Series, with_data
from openrlhf_ada.reporting.page import escaped, html_table, made_page, write_page

AVERAGE = "average"
"""All benchmarks together, weighted by their numbers of problems, as in the published tables."""

NO_SHARES = ("tokens", "surprise")

CURVES = (
    ("pass@", "Solved by at least one of k answers", "share of problems", 1),
    ("all_equal@", "Groups of k that are all right or all wrong", "share", 2),
)
"""Measure, title and axis of a chart, and the least k: a group of one has no spread."""

INTERVALS = "95 % over problems: score interval; tokens and surprise: Student's t (docs/evaluation.md)"


@dataclass
class ModelResults:
    """`values`: by benchmark and measure, per problem (see `measures.per_problem`); `problems`: their ids, in order;
    `no_score`: answers without one, by benchmark, which are in no figure."""

    model: str
    values: dict[str, dict[str, Floats]] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    no_score: dict[str, int] = field(default_factory=dict)
    _estimates: dict[str, dict[str, Estimate]] = field(default_factory=dict)

    def add(self, benchmark: str, answered: Sequence[Answered], n: int, ks: Sequence[int], no_score: int) -> None:
        self.values[benchmark] = per_problem(answered, n, ks)
        self.problems[benchmark] = [problem.problem for problem in answered]
        self.no_score[benchmark] = no_score
        self._estimates.clear()

    def accuracies(self, benchmark: str) -> dict[str, float]:
        """avg@n by problem."""
        table = self.values[benchmark]
        name = next(name for name in table if name.startswith("avg@"))
        return dict(zip(self.problems[benchmark], table[name], strict=True))

    def tables(self) -> dict[str, dict[str, Floats]]:
        """By benchmark; with more than one also their average."""
        together = {AVERAGE: pooled(self.values)} if len(self.values) > 1 else {}
        return self.values | together

    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Measures that no problem has are left out."""
        if not self._estimates:
            self._estimates |= {
                benchmark: {
                    name: estimate(values, share=_is_share(name, values))
                    for name, values in table.items()
                    if not np.isnan(values).all()
                }
                for benchmark, table in self.tables().items()
            }
        return self._estimates


def _is_share(name: str, values: Floats) -> bool:
    """Scores of reward functions that are not ours may be any numbers."""
    known = values[~np.isnan(values)]
    return name not in NO_SHARES and known.min() >= 0.0 and known.max() <= 1.0


def ks_up_to(n: int) -> list[int]:
    """1, 2, 4, ... and n."""
    return sorted({1 << power for power in range(int(math.log2(n)) + 1)} | {n})


def differences(first: ModelResults, other: ModelResults) -> dict[str, Difference]:
    """By benchmark: avg@n of `other` minus that of `first`, over the problems that both have answers to."""
    found: dict[str, Difference] = {}
    pairs: list[tuple[Floats, Floats]] = []
    for benchmark in first.values:
        ours, theirs = first.accuracies(benchmark), other.accuracies(benchmark)
        shared = [problem for problem in ours if problem in theirs]
        if shared:
            pairs.append((np.array([theirs[p] for p in shared]), np.array([ours[p] for p in shared])))
            found[benchmark] = difference(*pairs[-1])
    if len(pairs) > 1:
        found[AVERAGE] = difference(*(np.concatenate(side) for side in zip(*pairs, strict=True)))
    return found


def as_json(results: Sequence[ModelResults], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was estimated, with the settings it was sampled with."""
    models: list[dict[str, Any]] = []
    for result in results:
        figures = {
            benchmark: {name: asdict(value) for name, value in table.items()}
            for benchmark, table in result.estimates().items()
        }
        model = {"model": result.model, "figures": figures, "no_score": result.no_score}
        if result is not results[0]:
            model["minus_first"] = {name: asdict(v) for name, v in differences(results[0], result).items()}
        models.append(model)
    return {"settings": dict(settings), "intervals": INTERVALS, "models": models}


def accuracy_rows(results: Sequence[ModelResults], n: int, k: int) -> list[list[str]]:
    """Header and rows of the main table: of each benchmark and model accuracy, maj@n, pass@k and the mean score, with
    intervals."""
    more = [f"pass@{k}", f"maj@{n}"] if k > 1 else []
    return [
        ["benchmark", "model", "problems", f"avg@{n}", *more, "mean score"],
        *(
            [benchmark, result.model, str(table[f"avg@{n}"].num_problems)]
            + [format_estimate(table.get(name)) for name in (f"avg@{n}", *more, "score")]
            for benchmark, result, table in _each(results)
        ),
    ]


def detail_rows(results: Sequence[ModelResults], group: int) -> list[list[str]]:
    """Header and rows of the second table. `group`: size of all-equal groups."""
    return [
        ["benchmark", "model", f"equal@{group}", "tokens", "cut off", "entropy", "no score"],
        *(
            [
                benchmark,
                result.model,
                format_share(table.get(f"all_equal@{group}")),
                f"{table['tokens'].mean:.0f}" if "tokens" in table else "-",
                format_share(table["truncated"]),
                f"{table['surprise'].mean:.2f}" if "surprise" in table else "-",
                str(sum(result.no_score.values()) if benchmark == AVERAGE else result.no_score[benchmark]),
            ]
            for benchmark, result, table in _each(results)
        ),
    ]


def _each(results: Sequence[ModelResults]) -> list[tuple[str, ModelResults, dict[str, Estimate]]]:
    return [
        (benchmark, result, result.estimates()[benchmark]) for benchmark in results[0].tables() for result in results
    ]


def format_estimate(value: Estimate | None) -> str:
    return "-" if value is None else f"{100 * value.mean:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def format_share(value: Estimate | None) -> str:
    return "-" if value is None else f"{100 * value.mean:.1f}"


def difference_lines(results: Sequence[ModelResults]) -> list[str]:
    """One line per model and benchmark, against the first model."""
    return [
        f"{benchmark}: {result.model} - {results[0].model} = {100 * value.mean:+.1f} points "
        f"[{100 * value.low:+.1f}, {100 * value.high:+.1f}]; "
        f"{value.num_differing} of {value.num_problems} problems differ"
        for result in results[1:]
        for benchmark, value in differences(results[0], result).items()
    ]


def write_results(
    results: Sequence[ModelResults], title: str, tables: Sequence[list[list[str]]], lines: Sequence[str], out: Path
) -> Path:
    """Write the page: `tables`, each a header and rows; `lines`; and curves of every benchmark. Returns `out`."""
    head = "".join(html_table(*_escaped(table), left=2) for table in tables)
    page = made_page(
        title="Evaluation",
        subtitle=f"{', '.join(result.model for result in results)}: {title}",
        head=head + "".join(f'<p class="note">{escaped(line)}</p>' for line in lines),
        sections=with_data(
            [Section(name, [_chart(results, name, *c) for c in CURVES]) for name in results[0].tables()]
        ),
        source="docs/evaluation.md explains the figures.",
    )
    return write_page(out, page)


def _escaped(table: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    header, *rows = [[escaped(cell) for cell in row] for row in table]
    return header, rows


def _chart(
    results: Sequence[ModelResults], benchmark: str, measure: str, title: str, y_label: str, least: int
) -> Chart:
    """Curves over k with 95 % bands; k is on the axis in steps, whatever lies between."""
    tables = [result.estimates()[benchmark] for result in results]
    ks = sorted({int(name.removeprefix(measure)) for table in tables for name in table if name.startswith(measure)})
    ks = [k for k in ks if k >= least]
    series = []
    for place, (result, table) in enumerate(zip(results, tables, strict=True)):
        known = [(i, table[f"{measure}{k}"]) for i, k in enumerate(ks) if f"{measure}{k}" in table]
        means, lows, highs = ([getattr(value, name) for _, value in known] for name in ("mean", "low", "high"))
        x, color = {"x": [i for i, _ in known]}, COLORS[place % len(COLORS)]
        series.append(Series(result.model, means, x, color, low=lows, high=highs, band=True))
    name, categories = f"{measure}{benchmark}", [str(k) for k in ks]
    return Chart(name, title, "", y_label, series if ks else [], "k", y_share=True, categories=categories)
