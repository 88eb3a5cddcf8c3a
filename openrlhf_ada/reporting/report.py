"""The report of one run, made from the run directory alone: one HTML file (`page`)."""

from __future__ import annotations

from pathlib import Path

from openrlhf_ada.reporting.page import escaped, html_table, made_page, write_page
from openrlhf_ada.reporting.payoff import Payoff, conclusion, payoff, payoff_lines
from openrlhf_ada.reporting.reasons import reasons
from openrlhf_ada.reporting.recorded_flags import flat
from openrlhf_ada.reporting.run_charts import run_sections
from openrlhf_ada.reporting.run_record import Run, summarise
from openrlhf_ada.reporting.visits import page_samples, read_visits

BY_SOURCE = "eval/accuracy/"


def write_report(run: Run, out_html: Path) -> str:
    """Write the report of a run (finished, running or killed; with or without evaluations). Returns its conclusion;
    empty where there is nothing to compare. Raises RunDamageError: `samples.jsonl` is damaged, by file and line."""
    page, paid = report_page(run)
    write_page(out_html, page)
    return "" if paid is None else conclusion(paid)


def report_page(run: Run, version: str = "") -> tuple[str, Payoff | None]:
    """(text of the page, what the run paid). `version`: as in `made_page`. Raises RunDamageError."""
    visits = read_visits(run)
    paid = payoff(run, visits)
    sections = run_sections(run, visits, paid)
    page = made_page(
        title=run.run_dir.resolve().name,
        subtitle=_describe(run),
        head=_cards(run) + _payoff_html(paid),
        sections=sections,
        samples=page_samples(run, visits, reasons(run, visits)) if visits else None,
        tables=_evaluations(run) + _config(run),
        source=f"written from {run.run_dir}. Metrics are explained in docs/metrics.md, this page in docs/report.md.",
        version=version,
    )
    return page, paid


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
    table = html_table(
        ["flag", "value"], [[escaped(name), escaped(value)] for name, value in flat(run.config)], left=2
    )
    return (
        '<h2>Configuration</h2><p class="note">Every flag of the run; secrets are removed. starts.json has '
        f'the command of every start.</p><details class="box"><summary>Show all flags</summary>{table}</details>'
    )


def duration(seconds: float) -> str:
    """12 s, 7.5 min, 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
