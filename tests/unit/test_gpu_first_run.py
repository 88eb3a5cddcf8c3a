"""tests/gpu/first_run.sh without a GPU: the driver and pytest are played, the rest is as it will be.

Its measurements really run in tests/e2e/test_gpu_rehearsal.py.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documents import ROOT, tables
from nvml import driver, gpu

from openrlhf_ada.cli.scenario import read_machine
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.host.parser import parse_host_arguments
from openrlhf_ada.platforms.gpu_paths import read_gpu_paths
from openrlhf_ada.platforms.resources import required_slots
from openrlhf_ada.trainer.preflight import check_without_files

SCRIPT = ROOT / "tests" / "gpu" / "first_run.sh"
PATHS = [path for path in read_gpu_paths() if path.test]

pytestmark = pytest.mark.rehearsal

ENGINE = {"batch_sizes": [1, 4], "step_seconds": [0.01, 0.02], "slots": 4, "prefill": 0.0, "shared_prefill": 0.0}


@pytest.fixture(scope="module")
def first_run() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("first_run")


Start = Callable[..., "tuple[int, Path]"]


@pytest.fixture
def start(first_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """It with so many GPUs, and what tests and measurements come to."""

    def call(*argv: str, gpus: int, test: Any = None, measure: Any = None, trouble: Any = None) -> tuple[int, Path]:
        found = driver(*(gpu(index=index) for index in range(gpus)))
        monkeypatch.setattr(first_run, "read_driver", lambda: found)
        monkeypatch.setattr(first_run, "usable_gpus", lambda: gpus)
        monkeypatch.setattr(first_run, "trouble", lambda: trouble)
        monkeypatch.setattr(first_run, "installation_is_right", lambda: True)
        monkeypatch.setattr(first_run.os, "sched_getaffinity", lambda pid: set(range(64)))
        monkeypatch.setattr(first_run, "run_test", test or (lambda test, log, gpus: {"result": "pass"}))
        for name in ("train", "calibrate"):
            of = lambda bench, what, name=name: (measure or measured)(name, what)  # noqa: E731
            monkeypatch.setattr(first_run.Bench, name, of)
        monkeypatch.setattr(first_run.Bench, "prepare", lambda bench: None)
        monkeypatch.setattr(first_run.figures, "planned", lambda file, bench: {"balance": 4.2})
        out = tmp_path / "machine.json"
        return first_run.main([*argv, "--out", str(out)]), out

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return call


def measured(what: str, of: Any) -> dict[str, Any]:
    """An update of 0.5 s; 2 µs a token and 3 s beside."""
    if what == "calibrate":
        return ENGINE
    found = {"step_s": 4.0, "generation_s": 1.0, "training_s": 2.0, "update_s": 0.5, "peak_gib": [10.0, 12.0]}
    tokens = 1e6 * of.group
    return found if of.is_host or of.is_apart else found | {"trained": [(tokens, 3 + 2e-6 * tokens)] * 3}


def results(record: Path) -> dict[str, str]:
    return {name: row["result"] for name, row in json.loads(record.read_text())["parts"].items()}


@pytest.mark.slow
def test_the_script_starts_the_program(tmp_path: Path) -> None:
    """With another interpreter, from another folder."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PYTHON": "./python", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = lambda *argv, **more: subprocess.run(  # noqa: E731
        [str(SCRIPT), *argv], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path, env=env | more
    )
    done = run("--dry-run", "--rehearse")
    assert done.returncode == 0, done.stderr
    assert "GRPO n = 4" in done.stderr and "minutes" in done.stderr
    assert run("--dry").returncode == 2
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    for without_packages in ("false", "./python"):
        done = run(PYTHON=without_packages)
        assert done.returncode == 1 and done.stderr.startswith(f"first_run: {without_packages} has no"), done.stderr


def test_packages_that_the_tests_need_are_missed_before_an_hour_is_spent(
    start: Start, first_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_run, "find_spec", lambda name: None if name == "gguf" else name)
    assert start("--only", "paths", gpus=1)[0] == 1
    assert "pip install gguf" in capsys.readouterr().err


def test_without_a_gpu_it_says_so_and_fails(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(gpus=0)[0] == 1
    assert "no NVIDIA GPU can be used here" in capsys.readouterr().err
    assert start(gpus=1, trouble="the driver is too old. Install another")[0] == 1
    said = capsys.readouterr().err
    assert "the driver is too old" in said and "make gpu-rehearsal" in said


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["0", "1"]),
        ("0", ["0"]),
        ("GPU-1,GPU-2", ["GPU-1", "GPU-2"]),
        ("1,-1,0", ["1"]),
        ("0,", ["0"]),
        ("-1", []),
    ],
)
def test_gpus_that_are_hidden_are_not_used(
    visible: str | None, names: list[str], first_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_run, "trouble", lambda: None)
    monkeypatch.setattr(first_run, "usable_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert first_run.visible_gpus() == names


def test_the_plan_names_every_part_and_what_it_needs(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = start("--dry-run", gpus=2)
    said = capsys.readouterr().err
    assert status == 0 and not out.exists()
    for path in PATHS:
        what = f"run      {path.name}\n" if path.gpus <= 2 else f"skipped  {path.name}: needs 3 GPUs, here is 2\n"
        assert what in said
    assert re.search(r"^2 GPUs, \d+ parts: about \d+ minutes$", said, re.M)


def minutes(said: str) -> int:
    found = re.search(r"about (\d+) minutes", said)
    assert found
    return int(found[1])


def test_more_gpus_take_less_time(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start("--dry-run", "--only", "paths", gpus=3)
    few = minutes(capsys.readouterr().err)
    start("--dry-run", "--only", "paths", gpus=8)
    assert minutes(capsys.readouterr().err) < few


def test_an_installation_that_is_not_complete_ends_it(
    start: Start, first_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the doctor says."""
    start("--dry-run", gpus=1)
    monkeypatch.undo()
    finding = {"level": "error", "check": "packages", "what": "not installed: ray", "remedy": "Install it"}
    said = json.dumps({"error": 1, "warning": 0, "findings": [finding], "versions": {}})
    monkeypatch.setattr(first_run.subprocess, "run", lambda *args, **more: SimpleNamespace(stdout=said, stderr=""))
    assert not first_run.installation_is_right()
    assert "not installed: ray. Install it" in capsys.readouterr().err


# -- the run ----------------------------------------------------------------------------------------------------------


def test_one_file_has_all_of_it_and_plan_reads_it(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = start(gpus=4)
    assert status == 0
    record = json.loads(out.read_text())
    assert set(results(out).values()) == {"pass"}
    assert {path.name for path in PATHS} < record["parts"].keys()
    engine, engines, step = read_machine(out)
    assert (engine.batch_sizes, engines) == ((1, 4), 4)
    assert (step.per_token, step.fixed) == (pytest.approx(2e-6), pytest.approx(3.0))
    report = capsys.readouterr().out
    paths, trainings, engine_speed = tables(report)
    assert len(paths) == 1 + len(PATHS)
    own = next(row for row in trainings if row[0] == "balance")
    assert own[1:] == ["pass", "4 s", "1 s", "2 s", "0.5 s", "4.2 s", "12.0 GiB"]
    assert engine_speed[1:] == [["graphs", "100", "200"], ["eager", "100", "200"]]
    assert "H100" in report and os.uname().nodename not in report + out.read_text()


def test_a_failure_is_shown_and_does_not_end_the_others(
    start: Start, first_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def test(of: str, log: Path, gpus: Sequence[str]) -> dict[str, str]:
        is_first = of == PATHS[0].test
        return {"result": "FAIL", "said": "E   assert 0.2 < 0.1"} if is_first else {"result": "pass"}

    def measure(what: str, of: Any) -> dict[str, Any]:
        if what == "train" and of.name == "balance":
            raise first_run.FailedError("status 1\nno memory is left")
        return measured(what, of)

    status, out = start(gpus=1, test=test, measure=measure)
    assert status == 1
    found = results(out)
    assert found[PATHS[0].name] == found["balance"] == "FAIL"
    assert found["weights by NCCL, CUDA graphs"] == "skipped" and found["Ada-Est"] == "pass"
    report = capsys.readouterr().out
    assert "assert 0.2 < 0.1" in report and "no memory is left" in report
    with pytest.raises(ValueError, match="does not describe a machine"):
        read_machine(out)


def test_the_same_call_goes_on(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """What has passed is not run again; what has failed is."""
    runs: list[str] = []

    def test(of: str, log: Path, gpus: Sequence[str]) -> dict[str, str]:
        runs.append(of)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return {"result": "FAIL" if len(runs) == 1 else "pass"}

    assert start("--only", "paths", gpus=1, test=test)[0] == 130
    interrupted, runs[:] = runs[:], ["", "", ""]
    status, out = start("--only", "paths", gpus=1, test=test)
    assert status == 0
    assert interrupted[1] not in runs and {interrupted[0], interrupted[2]} <= set(runs)
    record = json.loads(out.read_text())
    out.write_text(json.dumps(record | {"machine": {}}))
    with pytest.raises(SystemExit, match="another machine"):
        start("--only", "paths", gpus=1)


def test_tests_run_side_by_side_on_gpus_of_their_own(start: Start) -> None:
    """After the first, which compiles."""
    lock, busy, most, first = threading.Lock(), set[str](), [0], []

    def test(of: str, log: Path, gpus: Sequence[str]) -> dict[str, str]:
        with lock:
            assert not busy & set(gpus), "one at a time on a GPU"
            busy.update(gpus)
            most[0] = max(most[0], len(busy))
            first.append(len(busy))
        time.sleep(0.02)
        with lock:
            busy.difference_update(gpus)
        return {"result": "pass"}

    assert start("--only", "paths", gpus=4, test=test)[0] == 0
    assert (first[0], first[1] >= 1, most[0]) == (1, True, 4)


def test_a_run_in_which_everything_is_skipped_is_no_success(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    skips = lambda of, log, gpus: {"result": "skipped", "said": "needs flash-attn"}  # noqa: E731
    assert start("--only", "paths", gpus=4, test=skips)[0] == 1
    shown = capsys.readouterr()
    assert "nothing was run" in shown.err and "skipped: needs flash-attn" in shown.out


@pytest.mark.parametrize(
    ("status", "said", "result"),
    [
        (0, "1 passed in 2.0s", {"result": "pass"}),
        (0, "SKIPPED [1] tests/x.py:61: needs weights\n1 skipped", {"result": "skipped", "said": "needs weights"}),
        (1, "E   assert False", {"result": "FAIL", "said": "status 1\nE   assert False"}),
        ("not done after 9 s", "", {"result": "FAIL", "said": "status not done after 9 s"}),
    ],
)
def test_pytest_says_what_became_of_a_test(
    status: int | str,
    said: str,
    result: dict[str, str],
    first_run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    def run(command: Sequence[str], log: Path, env: dict[str, str]) -> int | str:
        calls.append((command[-1], env["CUDA_VISIBLE_DEVICES"]))
        log.write_text(said)
        return status

    monkeypatch.setattr(first_run.figures, "run_logged", run)
    assert first_run.run_test("test_x.py::test_y", tmp_path / "log", ["2", "3"]) == result
    assert calls == [("tests/gpu/test_x.py::test_y", "2,3")]


def test_what_hangs_is_ended_with_all_that_it_started(
    first_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_run.figures, "LIMIT_S", 0.5)
    monkeypatch.setattr(first_run.figures, "END_S", 0.1)
    command = ["sh", "-c", "sleep 61 & echo $!; wait"]
    assert "not done" in first_run.figures.run_logged(command, tmp_path / "log", dict(os.environ))
    child = int((tmp_path / "log").read_text())
    for _ in range(50):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            break
        time.sleep(0.1)
    else:
        pytest.fail("its child is still there")


@pytest.mark.slow
def test_a_refused_command_line_ends_it_before_anything_starts(
    start: Start, first_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [first_run.figures.Training("x", "train_grpo.sh", group=0)]
    monkeypatch.setattr(first_run, "TRAININGS", broken)
    status, out = start(gpus=1, test=lambda *_: pytest.fail("nothing starts"))
    assert status == 1 and not out.exists()
    assert "train_grpo.sh refuses: GROUP is 0" in capsys.readouterr().err


# -- command lines ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_command_lines_of_the_measurements_pass_all_checks(gpus: int, first_run: Any, tmp_path: Path) -> None:
    """On GPUs. All have as many prompts for each GPU."""
    bench = first_run.Bench(first_run.FULL, tmp_path, gpus)
    for training in first_run.TRAININGS:
        if training.is_apart and gpus == 1:
            continue
        flags = bench.flags(training)
        used = gpus - gpus % 2 if training.is_apart else gpus
        if training.is_host:
            assert not any(word.startswith("--ada") for word in flags)
            args = parse_host_arguments(flags, lambda p: None, lambda f: None, prog="host", description="")
        else:
            args = parse(flags, check_without_files)
        assert required_slots(args).gpus == used
        assert args.rollout.batch_size == 64 * gpus
        assert args.data.max_samples == 4 * args.rollout.batch_size
        assert args.train.async_enable == training.is_apart != bool(args.train.colocate_all)


@pytest.mark.slow
def test_the_model_is_the_architecture_that_it_is_called(first_run: Any) -> None:
    """1.54 billion parameters, as Qwen2.5-1.5B has, embeddings counted once."""
    from dataclasses import asdict

    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**asdict(first_run.FULL.shape), tie_word_embeddings=True))
    assert sum(p.numel() for p in model.parameters()) == 1_543_714_304


# -- the list of paths ------------------------------------------------------------------------------------------------


def functions_of(file: Path) -> dict[str, int]:
    """GPUs by the marker of each test in a file of tests/gpu; a parameter may have a marker of its own."""
    found: dict[str, int] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marked = [ast.unparse(decorator) for decorator in node.decorator_list]
            counts = [int(hit[1]) for text in marked if (hit := re.fullmatch(r"pytest\.mark\.gpu\((\d)\)", text))]
            found[f"{file.name}::{node.name}"] = counts[0] if counts else 1
    return found


def test_every_test_is_a_path_and_needs_as_many_gpus() -> None:
    known = {name: gpus for file in SCRIPT.parent.glob("test_*.py") for name, gpus in functions_of(file).items()}
    listed = {path.test.partition("[")[0] for path in PATHS}
    assert listed == known.keys()
    for path in PATHS:
        # A parameter asks for two where the function asks for one.
        assert path.gpus == known[path.test.partition("[")[0]] or path.test.endswith("exports[2]"), path
    assert len({path.name for path in read_gpu_paths()}) == len(read_gpu_paths())
