"""The page of an evaluation: its tables, and pass@k and the share of groups without a signal against k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openrlhf_ada.eval.results import ModelResults
from openrlhf_ada.reporting.charts import COLORS, Chart, Section, Series, with_data
from openrlhf_ada.reporting.page import escaped, html_table, write_page


def write_results(
    results: Sequence[ModelResults], title: str, tables: Sequence[list[list[str]]], lines: Sequence[str], out: Path
) -> Path:
    """Write the page: `tables`, each a header and rows; `lines`; and curves of every benchmark. Returns `out`."""
    head = "".join(html_table(*_escaped(table), left=2) for table in tables)
    return write_page(
        out,
        title="Evaluation",
        subtitle=f"{', '.join(result.model for result in results)}: {title}",
        head=head + "".join(f'<p class="note">{escaped(line)}</p>' for line in lines),
        sections=with_data([Section(benchmark, _charts(results, benchmark)) for benchmark in results[0].tables()]),
        source="docs/evaluation.md explains the figures.",
    )


def _escaped(table: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    header, *rows = [[escaped(cell) for cell in row] for row in table]
    return header, rows


def _charts(results: Sequence[ModelResults], benchmark: str) -> list[Chart]:
    return [
        _chart(results, benchmark, "pass@", "Solved by at least one of k answers", "share of problems", least=1),
        # A group of one has no spread by itself.
        _chart(results, benchmark, "all_equal@", "Groups of k that are all right or all wrong", "share", least=2),
    ]


def _chart(
    results: Sequence[ModelResults], benchmark: str, measure: str, title: str, y_label: str, *, least: int
) -> Chart:
    """Curves over k with 95 % bands; k is on the axis in steps, whatever lies between."""
    tables = [result.estimates()[benchmark] for result in results]
    ks = sorted({k for table in tables for name in table if name.startswith(measure) and (k := _k(name)) >= least})
    series = []
    for place, (result, table) in enumerate(zip(results, tables, strict=True)):
        known = [(i, table[f"{measure}{k}"]) for i, k in enumerate(ks) if f"{measure}{k}" in table]
        values = [value for _, value in known]
        means, lows, highs = ([getattr(v, name) for v in values] for name in ("mean", "low", "high"))
        x, color = {"x": [i for i, _ in known]}, COLORS[place % len(COLORS)]
        series.append(Series(result.model, means, x, color, low=lows, high=highs, band=True))
    name, categories = f"{measure}{benchmark}", [str(k) for k in ks]
    return Chart(name, title, "", y_label, series if ks else [], "k", y_share=True, categories=categories)


def _k(name: str) -> int:
    return int(name.partition("@")[2])
