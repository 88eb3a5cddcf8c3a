"""The report of one run, made from the run directory alone: one HTML file (`page`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.page import Page, escaped, write_page
from openrlhf_ada.reporting.page_data import sample_data
from openrlhf_ada.reporting.payoff import Payoff, payoff, payoff_lines
from openrlhf_ada.reporting.recorded_flags import decisive, flat
from openrlhf_ada.reporting.run_charts import run_sections
from openrlhf_ada.reporting.run_record import Row, Run, summarise
from openrlhf_ada.reporting.visits import read_visits

STEP_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ada/first_wave_metric_mean", "right answers, first samples", "percent"),
    ("ada/signal_share", "groups with signal", "percent"),
    ("ada/signal_share_uniform", "in the first samples", "percent"),
    ("ada/resolved_share", "both outcomes seen", "percent"),
    ("ada/drawn", "rollouts", "count"),
    ("ada/rollouts_per_prompt", "per prompt", "number"),
    ("ada/unused", "unused", "count"),
    ("ada/aborted", "aborted", "count"),
    ("ada/drawn_tokens", "tokens", "count"),
    ("ada/step_s", "seconds", "number"),
)
"""Metric, heading and format of the step table; a column that no step has is left out."""

SAMPLES_HTML = """\
<section><h2>Samples</h2>
<p class="note">Every prompt visit, with its pool in the order of the samples' index. Open one to read prompt,
reference answer, responses, and why sampling stopped.{cut}</p>
<div class="legend"><span><i class="s right kept"></i>right, trained</span>
<span><i class="s right"></i>right, unused</span><span><i class="s wrong kept"></i>wrong, trained</span>
<span><i class="s wrong"></i>wrong, unused</span></div>
<form class="filters" id="filters">
<label>Step<input type="number" name="step" min="0"></label>
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


def write_report(run: Run, out_html: Path) -> Page:
    """Write the report of a run (finished, running or killed; with or without evaluations).

    Raises:
        RunDamageError: `samples.jsonl` is damaged, by file and line.
    """
    visits = read_visits(run)
    paid = payoff(run, visits)
    shown = sample_data(run, visits) if visits else None
    return write_page(
        out_html,
        title=run.run_dir.resolve().name,
        subtitle=describe(run),
        head=_cards(run) + payoff_html(paid),
        sections=run_sections(run, visits, paid),
        samples=_samples(shown),
        sample_data=shown,
        tables=_steps_section(run) + _config_section(run),
        source=f"written from {run.run_dir}. Metrics are explained in docs/metrics.md, this page in docs/report.md.",
    )


def _samples(shown: dict[str, Any] | None) -> str:
    if shown is None:
        return '<section><h2>Samples</h2><p class="note">No samples have been recorded.</p></section>'
    here, total = len(shown["visits"]), shown["total"]
    cut = f" This page has {here:,} of {total:,}, evenly over the run; samples.jsonl has all." if here < total else ""
    return SAMPLES_HTML.replace("{cut}", cut)


def describe(run: Run) -> str:
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


def payoff_html(paid: Payoff | None) -> str:
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
    before, after = (_with_interval(figures, when) for when in ("before", "after"))
    if before and after:
        gain = 100 * (figures["accuracy_after"] - figures["accuracy_before"])
        note = f"{gain:+.1f} points (95% interval {before[1]}, then {after[1]})"
        cards.append(("Accuracy on held-out prompts", f"{before[0]} <i>→</i> {after[0]}", note))
    elif before or after:
        value, interval = before or after  # pyright: ignore[reportGeneralTypeIssues]
        cards.append(
            ("Accuracy on held-out prompts", value, f"{interval}, {'before' if before else 'after'} training")
        )
    if figures["signal_share"] is not None:
        groups = round(sum(row.get("ada/prompts") or 0 for row in run.steps))
        cards.append(("Groups with signal", _percent(figures["signal_share"]), f"of {groups:,} trained groups"))
    if figures["rollouts"] is not None and figures["tokens"] is not None:
        cards.append(("Rollouts", _count(figures["rollouts"]), f"{_count(figures['tokens'])} tokens, unused included"))
    if figures["train_seconds"] is not None:
        cards.append(("Training time", duration(figures["train_seconds"]), "without evaluations"))
    body = "".join(
        f'<div class="card"><span class="name">{name}</span><b>{value}</b><span>{note}</span></div>'
        for name, value, note in cards
    )
    return f'<div class="cards">{body}</div>'


def _with_interval(figures: Row, when: str) -> tuple[str, str] | None:
    """("51.0%", "±4.3") of the evaluation before or after training; None if there was none."""
    accuracy, ci95 = figures.get(f"accuracy_{when}"), figures.get(f"ci95_{when}")
    if accuracy is None:
        return None
    return _percent(accuracy), "no interval" if ci95 is None else f"±{100 * ci95:.1f}"


def _steps_section(run: Run) -> str:
    if not run.steps and not run.evaluations:
        return '<h2>Steps</h2><p class="note">No step has been recorded yet.</p>'
    columns = [c for c in STEP_COLUMNS if any(row.get(c[0]) is not None for row in run.steps)]
    head = "".join(f"<th>{heading}</th>" for _, heading, _ in columns)
    lines = [(row["step"], 0, _step_line(row, columns)) for row in run.steps]
    lines += [(row["step"], 1, _evaluation_line(row, len(columns) + 1)) for row in run.evaluations]
    body = "".join(line for _, _, line in sorted(lines))
    return (
        '<h2>Steps</h2><p class="note">What each training step drew and had to learn from.</p>'
        f'<div class="scroll"><table><thead><tr><th>step</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _step_line(row: Row, columns: list[tuple[str, str, str]]) -> str:
    cells = "".join(f"<td>{_cell(row.get(name), kind)}</td>" for name, _, kind in columns)
    return f"<tr><td>{row['step']}</td>{cells}</tr>"


def _evaluation_line(row: Row, width: int) -> str:
    when = "before training" if row["step"] == 0 else f"after step {row['step']}"
    interval = f" ± {100 * row['eval/ci95']:.1f}" if row.get("eval/ci95") is not None else ""
    parts = [
        f"{name.removeprefix('eval/accuracy/')} {_percent(value)}"
        for name, value in row.items()
        if name.startswith("eval/accuracy/")
    ]
    detail = escaped(f" ({', '.join(parts)})") if len(parts) > 1 else ""
    text = f"evaluation {when}: {100 * row['eval/accuracy']:.1f}{interval}%{detail}"
    return f'<tr class="eval"><td colspan="{width}">{text}</td></tr>'


def _config_section(run: Run) -> str:
    rows = "".join(
        f'<tr><td class="left">{escaped(name)}</td><td class="left wide">{escaped(value)}</td></tr>'
        for name, value in flat(run.config)
    )
    now = decisive(run.config)
    changed = "".join(
        f" Until step {last}: "
        + ", ".join(escaped(f"{name} {value}") for name, value in decisive(flags).items() if now.get(name) != value)
        + "."
        for last, flags in run.earlier
    )
    return (
        f'<h2>Configuration</h2><p class="note">Every flag of the run; secrets are removed.{changed}</p>'
        f'<details class="box"><summary>Show all flags</summary><table><tbody>{rows}</tbody></table></details>'
    )


def _cell(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "percent":
        return f"{100 * value:.0f}%"
    return _count(value) if kind == "count" else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """12 s, 7.5 min, 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
