"""What a report's script gets as JSON: charts, and the prompts with their samples, within a fixed size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from openrlhf_ada.reporting.charts import AXES, Chart, Section, Series
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.stopped import stop_reason
from openrlhf_ada.reporting.visits import Visit, read_texts

MOST_SAMPLES = 400_000
"""Numbers of so many samples are in the page; with more, visits are taken evenly from the whole run."""

MOST_CHARS = 3_000_000
"""Characters of answers in the page; with more, visits are taken evenly among those with texts."""

MOST_PROMPT_CHARS = 1_500_000

DIGITS = 5


def as_script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever its texts hold: no "<" can end the element.

    Half a surrogate pair, which a model can produce, becomes the sign for a character that is none.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028")):
        text = text.replace(character, escape)
    return text.replace("\u2029", "\\u2029").encode("utf-8", errors="replace").decode("utf-8")


def chart_data(sections: Sequence[Section]) -> dict[str, Any]:
    """Charts by name, and the axes that the reader may choose."""
    charts = {chart.name: _chart(chart) for section in sections for chart in section.charts}
    shared = [chart.axes for section in sections for chart in section.charts if chart.is_over_time]
    axes = {name: label for name, label in AXES.items() if any(name in names for names in shared)}
    return {"axes": axes, "charts": charts}


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "series": [_series(series) for series in chart.series],
        "xLabel": chart.x_label,
        "yLabel": chart.y_label,
        "xShare": chart.x_share,
        "yShare": chart.y_share,
        "categories": list(chart.categories),
        "diagonal": chart.diagonal,
        "overTime": chart.is_over_time,
    }


def _series(series: Series) -> dict[str, Any]:
    data: dict[str, Any] = {"name": series.name, "color": series.color, "kind": series.kind, "y": _short(series.y)}
    data["x"] = {axis: _short(values) for axis, values in series.x.items()}
    if series.low is not None and series.high is not None:
        data |= {"low": _short(series.low), "high": _short(series.high), "band": series.band}
    if series.text is not None:
        data["text"] = list(series.text)
    if series.is_smoothed:
        data["smooth"] = _short(series.smoothed)
    return data


def _short(values: Sequence[float | None]) -> list[float | int | None]:
    return [None if value is None or not math.isfinite(value) else _rounded(value) for value in values]


def _rounded(value: float) -> float | int:
    """To DIGITS significant digits; whole numbers as they are."""
    return int(value) if float(value).is_integer() else float(f"{float(value):.{DIGITS}g}")


# -- samples ----------------------------------------------------------------------------------------------------------


def sample_data(run: Run, visits: Sequence[Visit]) -> dict[str, Any]:
    """Visits with their samples; texts that were recorded; why each visit stopped.

    Keys of a visit: s step, p prompt id, m scores, k coefficients by index (of trained samples), t tokens, r rewards
    (if they are not the scores), o positive (if not score > 0.5), q predicted, w position of its reason, a answers by
    index.
    """
    shown = _evenly(visits, [visit.drawn for visit in visits], MOST_SAMPLES)
    with_text = [visit for visit in shown if visit.num_chars]
    with_shown_text = _evenly(with_text, [visit.num_chars for visit in with_text], MOST_CHARS)
    texts = read_texts(run, {(visit.step, visit.key) for visit in with_shown_text})
    reason = stop_reason(run)
    reasons: dict[str, int] = {}
    rows = []
    for visit in shown:
        row = _visit(visit, reasons.setdefault(reason(visit), len(reasons)))
        answers = texts.answers.get((visit.step, visit.key))
        rows.append(row | ({"a": {str(i): text for i, text in answers.items()}} if answers else {}))
    known = {visit.prompt_id for visit in shown}
    prompts = {name: list(pair) for name, pair in texts.prompts.items() if name in known}
    return {
        "visits": rows,
        "reasons": list(reasons),
        "prompts": _within(prompts),
        "total": len(visits),
        "size": run.flag("rollout.n_samples_per_prompt"),
    }


def _visit(visit: Visit, reason: int) -> dict[str, Any]:
    trained = np.flatnonzero(~np.isnan(visit.coefficients))
    row: dict[str, Any] = {
        "s": visit.step,
        "p": visit.prompt_id,
        "m": _short(visit.scores.tolist()),
        "k": {str(i): _rounded(float(visit.coefficients[i])) for i in trained},
        "t": visit.tokens.tolist(),
        "w": reason,
    }
    if (visit.rewards != visit.scores).any():
        row["r"] = _short(visit.rewards.tolist())
    if (visit.positive != (visit.scores > 0.5)).any():
        row["o"] = [int(positive) for positive in visit.positive]
    if visit.predicted is not None:
        row["q"] = _rounded(visit.predicted)
    return row


def _evenly(visits: Sequence[Visit], sizes: Sequence[int], most: int) -> list[Visit]:
    """As many as fit, evenly over the run."""
    total = sum(sizes)
    if total <= most:
        return list(visits)
    count = max(1, int(len(visits) * most / total))
    return [visits[int(i * len(visits) / count)] for i in range(count)]


def _within(prompts: dict[str, list[str | None]]) -> dict[str, list[str | None]]:
    """Long prompts lose their middle, until all fit."""
    longest = 4000
    while sum(min(len(text or ""), longest) for pair in prompts.values() for text in pair) > MOST_PROMPT_CHARS:
        longest //= 2
    return {name: [_middle_out(text, longest) for text in pair] for name, pair in prompts.items()}


def _middle_out(text: str | None, longest: int) -> str | None:
    if text is None or len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters are left out here ...]\n{text[len(text) - half :]}"
