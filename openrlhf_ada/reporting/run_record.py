"""Reads the record of a run and summarises it. Figures and reports are made from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.jsonl import damage, read_json, read_rows, row_step
from openrlhf_ada.reporting.run_log import CONFIG_FILE, METRICS_FILE, SAMPLES_FILE, SUMMARY_FILE, Row

OURS = ("ada/", "eval/", "rollout/", "timing/")

OBJECTS = ("ada/draws_histogram", "ada/allocation_by_pass_rate", "ada/effective_weight", "ada/causes")
"""Metrics that are an object of figures by key."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run as recorded. Samples, of which there may be millions, are read one at a time by `samples()`."""

    run_dir: Path
    config: Row
    """Every flag, nested, secrets removed."""
    steps: list[Row]
    """One row per training step, ascending by "step"."""
    evaluations: list[Row]
    """One row per evaluated step, ascending; if a step was evaluated twice (before and after a resume), the last."""
    summary: Row | None
    """None until the run has ended."""

    def samples(self) -> Iterator[Row]:
        """Every recorded rollout, in the order of recording."""
        path = self.run_dir / SAMPLES_FILE
        if path.exists():
            yield from (row for _, row in read_rows(path))

    def flag(self, name: str) -> Any:
        """The value of a flag by its dotted name, as `rollout.n_samples_per_prompt`; None if the run has no such flag
        (the record may be of a run in which it did not exist)."""
        value: Any = self.config
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value


def read_run(run_dir: Path) -> Run:
    """Read a run directory, finished, running or killed. Raises FileNotFoundError for another
    folder, RunDamageError for a damaged file, by line. Only a cut-off last line is tolerated, with a warning."""
    config = run_dir / CONFIG_FILE
    for name in (CONFIG_FILE, METRICS_FILE):
        if not (run_dir / name).is_file():
            raise FileNotFoundError(
                f"{run_dir} is not a run directory: it has no {name}. Name one that a training wrote (--ada_run_dir)"
            )
    steps: list[Row] = []
    evaluations: dict[int, Row] = {}
    path = run_dir / METRICS_FILE
    for line, row in read_rows(path):
        step = row_step(path, line, row)
        _check_types(path, line, row)
        if "eval/accuracy" in row:
            evaluations[step] = row
        elif steps and step <= steps[-1]["step"]:
            raise damage(path, f"step {step} follows step {steps[-1]['step']}", line)
        else:
            steps.append(row)
    summary = run_dir / SUMMARY_FILE
    return Run(
        run_dir=run_dir,
        config=read_json(config, dict),
        steps=steps,
        evaluations=[evaluations[step] for step in sorted(evaluations)],
        summary=_read_figures(summary) if summary.exists() else None,
    )


def _check_types(path: Path, line: int, row: Row) -> None:
    """Values under our names are numbers or null, those of OBJECTS objects; raises RunDamageError."""
    for name, value in row.items():
        # An evaluation is one because it has its accuracy.
        fits = is_number(value) or (value is None and not name.startswith("eval/accuracy"))
        if name.startswith(OURS) and not fits and not (isinstance(value, dict) and name in OBJECTS):
            raise damage(path, f"{name!r} is {value!r}, expected a number", line)


def is_number(value: Any) -> bool:
    """A number of JSON; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_figures(path: Path) -> Row:
    """Of `summary.json`; raises RunDamageError for one that is no number or null."""
    figures = read_json(path, dict)
    for name, value in figures.items():
        if value is not None and not is_number(value):
            raise damage(path, f"{name!r} is {value!r}, expected a number")
    return figures


def summarise(run: Run) -> dict[str, float | int | None]:
    """The figures of `summary.json`, from the recorded rows; None where nothing was recorded.

    Keys: accuracy_before (evaluation at step 0), accuracy_after (last later evaluation), ci95_before, ci95_after
    (half-widths), signal_share, signal_share_uniform (means over all groups of the run), signal_cost,
    signal_cost_uniform (rollouts per group with signal), rollouts, tokens (drawn, so with waste), train_seconds (sum
    of the steps), steps.
    """
    before = run.evaluations[0] if run.evaluations and run.evaluations[0]["step"] == 0 else {}
    after = run.evaluations[-1] if run.evaluations and run.evaluations[-1]["step"] > 0 else {}
    signal, uniform = (_over_groups(run.steps, f"ada/signal_share{of}") for of in ("", "_uniform"))
    n = run.flag("rollout.n_samples_per_prompt")
    return {
        "accuracy_before": before.get("eval/accuracy"),
        "accuracy_after": after.get("eval/accuracy"),
        "ci95_before": before.get("eval/ci95"),
        "ci95_after": after.get("eval/ci95"),
        "signal_share": signal,
        "signal_share_uniform": uniform,
        "signal_cost": _cost(total(run.steps, "ada/drawn"), total(run.steps, "ada/prompts"), signal),
        "signal_cost_uniform": _cost(n if is_number(n) else None, 1, uniform),
        "rollouts": total(run.steps, "ada/drawn"),
        "tokens": total(run.steps, "ada/drawn_tokens"),
        "train_seconds": total(run.steps, "ada/step_s"),
        "steps": len(run.steps),
    }


def _over_groups(rows: Sequence[Row], name: str) -> float | None:
    """The mean of a share over all groups."""
    shares = [(row[name], row.get("ada/prompts") or 0) for row in _having(rows, name)]
    groups = sum(prompts for _, prompts in shares)
    return sum(share * prompts for share, prompts in shares) / groups if groups else None


def _cost(rollouts: float | None, prompts: float | None, signal: float | None) -> float | None:
    """Rollouts per group with signal; None where no group has one."""
    return rollouts / (prompts * signal) if rollouts and prompts and signal else None


def total(rows: Sequence[Row], name: str) -> float | int | None:
    """Sum of a metric over the rows that have it; None if none has."""
    values = [row[name] for row in _having(rows, name)]
    return sum(values) if values else None


def _having(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row.get(name) is not None]
