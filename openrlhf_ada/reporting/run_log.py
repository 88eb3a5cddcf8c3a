"""Writes the record of a run: `config.json`, `metrics.jsonl`, `samples.jsonl`, `summary.json` in one directory.

Every line is flushed as it is written, so a killed run keeps its record; resuming cuts the record back to the step of
the checkpoint, so no step appears twice. `run_record` reads it back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

from openrlhf_ada.core.choice import Choice
from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup
from openrlhf_ada.reporting.jsonl import RowFile, encode, finite, keep_rows_up_to, read_rows, write_atomically
from openrlhf_ada.reporting.redaction import redact
from openrlhf_ada.reward.grade import TimedGrade

logger = logging.getLogger(__name__)

Row: TypeAlias = dict[str, Any]

CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
SUMMARY_FILE = "summary.json"


def sample_records(
    prompt_id: str,
    prompt: str,
    pool: PromptPool,
    responses_R: Sequence[str],
    group: TrainingGroup | None,
    grades_R: Sequence[TimedGrade | None] = (),
    raw_scores_R: Sequence[float] = (),
    choice: Choice | None = None,
    label: str = "",
    positive_above: float = 0.5,
) -> list[Row]:
    """The rows of one prompt's pool in `samples.jsonl`, in index order, each with all of its texts.

    Args:
        prompt_id: identity of the dataset row, equal at every visit.
        responses_R: text of each sample of the pool, by index.
        group: what is trained of it; None if the prompt was dropped or replaced, so that nothing was kept.
        grades_R: grade of each sample; empty if no grader of ours gave any.
        raw_scores_R: of each sample; empty if scores are in [0, 1].
        choice: how the prompt was chosen, where prompts are; its weight is in the coefficient.
        label: the reference answer; empty if there is none.
        positive_above: a sample is positive if its score is greater.
    """
    kept = {} if group is None else dict(zip(group.indices, group.coefficients, strict=True))
    nothing = [None] * len(pool)
    columns = zip(pool.samples, responses_R, grades_R or nothing, raw_scores_R or nothing, strict=True)
    rows = [
        {"prompt_id": prompt_id}
        | _sample_row(sample, kept.get(sample.index), grade, raw_score)
        | {"positive": sample.score > positive_above, "prompt": prompt, "label": label, "response": response}
        for sample, response, grade, raw_score in columns
    ]
    if rows:
        # These belong to the prompt, so its first row holds them.
        known = {"predicted": pool.predicted, "critic_value": pool.critic_value}
        if choice is not None:
            known["chance"] = choice.chance
        rows[0] |= {name: value for name, value in known.items() if value is not None}
    return rows


def _sample_row(sample: Sample, coefficient: float | None, grade: TimedGrade | None, raw_score: float | None) -> Row:
    row: Row = {
        "key": sample.key,
        "index": sample.index,
        "metric": sample.score,
        "reward": sample.reward,
        "tokens": sample.num_tokens,
        "version": sample.version,
        "kept": coefficient is not None,
        "coefficient": coefficient,
    }
    if sample.score_norm is not None:
        row["score_norm"] = round(sample.score_norm, 6)
    if raw_score is not None:
        row["raw_score"] = raw_score
    if grade is not None:
        row["scoring_s"] = round(grade.seconds, 6)
        if grade.cause:
            row["cause"] = grade.cause
        if grade.forgeable:
            row["forgeable"] = True
    if sample.last_version != sample.version:
        row["last_version"] = sample.last_version
    return row


class RunLog:
    """The record of one run, open for writing. One writer per directory; a context manager.

    Args:
        run_dir: created if it does not exist.
        config: every flag, nested; secrets are removed here (`redaction`).
        resume_from_step: the step of the checkpoint that training resumes from. Recorded steps, evaluations and
            samples after it are cut off. None starts a new record.
        text_prompts_per_step: how many prompts of a step have their answers recorded. Prompts and reference answers
            are recorded of all, once each; with 0, no text at all is recorded.
        text_chars: longest text that is recorded in full.

    Raises FileExistsError where the directory holds a record already and `resume_from_step` is None, RunDamageError
    where the record to resume is damaged; later RecordLostError where rows cannot be written.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, object],
        *,
        resume_from_step: int | None = None,
        text_prompts_per_step: int = 3,
        text_chars: int = 4000,
    ) -> None:
        self.run_dir = run_dir
        self._text_prompts_per_step = text_prompts_per_step
        self._text_chars = text_chars
        self._last_step = 0
        self._known_prompts: set[str] = set()
        content = encode(finite(redact(config)), indent=2)
        run_dir.mkdir(parents=True, exist_ok=True)
        if resume_from_step is not None:
            self._cut_back_to(resume_from_step)
        elif (run_dir / METRICS_FILE).exists():
            raise FileExistsError(
                f"{run_dir} holds the record of a run: give another --ada_run_dir, or resume that run"
            )
        self._metrics = RowFile(run_dir / METRICS_FILE)
        self._samples = RowFile(run_dir / SAMPLES_FILE)
        # Last, so that a directory with config.json has the other files too.
        write_atomically(run_dir / CONFIG_FILE, content)

    def log_step(self, step: int, metrics: Mapping[str, object]) -> None:
        """Append one training step. Values of our names must be finite; OpenRLHF's become null if they are not. Raises
        ValueError where `step` is not after the last one, or a value of ours is not finite."""
        if step <= self._last_step:
            raise ValueError(f"step {step} is logged after step {self._last_step}: steps are logged once, in order")
        self._append_metrics(step, metrics)
        self._last_step = step

    def log_evaluation(self, step: int, metrics: Mapping[str, object]) -> None:
        """Append one evaluation of the policy after `step` training steps (0: before training). `metrics`: of
        `eval.held_out.evaluation_metrics`. Raises ValueError where a value of ours is not finite."""
        self._append_metrics(step, metrics)

    def log_samples(self, step: int, rows: Iterable[Row]) -> None:
        """Append the rollouts of one step. Answers are kept for the prompts with the lowest keys only.

        Keys follow the order of the data, which is shuffled, and not the order of completion, so the recorded texts
        are a fair choice. The text of a prompt and its reference answer stand in the first row of its first visit
        (again after a resume), and in that of every visit whose answers are kept.
        """
        ordered = sorted(rows, key=lambda row: (row["key"], row["index"]))
        with_text = set(sorted({row["key"] for row in ordered})[: self._text_prompts_per_step])
        self._samples.append([self._with_texts(step, row, row["key"] in with_text) for row in ordered])

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write `summary.json`, whole or not at all. Raises ValueError if a number is not finite."""
        write_atomically(self.run_dir / SUMMARY_FILE, encode(dict(summary), indent=2))

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _append_metrics(self, step: int, metrics: Mapping[str, object]) -> None:
        row: Row = {"step": step}
        for name, value in metrics.items():
            is_ours = name.startswith(("ada/", "eval/"))
            row[name] = value if is_ours or not isinstance(value, Real) or math.isfinite(value) else None
            try:
                encode(row[name])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name!r} is {value!r}: {error}") from error
        self._metrics.append([row])

    def _with_texts(self, step: int, row: Row, with_text: bool) -> Row:
        """The row with the texts that are kept of it, shortened."""
        kept = {name: value for name, value in row.items() if name not in ("prompt", "label", "response")}
        if (
            row["index"] == 0
            and self._text_prompts_per_step
            and (with_text or row["prompt_id"] not in self._known_prompts)
        ):
            self._known_prompts.add(row["prompt_id"])
            kept |= {name: self._shortened(row[name]) for name in ("prompt", "label") if row[name]}
        if with_text:
            kept["response"] = self._shortened(row["response"])
        return {"step": step} | kept

    def _shortened(self, text: str) -> str:
        cut = len(text) - self._text_chars
        return text if cut <= 0 else f"{text[: self._text_chars]} [... {cut} more characters]"

    def _cut_back_to(self, step: int) -> None:
        """Drop what was recorded after `step`, and a summary, which was of the longer run."""
        metrics = self.run_dir / METRICS_FILE
        for path in (metrics, self.run_dir / SAMPLES_FILE):
            if path.exists():
                keep_rows_up_to(path, step)
        (self.run_dir / SUMMARY_FILE).unlink(missing_ok=True)
        last = max((row["step"] for _, row in read_rows(metrics)), default=0) if metrics.exists() else 0
        if last < step:
            logger.warning("%s: training resumes after step %d, but the record ends at %d", metrics, step, last)
        self._last_step = step
