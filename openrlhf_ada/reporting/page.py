"""One self-contained HTML file: charts that answer to the mouse, tables, samples. No network, no other file.

The page may run its own scripts only: a content policy names their hashes, and forbids every connection but that of a
followed run to its server. What comes
from a model, a data set or a flag reaches the page as escaped text, or as JSON that the script writes as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from openrlhf_ada import __version__
from openrlhf_ada.config.visible import visible
from openrlhf_ada.reporting.charts import AXES, Chart, Section, Series, shortened
from openrlhf_ada.reporting.jsonl import write_atomically


def write_page(out_html: Path, page: str) -> Path:
    """In one step, so that a browser never shows half of it; returns its path."""
    write_atomically(out_html, page.encode("utf-8"))
    return out_html


def made_page(
    *,
    title: str,
    subtitle: str,
    head: str,
    sections: Sequence[Section],
    tables: str = "",
    source: str,
    samples: dict[str, Any] | None = None,
    version: str = "",
) -> str:
    """The text of a page.

    `title`, `subtitle` and `source` are texts; `head` and `tables` are HTML; `samples` as of `visits.page_samples`.
    `version`: of a page that asks its server for a newer one (`follow`).
    """
    folder = files("openrlhf_ada.reporting") / "page_files"
    script = (folder / "report.js").read_text(encoding="utf-8")
    return Template((folder / "report.html").read_text(encoding="utf-8")).substitute(
        hash=_hash(script) + ("; connect-src 'self'" if version else ""),
        title=escaped(title),
        subtitle=escaped(subtitle),
        css=(folder / "report.css").read_text(encoding="utf-8"),
        head=head,
        sections="".join(_section(section) for section in sections),
        tables=tables,
        version=__version__,
        source=escaped(source),
        data=as_script_json(_chart_data(sections) | {"samples": samples, "version": version}),
        script=script,
    )


def escaped(text: str) -> str:
    """HTML-escaped (quotes too, so that it may stand in an attribute), with nothing that hides or reorders text."""
    return html.escape(visible(text), quote=True)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, css_class: str = "") -> str:
    """A table that scrolls by itself. Cells are HTML; the first `left` columns have text that may be long."""
    head = "".join(f"<th{' class=left' if i < left else ''}>{name}</th>" for i, name in enumerate(header))
    wide = ' class="left wide"'
    body = "".join(
        "<tr>" + "".join(f"<td{wide if i < left else ''}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    table = f"<table class='{css_class}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _section(section: Section) -> str:
    text = f'<p class="note">{escaped(section.text)}</p>' if section.text else ""
    charts = "".join(
        f"<figure><h3>{escaped(chart.title)}</h3>"
        f'<p class="note">{escaped(chart.note)}</p>'
        f'<div class="plot" data-chart="{escaped(chart.name)}"></div></figure>'
        for chart in section.charts
    )
    return f'<section><h2>{escaped(section.title)}</h2>{text}<div class="charts">{charts}</div></section>'


# -- what the script gets ---------------------------------------------------------------------------------------------


def as_script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever its texts hold: no "<" can end the element.

    Half a surrogate pair, which a model can produce, becomes the sign for a character that is none.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _chart_data(sections: Sequence[Section]) -> dict[str, Any]:
    """Charts by name, and the axes that the reader may choose."""
    charts = [chart for section in sections for chart in section.charts]
    shared = {
        axis for chart in charts if chart.is_over_time for axis in AXES if all(axis in s.x for s in chart.series)
    }
    axes = {name: label for name, label in AXES.items() if name in shared}
    return {"axes": axes, "charts": {chart.name: _chart(chart) for chart in charts}}


def _chart(chart: Chart) -> dict[str, Any]:
    return asdict(chart) | {"series": [_series(series) for series in chart.series], "over_time": chart.is_over_time}


def _series(series: Series) -> dict[str, Any]:
    bounds = {"low": series.low, "high": series.high}
    return asdict(series) | {
        "y": shortened(series.y),
        "x": {axis: shortened(values) for axis, values in series.x.items()},
        **{name: None if values is None else shortened(values) for name, values in bounds.items()},
    }
