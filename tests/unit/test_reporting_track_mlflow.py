"""MLflow has every figure of a run, read back from its file. A server that is away ends no run, and is told of."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from tracked import EVALUATION, SAMPLE_ROWS, STEPS, numbers

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reporting.track_mlflow import MlflowTracker, absolute, begin_run, check_installed, end_run
from openrlhf_ada.reporting.tracking import Axes, axes_of, table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data base takes seconds to create."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def begin(uri: str, run_dir: Path, *, resumes: bool = False) -> str:
    begin_run(
        uri, "sums", "n", run_dir, resumes=resumes, params={"rollout.batch_size": "16", "text": "x" * 7000},
        tags={"host": "node-1"},
    )  # fmt: skip
    return (run_dir / "mlflow_run_id").read_text()


def points(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def named(name: str) -> str:
    return name.replace("@", "_at_").replace("\\", "_")


def test_every_figure_is_in_mlflow_and_a_resumed_run_goes_on(uri: str, tmp_path: Path) -> None:
    run_id = begin(uri, tmp_path)
    first = MlflowTracker(uri, tmp_path, pytest.fail)
    first.evaluation(0, EVALUATION, Axes())
    for step in (1, 2):
        first.step(step, STEPS[step], axes_of(STEPS[step]), table(SAMPLE_ROWS))
    first.close()
    end_run(uri, tmp_path, "KILLED")
    assert begin(uri, tmp_path, resumes=True) == run_id
    again = MlflowTracker(uri, tmp_path, pytest.fail)
    again.step(3, STEPS[3], axes_of(STEPS[3]), [])
    again.evaluation(3, EVALUATION, axes_of(STEPS[3]))
    again.close()
    client = MlflowClient(uri)
    assert client.get_run(run_id).info.status == "RUNNING"
    end_run(uri, tmp_path, "FINISHED")

    for name in numbers("train/", STEPS[1]):
        assert points(client, run_id, named(name)) == [(s, numbers("train/", STEPS[s])[name]) for s in (1, 2, 3)]
    for name, value in numbers("", EVALUATION).items():
        assert points(client, run_id, named(name)) == [(0, value), (3, value)]
        for axis, end in (("rollouts", 18), ("tokens", 180), ("seconds", 9)):
            assert points(client, run_id, f"by_{axis}/{named(name)}") == [(0, value), (end, value)]
    right = "by_rollouts/train/ada/first_wave_metric_mean"
    assert points(client, run_id, right) == [(6, 0.5), (12, 0.5), (18, 0.5)]
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name, run.data.tags["host"]) == ("FINISHED", "n", "node-1")
    assert (run.data.params["rollout.batch_size"], len(run.data.params["text"])) == ("16", 6000)


def test_samples_are_a_table_of_each_step(uri: str, tmp_path: Path) -> None:
    run_id = begin(uri, tmp_path)
    tracker = MlflowTracker(uri, tmp_path, pytest.fail)
    tracker.step(1, STEPS[1], axes_of(STEPS[1]), table(SAMPLE_ROWS))
    path = MlflowClient(uri).download_artifacts(run_id, "samples/step_000001.csv", str(tmp_path))
    with Path(path).open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert (first["prompt"], first["response"], first["coefficient"]) == ("1+1=", "2 | <b>\nso", "0.5")
    assert (second["prompt"], second["response"], second["cause"]) == ("1+1=", "3", "wrong")


class Flaky:
    """In place of MLflow's client: refuses what it is sent while it is away."""

    def __init__(self, client: Any) -> None:
        self.client, self.is_away = client, True

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise MlflowException("503 Service Unavailable, http://me:pass@host")
        return getattr(self.client, name)


def test_what_mlflow_does_not_take_is_kept_and_told(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = begin(uri, tmp_path)
    notes: list[str] = []
    tracker = MlflowTracker(uri, tmp_path, notes.append)
    flaky = Flaky(MlflowClient(uri))
    monkeypatch.setattr(tracker, "_client", flaky)
    for step in (1, 2):
        tracker.step(step, STEPS[step], axes_of(STEPS[step]), [])
    assert notes == [
        "MLflow takes no figures (503 Service Unavailable, http://<removed>@host); "
        "they are kept, and sent when it does"
    ]
    flaky.is_away = False
    tracker.step(3, STEPS[3], axes_of(STEPS[3]), [])
    assert points(flaky.client, run_id, "train/ada/drawn") == [(1, 6), (2, 6), (3, 6)]
    assert notes[1:] == ["MLflow takes figures again, and has got those that were kept"]
    flaky.is_away = True
    tracker.evaluation(3, EVALUATION, Axes())
    tracker.close()
    assert notes[-1] == "MLflow did not get 12 figures and 0 tables", "3 numbers, each over 4 axes"


def test_address_is_checked_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(ConfigError, match=r"--ada_mlflow is 'nonsense://x': MLflow cannot use it: "):
        begin("nonsense://x", tmp_path)
    with pytest.raises(ConfigError, match=r"maintenance mode.* Give a server .* or a file \(sqlite:///mlflow.db\)"):
        begin(str(tmp_path / "mlruns"), tmp_path)


def test_run_that_mlflow_does_not_know_is_not_gone_on_with(uri: str, tmp_path: Path) -> None:
    (tmp_path / "mlflow_run_id").write_text("0" * 32)
    with pytest.raises(ConfigError, match=r"Run with id=0{32} not found"):
        begin(uri, tmp_path, resumes=True)


@pytest.mark.parametrize(
    ("uri", "missing"),
    [("http://host:5000", ["mlflow"]), ("sqlite:///x.db", ["mlflow", "sqlalchemy", "alembic"])],
)
def test_missing_packages_are_named_with_the_extra(
    uri: str, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_installed(uri)
    for name in missing:
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.util, "find_spec", lambda package, name=name: None if package == name else object()
            )
            with pytest.raises(ConfigError, match=rf"{name} is not installed. pip install 'openrlhf-ada\[mlflow\]'"):
                check_installed(uri)


def test_file_is_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///m.db") == f"sqlite:///{tmp_path}/m.db"
    assert absolute(f"sqlite:///{tmp_path}/m.db") == f"sqlite:///{tmp_path}/m.db"
    assert absolute("http://host:5000") == "http://host:5000"
