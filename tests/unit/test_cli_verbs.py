"""The small commands: right with their defaults, one line and status 2 for bad input."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openrlhf_ada.cli import demo, main
from openrlhf_ada.host import parser
from openrlhf_ada.host.parser import HostError


def call(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["openrlhf-ada", *argv])
    return main.main()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--toy"]])
def test_demo_data_writes_with_its_defaults(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(monkeypatch, "demo-data", str(tmp_path / "data"), *options) == 0
    assert len((tmp_path / "data" / "train.jsonl").read_text().splitlines()) == 256
    assert len((tmp_path / "data" / "heldout.jsonl").read_text().splitlines()) == 100


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["report", "missing"], "missing"),
        (["demo-data", "data", "--num-train", "0"], "num_train is 0"),
        (["demo-data", "data", "--num-train", "99999"], "num_train is 99999"),
        (["retrain"], "no command 'retrain'. Did you mean train?"),
        (["init", "file/mine"], "error: file/mine: Not a directory"),
        (["plan", "--engine", "missing"], "error: missing: No such file or directory"),
        (["train", "--config", "missing"], "there is no such file"),
        (["init", "file"], "error: file is a file; name a folder"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert call(monkeypatch, *argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("openrlhf-ada")
    assert message in error
    assert "Traceback" not in error and "Errno" not in error


def test_a_config_without_openrlhf_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def absent() -> Path:
        raise HostError("OpenRLHF is not installed. Install it")

    monkeypatch.setattr(parser, "host_root", absent)
    parser._main_block.cache_clear()
    (tmp_path / "run.yaml").write_text("ada:\n  mode: seq\n")
    assert call(monkeypatch, "train", "--config", str(tmp_path / "run.yaml")) == 2
    assert capsys.readouterr().err == "openrlhf-ada train: error: OpenRLHF is not installed. Install it\n"


def test_demo_refuses_flags_it_sets_itself(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for argv in (["--ada_run_dir", "x"], ["--ada_run_dir=x"]):
        with pytest.raises(SystemExit) as exit_status:
            demo.main(["--cache-dir", str(tmp_path), *argv])
        assert exit_status.value.code == 2
    assert "--run-dir" in capsys.readouterr().err
