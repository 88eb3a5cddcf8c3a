"""The prompts of a run with their samples, as a page's script gets them, within a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openrlhf_ada.reporting.page import rounded, shortened
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.visits import Visit, read_texts

MOST_SAMPLES = 400_000
"""Numbers of so many samples are in the page; with more, visits are taken evenly from the whole run."""

MOST_CHARS = 3_000_000
"""Characters of answers in the page; with more, visits are taken evenly among those with texts."""

MOST_PROMPT_CHARS = 1_500_000


def sample_data(run: Run, visits: Sequence[Visit]) -> dict[str, Any]:
    """Visits with their samples, and texts that were recorded.

    Keys of a visit: s step, p prompt id, m scores, k coefficients by index (of trained samples), t tokens, r rewards
    (if they are not the scores), o positive (if not score > 0.5), q predicted, a answers by index.
    """
    shown = _evenly(visits, [visit.drawn for visit in visits], MOST_SAMPLES)
    with_text = [visit for visit in shown if visit.num_chars]
    with_shown_text = _evenly(with_text, [visit.num_chars for visit in with_text], MOST_CHARS)
    texts = read_texts(run, {(visit.step, visit.key) for visit in with_shown_text})
    rows = []
    for visit in shown:
        row = _visit(visit)
        answers = texts.answers.get((visit.step, visit.key))
        rows.append(row | ({"a": {str(i): text for i, text in answers.items()}} if answers else {}))
    known = {visit.prompt_id for visit in shown}
    prompts = {name: list(pair) for name, pair in texts.prompts.items() if name in known}
    return {"visits": rows, "prompts": _within(prompts), "total": len(visits)}


def _visit(visit: Visit) -> dict[str, Any]:
    trained = np.flatnonzero(~np.isnan(visit.coefficients))
    row: dict[str, Any] = {
        "s": visit.step,
        "p": visit.prompt_id,
        "m": shortened(visit.scores.tolist()),
        "k": {str(i): rounded(float(visit.coefficients[i])) for i in trained},
        "t": visit.tokens.tolist(),
    }
    if (visit.rewards != visit.scores).any():
        row["r"] = shortened(visit.rewards.tolist())
    if (visit.positive != (visit.scores > 0.5)).any():
        row["o"] = [int(positive) for positive in visit.positive]
    if visit.predicted is not None:
        row["q"] = rounded(visit.predicted)
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
