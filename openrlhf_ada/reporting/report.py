"""The report of one run, made from the run directory alone: one HTML file (`page`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.charts import Section
from openrlhf_ada.reporting.page import escaped, html_table, write_page
from openrlhf_ada.reporting.page_samples import sample_data
from openrlhf_ada.reporting.payoff import Payoff, payoff, payoff_lines
from openrlhf_ada.reporting.recorded_flags import decisive, flat
from openrlhf_ada.reporting.run_charts import run_sections
from openrlhf_ada.reporting.run_record import Run, summarise
from openrlhf_ada.reporting.visits import read_visits

STEP_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ada/first_wave_metric_mean", "right answers, first samples", ".0%"),
    ("ada/signal_share", "groups with signal", ".0%"),
    ("ada/signal_share_uniform", "in the first samples", ".0%"),
    ("ada/resolved_share", "both outcomes seen", ".0%"),
    ("ada/drawn", "rollouts", ",.0f"),
    ("ada/rollouts_per_prompt", "per prompt", ".1f"),
    ("ada/unused", "unused", ",.0f"),
    ("ada/aborted", "aborted", ",.0f"),
    ("ada/drawn_tokens", "tokens", ",.0f"),
    ("ada/step_s", "seconds", ".1f"),
)
"""Metric, heading and format of the step table; a column that no step has is left out."""

BY_SOURCE = "eval/accuracy/"

SAMPLES_HTML = """\
<section><h2>Samples</h2>
<p class="note">Every prompt visit, with its pool in the order of the samples' index. Open one to read prompt,
reference answer and responses.{cut}</p>
<div class="legend"><span><i class="s right kept"></i>right, trained</span>
<span><i class="s right"></i>right, unused</span><span><i class="s wrong kept"></i>wrong, trained</span>
<span><i class="s wrong"></i>wrong, unused</span></div>
<form class="filters" id="filters">
<label>Step<input type=".1f" name="step" min="0"></label>
<label>Prompt id<input type="text" name="prompt" size="9"></label>
<label>Trained<select name="kept"><option value="">any</option><option value="trained">trained</option>
<option value="signal">with signal</option><option value="silent">trained without signal</option>
<option value="dropped">nothing trained</option><option value="text">with responses</option></select></label>
<label>Score<select name="score"><option value="">any</option><option value="mixed">right and wrong</option>
<option value="right">all right</option><option value="wrong">all wrong</option>
<option value="partial">partial credit</option></select></label>
<label>Text<input type="search" name="text" placeholder="in prompts and answers"></label>
<button type="reset">Clear</button></form>
<p class="note" id="found" aria-live="polite"></p><div class="visits" id="visits"></div>
<p class="more"><button type="button" id="more" hidden>Show more</button></p></section>"""


def write_report(run: Run, out_html: Path) -> list[Section]:
    """Write the report of a run (finished, running or killed; with or without evaluations); returns its charts.

    Raises:
        RunDamageError: `samples.jsonl` is damaged, by file and line.
    """
    visits = read_visits(run)
    paid = payoff(run, visits)
    shown = sample_data(run, visits) if visits else None
    sections = run_sections(run, visits, paid)
    write_page(
        out_html,
        title=run.run_dir.resolve().name,
        subtitle=_describe(run),
        head=_cards(run) + _payoff_html(paid),
        sections=sections,
        samples=_samples(shown),
        sample_data=shown,
        tables=_steps(run) + _evaluations(run) + _config(run),
        source=f"written from {run.run_dir}. Metrics are explained in docs/metrics.md, this page in docs/report.md.",
    )
    return sections


def _samples(shown: dict[str, Any] | None) -> str:
    if shown is None:
        return '<section><h2>Samples</h2><p class="note">No samples have been recorded.</p></section>'
    here, total = len(shown["visits"]), shown["total"]
    cut = f" This page has {here:,} of {total:,}, evenly over the run; samples.jsonl has all." if here < total else ""
    return SAMPLES_HTML.replace("{cut}", cut)


def _describe(run: Run) -> str:
    """The main flags of the run, and how far it is."""
    names = {
        "actor.model_name_or_path": "model {}",
        "algo.advantage.estimator": "{}",
        "ada.mode": "mode {}",
        "ada.exit": "exit {}",
        "rollout.n_samples_per_prompt": "n = {}",
        "ada.max_samples": "at most {} per prompt",
    }
    parts = [text.format(run.flag(name)) for name, text in names.items() if run.flag(name) is not None]
    parts.append(f"{len(run.steps)} step" + ("" if len(run.steps) == 1 else "s"))
    if run.summary is None:
        parts.append("not finished")
    return " · ".join(parts)


def _payoff_html(paid: Payoff | None) -> str:
    """The sentences of `payoff_lines`."""
    if paid is None:
        return ""
    rows = "".join(
        f"<dt>{escaped(what)}</dt><dd{' class=conclusion' if what == 'conclusion' else ''}>{escaped(sentence)}</dd>"
        for what, sentence in payoff_lines(paid)
    )
    return f'<dl class="facts">{rows}</dl>'


def _cards(run: Run) -> str:
    """The headline figures, as far as the run has them; those of `summary.json` take precedence."""
    figures = {**summarise(run), **(run.summary or {})}
    cards: list[tuple[str, str, str]] = []
    known = [when for when in ("before", "after") if figures[f"accuracy_{when}"] is not None]
    if known:
        values = [f"{figures[f'accuracy_{when}']:.1%}" for when in known]
        halves = [(figures[f"ci95_{when}"], when) for when in known]
        notes = [f"{'no interval' if half is None else f'±{100 * half:.1f}'} {when} training" for half, when in halves]
        cards.append(("Accuracy on held-out prompts", " <i>→</i> ".join(values), f"{', '.join(notes)} (95 %)"))
    if figures["signal_share"] is not None:
        groups = round(sum(row.get("ada/prompts") or 0 for row in run.steps))
        cards.append(("Groups with signal", f"{figures['signal_share']:.1%}", f"of {groups:,} trained groups"))
    if figures["rollouts"] is not None and figures["tokens"] is not None:
        cards.append(("Rollouts", f"{figures['rollouts']:,.0f}", f"{figures['tokens']:,.0f} tokens, unused included"))
    if figures["train_seconds"] is not None:
        cards.append(("Training time", duration(figures["train_seconds"]), "without evaluations"))
    body = "".join(
        f'<div class="card"><span class="name">{name}</span><b>{value}</b><span>{note}</span></div>'
        for name, value, note in cards
    )
    return f'<div class="cards">{body}</div>'


def accuracy_text(accuracy: float | None, ci95: float | None) -> str:
    """51.0% ±4.3; empty where there is no evaluation."""
    if accuracy is None:
        return ""
    return f"{accuracy:.1%}" + ("" if ci95 is None else f" ±{100 * ci95:.1f}")


def _steps(run: Run) -> str:
    if not run.steps:
        return '<h2>Steps</h2><p class="note">No step has been recorded yet.</p>'
    columns = [c for c in STEP_COLUMNS if any(row.get(c[0]) is not None for row in run.steps)]
    rows = [
        [str(row["step"]), *("" if row.get(name) is None else f"{row[name]:{kind}}" for name, _, kind in columns)]
        for row in run.steps
    ]
    note = '<h2>Steps</h2><p class="note">What each training step drew and had to learn from.</p>'
    return note + html_table(["step", *(heading for _, heading, _ in columns)], rows, left=0)


def _evaluations(run: Run) -> str:
    """Accuracy after each step that was evaluated, and that of each datasource where there are several."""
    names = list(dict.fromkeys(name for row in run.evaluations for name in row if name.startswith(BY_SOURCE)))
    names = names if len(names) > 1 else []
    rows = [
        [
            str(row["step"]),
            accuracy_text(row["eval/accuracy"], row.get("eval/ci95")),
            *(accuracy_text(row.get(name), None) for name in names),
        ]
        for row in run.evaluations
    ]
    header = ["after step", "accuracy", *(escaped(name.removeprefix(BY_SOURCE)) for name in names)]
    return "<h2>Evaluations</h2>" + html_table(header, rows, left=0) if rows else ""


def _config(run: Run) -> str:
    rows = [[escaped(name), escaped(value)] for name, value in flat(run.config)]
    now = decisive(run.config)
    changed = "".join(
        f" Until step {last}: "
        + ", ".join(escaped(f"{name} {value}") for name, value in decisive(flags).items() if now.get(name) != value)
        + "."
        for last, flags in run.earlier
    )
    table = html_table(["flag", "value"], rows, left=2)
    return (
        f'<h2>Configuration</h2><p class="note">Every flag of the run; secrets are removed.{changed}</p>'
        f'<details class="box"><summary>Show all flags</summary>{table}</details>'
    )


def duration(seconds: float) -> str:
    """12 s, 7.5 min, 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
