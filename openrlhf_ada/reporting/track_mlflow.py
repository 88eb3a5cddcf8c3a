"""One MLflow run for a run, however often it is resumed. OpenRLHF has no logger for MLflow, so this is all of it."""

from __future__ import annotations

import csv
import importlib.util
import io
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.visible import without_logins
from openrlhf_ada.reporting.tracking import COLUMNS, Axes, Row, curves, flat

FLAG = "--ada_mlflow"
ID_FILE = "mlflow_run_id"
SQLITE = "sqlite:///"

MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 6000
"""What MLflow takes in one call, and of one value."""

RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
"""Of a request, each after twice the time. MLflow's own default makes a step wait for minutes."""

_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")


def check_installed(uri: str) -> None:
    """Raises ConfigError where MLflow, or what it needs for this address, is not installed."""
    needed = ["mlflow", *(["sqlalchemy", "alembic"] if "://" in uri and not uri.startswith("http") else [])]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                FLAG, without_logins(uri), f"{package} is not installed", "pip install 'openrlhf-ada[mlflow]'"
            )


def absolute(uri: str) -> str:
    """The same address from any working directory."""
    path = uri.removeprefix(SQLITE)
    return uri if path == uri else f"{SQLITE}{Path(path).absolute()}"


def begin_run(
    uri: str,
    experiment: str,
    name: str,
    run_dir: Path,
    *,
    resumes: bool,
    params: Mapping[str, str],
    tags: Mapping[str, str],
) -> None:
    """Start MLflow's run, or go on with the one of an earlier start; its id is kept in the run directory.

    Raises ConfigError where MLflow does not answer, or does not know the run that is to go on.
    """
    os.environ.setdefault(RETRIES, "2")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    path = run_dir / ID_FILE
    try:
        client = MlflowClient(uri)
        if resumes and path.exists():
            client.update_run(path.read_text(), status="RUNNING")
            return
        run_id = _create(client, uri, experiment, name, tags)
        _log_params(client, run_id, params)
    except (MlflowException, OSError) as error:
        reason = without_logins(str(error).strip().splitlines()[0])
        raise ConfigError(
            FLAG,
            without_logins(uri),
            f"MLflow cannot use it: {reason}",
            f"Give a server (http://HOST:5000) or a file ({SQLITE}mlflow.db)",
        ) from error
    run_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(run_id)


def _create(client: Any, uri: str, experiment: str, name: str, tags: Mapping[str, str]) -> str:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        # Else MLflow would take the folder that it happens to be in.
        beside = str(Path(uri.removeprefix(SQLITE)).parent / "mlflow-artifacts") if uri.startswith(SQLITE) else None
        experiment_id = client.create_experiment(experiment, artifact_location=beside)
    else:
        experiment_id = found.experiment_id
    return client.create_run(experiment_id, run_name=name, tags=dict(tags)).info.run_id


def _log_params(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    values = [Param(_name(name), text[:LONGEST_PARAM]) for name, text in params.items()]
    for start in range(0, len(values), MOST_PARAMS):
        client.log_batch(run_id, params=values[start : start + MOST_PARAMS])


def end_run(uri: str, run_dir: Path, status: str) -> None:
    """Set how the run ended: FINISHED, FAILED or KILLED."""
    from mlflow import MlflowClient

    MlflowClient(uri).set_terminated((run_dir / ID_FILE).read_text(), status)


class MlflowTracker:
    """Logs to the run that `begin_run` has started.

    MLflow is a server that may be away for a while. What it does not take is kept and sent with the next figures;
    `note` gets a line when it stops to take them, and when it takes them again. Training goes on.
    """

    def __init__(self, uri: str, run_dir: Path, note: Callable[[str], None]) -> None:
        os.environ.setdefault(RETRIES, "2")
        from mlflow import MlflowClient

        self._client = MlflowClient(uri)
        self._run_id = (run_dir / ID_FILE).read_text()
        self._note = note
        self._unsent: list[Any] = []
        self._unsent_tables: dict[str, str] = {}
        self._is_away = False

    def step(self, step: int, metrics: Row, axes: Axes, samples: Sequence[Row]) -> None:
        if samples:
            self._unsent_tables[f"samples/step_{step:06d}.csv"] = as_csv(samples)
        self._log(flat(metrics), curves(metrics), step, axes, "train/")

    def evaluation(self, step: int, metrics: Row, axes: Axes) -> None:
        self._log(flat(metrics), curves(metrics), step, axes, "")

    def close(self) -> None:
        """Send what is left. The driver says how the run ended."""
        self._send()
        if self._unsent or self._unsent_tables:
            self._note(f"MLflow did not get {len(self._unsent)} figures and {len(self._unsent_tables)} tables")

    def _log(self, values: Row, curves: Row, step: int, axes: Axes, prefix: str) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._unsent += [Metric(_name(prefix + name), value, now, step) for name, value in values.items()]
        for axis, at in axes.by_name().items():
            named = {_name(f"by_{axis}/{prefix}{name}"): value for name, value in curves.items()}
            self._unsent += [Metric(name, value, now, math.ceil(at)) for name, value in named.items()]
        self._send()

    def _send(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            while self._unsent:
                self._client.log_batch(self._run_id, metrics=self._unsent[:MOST_METRICS])
                del self._unsent[:MOST_METRICS]
            for name, text in list(self._unsent_tables.items()):
                self._client.log_text(self._run_id, text, name)
                del self._unsent_tables[name]
        except (MlflowException, OSError) as error:
            if not self._is_away:
                reason = without_logins(str(error).strip().splitlines()[0])
                self._note(f"MLflow takes no figures ({reason}); they are kept, and sent when it does")
            self._is_away = True
            return
        if self._is_away:
            self._note("MLflow takes figures again, and has got those that were kept")
        self._is_away = False


def _name(name: str) -> str:
    """A name that MLflow allows: `pass@8` becomes `pass_at_8`, any other character that it refuses `_`."""
    return _NOT_ALLOWED.sub("_", name.replace("@", "_at_"))


def as_csv(samples: Sequence[Row]) -> str:
    """A table of samples, which MLflow's page shows as one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(samples)
    return text.getvalue()
