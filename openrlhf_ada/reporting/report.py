"""One self-contained HTML file per run, made from the run directory alone.

No scripts and no external resources (a content policy in the page forbids both); everything that comes from a model,
a dataset or a flag is escaped.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from string import Template
from typing import Any

from openrlhf_ada import __version__
from openrlhf_ada.reporting.jsonl import write_atomically
from openrlhf_ada.reporting.plots import plot_run
from openrlhf_ada.reporting.report_groups import escaped, groups_section
from openrlhf_ada.reporting.run_record import Row, Run, column, summarise

STEP_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ada/first_wave_metric_mean", "right answers, first wave", "percent"),
    ("ada/signal_share", "groups with signal", "percent"),
    ("ada/signal_share_uniform", "with uniform sampling", "percent"),
    ("ada/resolved_share", "both outcomes seen", "percent"),
    ("ada/drawn", "rollouts", "count"),
    ("ada/rollouts_per_prompt", "per prompt", "number"),
    ("ada/unused", "unused", "count"),
    ("ada/aborted", "aborted", "count"),
    ("ada/drawn_tokens", "tokens", "count"),
    ("ada/step_s", "seconds", "number"),
)
"""Metric, heading and format of the step table; a column that no step has is left out."""


def write_report(run: Run, out_html: Path) -> Path:
    """Write the report of a run (finished, running or killed; with or without evaluations). Returns `out_html`.

    The file is replaced in one step, so a browser never shows half of it.

    Raises:
        RunDamageError: `samples.jsonl` is damaged, by file and line.
    """
    template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=escaped(run.run_dir.resolve().name),
        subtitle=_subtitle(run),
        cards=_cards(run),
        alt="Accuracy, groups with signal, rollouts per prompt and cumulative cost over the training steps",
        figure=_figure(run),
        groups=groups_section(run),
        steps=_steps_section(run),
        config=_config_section(run.config),
        version=__version__,
        run_dir=escaped(str(run.run_dir)),
    )
    write_atomically(out_html, page.encode("utf-8"))
    return out_html


def _figure(run: Run) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return base64.b64encode(plot_run(run, Path(folder) / "run.png").read_bytes()).decode("ascii")


def _subtitle(run: Run) -> str:
    """The main flags of the run."""
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
    return escaped(" · ".join(parts))


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
    if figures["signal_share"] is not None and figures["signal_share_uniform"] is not None:
        value = f"{_percent(figures['signal_share_uniform'])} <i>→</i> {_percent(figures['signal_share'])}"
        cards.append(("Groups with signal", value, _signal_note(run)))
    if figures["rollouts"] is not None and figures["tokens"] is not None:
        cards.append(("Rollouts", _count(figures["rollouts"]), f"{_count(figures['tokens'])} tokens, unused included"))
    if figures["train_seconds"] is not None:
        cards.append(("Training time", _duration(figures["train_seconds"]), "without evaluations"))
    return "".join(
        f'<div class="card"><span class="name">{name}</span><b>{value}</b><span>{note}</span></div>'
        for name, value, note in cards
    )


def _signal_note(run: Run) -> str:
    """What is compared: the same prompts, with different numbers of rollouts."""
    size = run.flag("rollout.n_samples_per_prompt")
    prompts = sum(column(run.steps, "ada/prompts")[1])
    drawn = sum(column(run.steps, "ada/drawn")[1])
    if size is None or not prompts:
        return "uniform sampling → this run"
    return f"uniform sampling with {size} per prompt → this run with {drawn / prompts:.1f}"


def _with_interval(figures: Row, when: str) -> tuple[str, str] | None:
    """("51.0%", "±4.3") of the evaluation before or after training; None if there was none."""
    accuracy, ci95 = figures[f"accuracy_{when}"], figures[f"ci95_{when}"]
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


def _config_section(config: Row) -> str:
    rows = "".join(
        f'<tr><td class="left">{escaped(name)}</td><td class="left text">{escaped(value)}</td></tr>'
        for name, value in _flat(config)
    )
    return f'<details class="box"><summary>Show all flags</summary><table><tbody>{rows}</tbody></table></details>'


def _flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested flags as (dotted name, value), in the order of the file."""
    if isinstance(config, dict) and config:
        return [
            pair for name, value in config.items() for pair in _flat(value, f"{prefix}.{name}" if prefix else name)
        ]
    return [(prefix, str(config))] if prefix else []


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


def _duration(seconds: float) -> str:
    """12 s, 7.5 min, 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
