"""What Weights & Biases and TensorBoard get of a run, through OpenRLHF's own loggers: every figure of its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOST_SAMPLE = "generated_samples"
"""OpenRLHF's own name: text and reward of one answer."""


class Trackers:
    """In the place of OpenRLHF's loggers, `wandb` and `tensorboard`: it calls `log_train`, `log_eval` and `close`."""

    def __init__(self, wandb: Any = None, tensorboard: Any = None) -> None:
        self._wandb, self._tensorboard = wandb, tensorboard
        self._loggers = [logger for logger in (wandb, tensorboard) if logger is not None]

    def open(self, resumed_after: int | None) -> None:
        """Begin, or go on after a step; call it before anything is logged."""
        if self._wandb is not None:
            # Evaluations over training steps: OpenRLHF names an axis for them that it never logs.
            self._wandb.handle.define_metric("eval/global_step")
            self._wandb.handle.define_metric("eval/*", step_metric="eval/global_step", step_sync=True)
        if self._tensorboard is not None and resumed_after is not None:
            # What earlier files have of later steps is no longer shown. A writer says so at the head of a file, so the
            # one that it has begun is ended, and the next figure begins another.
            self._tensorboard.writer.close()
            self._tensorboard.writer.purge_step = resumed_after + 1

    def log_train(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """A step: its row of metrics.jsonl, and OpenRLHF's answer under HOST_SAMPLE."""
        figures = dict(logs_dict)
        sample = {HOST_SAMPLE: found} if (found := figures.pop(HOST_SAMPLE, None)) else {}
        for logger in self._loggers:
            logger.log_train(global_step, flat(figures) | sample)

    def log_eval(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """OpenRLHF's own figures of an evaluation. In asynchronous training ours come with them, and are left out."""
        for logger in self._loggers:
            logger.log_eval(global_step, getattr(logs_dict, "of_host", logs_dict))

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """An evaluation's row of metrics.jsonl, and what the run had used up by then."""
        figures = {name.removeprefix("eval/"): value for name, value in flat(metrics).items()}
        for logger in self._loggers:
            logger.log_eval(step, figures)

    def close(self) -> None:
        """OpenRLHF is done; an evaluation after the last step may still come."""

    def finish(self) -> None:
        """The run is over."""
        for logger in self._loggers:
            logger.close()


def flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number, by its name. An object's are named `name/key`: `ada/draws_histogram/8`. None has no number."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}/")
        elif value is not None and not isinstance(value, str):
            numbers[f"{prefix}{name}"] = float(value)
    return numbers
