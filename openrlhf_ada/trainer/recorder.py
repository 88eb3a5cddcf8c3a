"""Between the trainer and the record of a run: run directory, the driver's progress view, evaluation rows."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.eval.held_out import HeldOut, evaluation_metrics
from openrlhf_ada.reporting.redaction import plain
from openrlhf_ada.reporting.report import write_report
from openrlhf_ada.reporting.run_log import Row, RunLog, sample_records
from openrlhf_ada.reporting.run_record import read_run, summarise
from openrlhf_ada.reporting.tracking import Trackers
from openrlhf_ada.rollout.records import GroupRecord, StepRecord

TOTALS = ("ada/total_drawn", "ada/total_drawn_tokens", "ada/wall_clock_s")
"""What a run has used up so far."""


class Recorder:
    """Writes the run directory and tells the driver what happens. Lives in the trainer's Ray actor.

    `args.ada_events` is a Ray queue that the driver reads, or None. The record has every step; events are for watching
    only. Trackers get the same rows: those of steps from OpenRLHF, which has them from `step`.
    """

    def __init__(self, args: SimpleNamespace, resume_from_step: int | None, trackers: Trackers) -> None:
        self._log = RunLog(
            args.ada.resolved_run_dir(args.logger.wandb.run_name),
            plain(args),
            resume_from_step=resume_from_step,
            text_prompts_per_step=args.ada.log_texts,
        )
        self._args = args
        self._positive_above = args.ada.positive_above
        self._started = time.monotonic()
        self._used: dict[int, dict[str, Any]] = {0: dict.fromkeys(TOTALS, 0)}
        self._step_started = self._started
        self.trackers = trackers
        if resume_from_step:
            # None where the run was resumed into a new directory: totals count from here, and RunLog warns of it.
            self._used |= {row["step"]: {name: row[name] for name in TOTALS} for row in read_run(self.run_dir).steps}
            self._started -= self.used()["ada/wall_clock_s"]

    @property
    def run_dir(self) -> Path:
        return self._log.run_dir

    def used(self, after_step: int | None = None) -> dict[str, Any]:
        """TOTALS after a step, or after the last one that is recorded."""
        last = max(self._used)
        return self._used.get(last if after_step is None else after_step, self._used[last])

    def begin_step(self) -> None:
        self._step_started = time.monotonic()

    def step(self, step: int, metrics: dict[str, Any], max_steps: int) -> dict[str, Any]:
        """One finished step. Returns its row, with its duration and the totals since the start of the run."""
        before, now = self.used(), time.monotonic()
        row = metrics | {
            "ada/total_drawn": before["ada/total_drawn"] + metrics["ada/drawn"],
            "ada/total_drawn_tokens": before["ada/total_drawn_tokens"] + metrics["ada/drawn_tokens"],
            "ada/step_s": now - self._step_started,
            "ada/wall_clock_s": now - self._started,
        }
        self._used[step] = {name: row[name] for name in TOTALS}
        self._log.log_step(step, row)
        emit(self._args, "step", step=step, max_steps=max_steps, metrics=row)
        return row

    def samples(self, step: int, record: StepRecord) -> None:
        """Every rollout of a step, a bounded few of them with their texts."""
        self._log.log_samples(step, [row for group in record.all_groups for row in self._sample_rows(group)])

    def _sample_rows(self, group: GroupRecord) -> list[Row]:
        texts = group.texts or [""] * len(group.pool)
        of_samples, of_prompt = (group.grades, group.raw_scores), (group.choice, group.label, self._positive_above)
        return sample_records(str(group.row), group.prompt, group.pool, texts, group.group, *of_samples, *of_prompt)

    def evaluation(self, step: int, held_out: HeldOut) -> None:
        """Accuracy on held-out prompts.

        Scores outside [0, 1] make no accuracy. OpenRLHF takes any number, so such a run goes on; its evaluation has no
        row in the record, which is said.
        """
        if held_out.no_score:
            note(self._args, f"{held_out.no_score} held-out answers have no score and are in no figure")
        if not held_out.is_measurable:
            note(
                self._args,
                f"evaluation after step {step}: not recorded, not all scores are numbers from 0 to 1 (let the reward "
                f"function return such as `scores`)",
            )
            return
        metrics = evaluation_metrics(held_out, self._positive_above)
        self._log.log_evaluation(step, metrics)
        used = self.used(step) | {"ada/wall_clock_s": time.monotonic() - self._started}
        self.trackers.evaluation(step, metrics | used)
        emit(self._args, "eval", step=step, accuracy=metrics["eval/accuracy"], ci95=metrics["eval/ci95"])

    def finish(self) -> None:
        """Write summary.json and the report, and close the trackers, whatever the former raise."""
        self._log.close()
        try:
            self._log.write_summary(summarise(read_run(self.run_dir)))
            conclusion = write_report(read_run(self.run_dir), self.run_dir / "report.html")
        finally:
            # Last: one may wait for its server.
            self.trackers.finish()
        emit(self._args, "done", run_dir=str(self.run_dir), conclusion=conclusion)


def emit(args: Any, kind: str, **content: Any) -> None:
    """Tell the driver, from whichever process; never waits. `args.ada_events` is a Ray queue, or None."""
    if args.ada_events is not None:
        args.ada_events.put_nowait({"type": kind, **content})


def note(args: Any, text: str) -> None:
    """Show the user a line, from whichever process."""
    emit(args, "note", text=text)
