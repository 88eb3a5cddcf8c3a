"""`openrlhf_ada.train`: the same checks as the command, and what becomes of the process that trains."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import openrlhf_ada
from openrlhf_ada.cli import train_function
from openrlhf_ada.config.flags import ConfigError

Flags = dict[str, str | None]

STAND_IN = """
import json, pathlib, signal, sys, time
words = sys.argv[1:]
run_dir = pathlib.Path(next(w.split("=", 1)[1] for w in words if w.startswith("--ada_run_dir=")))
print("starting", flush=True)
{what}
"""
RECORDS = """
run_dir.mkdir(parents=True)
(run_dir / "config.json").write_text("{}")
rows = [{"step": 1, "ada/drawn": 8}, {"step": 2, "ada/drawn": 6}, {"step": 2, "eval/accuracy": 0.5}]
(run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
(run_dir / "summary.json").write_text('{"steps": 2}')
"""


@pytest.fixture
def config(argv_with: Callable[[Flags], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Flags that pass every check, as a configuration."""
    monkeypatch.chdir(tmp_path)
    words = iter(argv_with({"--ada_run_dir": None}))
    flags: dict[str, Any] = {}
    for word in words:
        flags[word.removeprefix("--")] = next(words)
    return flags


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets a small program stand for the process that trains."""

    def use(what: str) -> None:
        real = train_function._run
        script = STAND_IN.replace("{what}", what)
        monkeypatch.setattr(train_function, "_run", lambda command: real([sys.executable, "-c", script, *command[4:]]))

    return use


def test_last_metrics_come_back_and_two_calls_get_two_folders(
    config: dict[str, Any], stand_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(RECORDS)
    first, second = openrlhf_ada.train(config), openrlhf_ada.train(config, {"train.seed": 7})
    assert first.run_dir != second.run_dir and first.run_dir.parent == Path("runs")
    assert (first.metrics, first.summary) == ({"step": 2, "ada/drawn": 6}, {"steps": 2})
    assert first.evaluation == {"step": 2, "eval/accuracy": 0.5}
    assert capsys.readouterr().out == "starting\nstarting\n"


def test_yaml_json_and_nested_dict_are_the_same_flags(config: dict[str, Any], tmp_path: Path) -> None:
    nested = {"rollout": {"batch_size": 2}, "ada_run_dir": "r", "ada": {"eval_ends": True, "verbose": False}}
    (tmp_path / "run.yaml").write_text("rollout:\n  batch_size: 2\nada_run_dir: r\nada.eval_ends: true\n")
    (tmp_path / "some.json").write_text(json.dumps(nested))
    expected = ["--rollout.batch_size=2", "--ada_run_dir=r", "--ada_eval_ends"]
    for given in (nested, tmp_path / "some.json"):
        assert train_function.command_line(given, {}) == expected
    assert train_function.command_line(str(tmp_path / "run.yaml"), {"ada_k_pos": None, "ada_wave": 4}) == [
        *expected,
        "--ada_wave=4",
    ]


def test_runs_of_a_sweep_do_not_share_a_model() -> None:
    words = train_function.command_line({"ada_run_dir": "r", "ckpt.output_dir": "r/model"}, {"ada_run_dir": "s"})
    assert words == ["--ada_run_dir=r", "--ckpt.output_dir=s/model", "--ada_run_dir=s"]


def test_wrong_flags_are_refused_before_anything_starts(
    config: dict[str, Any], stand_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("raise SystemExit('started')")
    with pytest.raises(ConfigError, match=r"^rollout.batch_sise is 2: .*rollout.batch_size"):
        openrlhf_ada.train(config | {"rollout.batch_sise": 2})
    with pytest.raises(ValueError, match=r"argument --rollout.batch_size: invalid int value: 'two'"):
        openrlhf_ada.train(config, {"rollout.batch_size": "two"})
    with pytest.raises(ConfigError, match=r"--ada_mode is 'sequel'"):
        openrlhf_ada.train(config, {"ada_mode": "sequel"})
    assert "start" not in capsys.readouterr().out


def test_bad_data_found_by_the_process_is_a_value_error(
    config: dict[str, Any], stand_in: Callable[[str], None]
) -> None:
    stand_in("print('openrlhf-ada train: error: row 3 has no label', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ValueError, match=r"^row 3 has no label$"):
        openrlhf_ada.train(config)


def test_failure_has_its_last_lines_and_the_log(config: dict[str, Any], stand_in: Callable[[str], None]) -> None:
    stand_in("print('out of memory', file=sys.stderr); sys.exit(1)")
    with pytest.raises(
        openrlhf_ada.TrainingError, match=r"status 1 \(log: runs/train-.*/log.txt\):\nstarting\nout of"
    ):
        openrlhf_ada.train(config)


@pytest.mark.slow
def test_interruption_reaches_the_process_once(config: dict[str, Any], stand_in: Callable[[str], None]) -> None:
    """It ends by itself before the exception goes on."""
    stand_in(
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('ending')\n"
        "    pathlib.Path('ended').touch()\n    sys.exit(130)"
    )

    def interrupt() -> None:
        time.sleep(3.0)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    # Whoever runs tests in the background may have it ignored, and a process inherits that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            openrlhf_ada.train(config)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Path("ended").exists()
