"""One self-contained HTML file: charts that answer to the mouse, tables, samples. No network, no other file.

The page may run its own scripts only: a content policy names their hashes, and forbids every connection. What comes
from a model, a data set or a flag reaches the page as escaped text, or as JSON that the script writes as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from openrlhf_ada import __version__
from openrlhf_ada.config.visible import visible
from openrlhf_ada.reporting.charts import Section
from openrlhf_ada.reporting.jsonl import write_atomically
from openrlhf_ada.reporting.page_data import as_script_json, chart_data


def escaped(text: str) -> str:
    """HTML-escaped (quotes too, so that it may stand in an attribute), with nothing that hides or reorders text."""
    return html.escape(visible(text), quote=True)


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was written, and its charts."""

    path: Path
    sections: Sequence[Section]


def write_page(
    out_html: Path,
    *,
    title: str,
    subtitle: str,
    head: str,
    sections: Sequence[Section],
    samples: str = "",
    sample_data: dict[str, Any] | None = None,
    tables: str,
    source: str,
) -> Page:
    """Write a page, in one step, so that a browser never shows half of it.

    `title`, `subtitle` and `source` are texts; `head`, `samples` and `tables` are HTML.
    """
    folder = files("openrlhf_ada.reporting") / "page_files"
    plotly, script = get_plotlyjs(), (folder / "report.js").read_text(encoding="utf-8")
    page = Template((folder / "report.html").read_text(encoding="utf-8")).substitute(
        hashes=f"{_hash(plotly)} {_hash(script)}",
        title=escaped(title),
        subtitle=escaped(subtitle),
        css=(folder / "report.css").read_text(encoding="utf-8"),
        head=head,
        sections="".join(_section(section) for section in sections),
        samples=samples,
        tables=tables,
        version=__version__,
        source=escaped(source),
        data=as_script_json(chart_data(sections) | {"samples": sample_data}),
        plotly=plotly,
        script=script,
    )
    write_atomically(out_html, page.encode("utf-8"))
    return Page(out_html, sections)


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _section(section: Section) -> str:
    text = "".join(f'<p class="note">{escaped(line)}</p>' for line in section.text)
    charts = "".join(
        f"<figure><h3>{escaped(chart.title)}</h3>"
        f'<p class="note">{escaped(chart.note)}</p>'
        f'<div class="plot" data-chart="{escaped(chart.name)}"></div></figure>'
        for chart in section.charts
    )
    return f'<section><h2>{escaped(section.title)}</h2>{text}<div class="charts">{charts}</div></section>'
