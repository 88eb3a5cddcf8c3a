"""The trackers of a run, of the loggers that OpenRLHF has opened and of MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.track_mlflow import MlflowTracker
from openrlhf_ada.reporting.track_tensorboard import TensorboardTracker
from openrlhf_ada.reporting.track_wandb import WandbTracker
from openrlhf_ada.reporting.tracking import Axes, Tracker, Trackers


class RunTrackers(Trackers):
    """`wandb`, `tensorboard`: OpenRLHF's loggers, or None. Nothing may be logged before `open`."""

    def __init__(self, wandb: Any, tensorboard: Any) -> None:
        super().__init__([])
        self._wandb = wandb
        self._tensorboard = tensorboard

    def open(
        self,
        mlflow: str | None,
        run_dir: Path,
        resumed_after: tuple[int, Axes] | None,
        note: Callable[[str], None],
    ) -> None:
        """Begin, or go on after a step. `mlflow`: address of its server or file; None: not asked for."""
        found: list[Tracker] = []
        if self._wandb:
            found.append(WandbTracker(self._wandb.handle))
        if self._tensorboard:
            writer = self._tensorboard.writer
            found.append(TensorboardTracker(writer, type(writer), resumed_after))
        if mlflow:
            found.append(MlflowTracker(mlflow, run_dir, note))
        self.use(found, Axes() if resumed_after is None else resumed_after[1])

    def log_eval(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """In asynchronous training the host's figures come with ours, which the recorder logs."""
        super().log_eval(global_step, getattr(logs_dict, "of_host", logs_dict))
