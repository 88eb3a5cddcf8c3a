"""`openrlhf-ada doctor`: what it looks at, what it says of a training's flags, its exit status and its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli import doctor, doctor_inputs
from openrlhf_ada.cli.doctor_inputs import input_findings
from openrlhf_ada.data import hub
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding

Findings = dict[str, Finding]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"0" * (3 << 20))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"input": f"{n} + 1", "label": str(n + 1)}) + "\n" for n in range(5)))
    return file


def look(*words: str) -> Findings:
    return {finding.check: finding for finding in input_findings(words)}


def levels(findings: Findings) -> dict[str, str]:
    return {name: finding.level for name, finding in findings.items()}


# -- inputs -----------------------------------------------------------------------------------------------------------


def test_only_what_is_named_is_looked_at(model: Path) -> None:
    findings = look("--actor.model_name_or_path", str(model))
    assert levels(findings) == {"model": OK} and "3 MiB of weights" in findings["model"].what


def test_a_folder_without_weights_is_no_model(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "no weights" in look("--actor.model_name_or_path", str(model))["model"].what


def test_checks_are_those_of_a_training(model: Path) -> None:
    assert "/nowhere" in look("--actor.model_name_or_path", "/nowhere")["model"].what
    (model / "config.json").write_text('{"auto_map": {"AutoModel": "mine.Model"}}')
    finding = look("--actor.model_name_or_path", str(model))["model"]
    assert finding.level == ERROR and "--trust_remote_code" in finding.what


def test_the_reward_grades_three_rows(data: Path) -> None:
    words = ["--data.prompt_dataset", str(data), "--data.label_key", "label"]
    findings = look(*words, "--reward.remote_url", "arithmetic")
    assert levels(findings) == {"data": OK, "reward": OK}
    assert findings["data"].what.endswith(": 5 rows")
    assert findings["reward"].what == "arithmetic gives 1, 1, 1 to the labels of the first 3 rows as answers"


@pytest.mark.parametrize("label", ["We add 4 and 15.\n#### 19", "Answer: 19", "**Final Answer:**\n\n19", 19])
def test_a_label_that_ends_in_its_answer_is_right_by_itself(tmp_path: Path, label: Any) -> None:
    file = tmp_path / "gsm8k.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n}+15=", "answer": label}) + "\n" for n in range(3)))
    words = ["--data.prompt_dataset", str(file), "--data.input_key", "question", "--data.label_key", "answer"]
    finding = look(*words, "--reward.remote_url", "math")["reward"]
    assert finding.level == OK and "math gives 1, 1, 1 " in finding.what


def test_a_reward_without_scores_says_why(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def grade(response, label):\n    raise RuntimeError('no such table')\n")
    words = ["--data.prompt_dataset", str(data), "--data.label_key", "label", "--reward.remote_url"]
    finding = look(*words, f"{file}:grade")["reward"]
    assert finding.level == ERROR and "no such table" in finding.what
    file.write_text("import no_such_module\ndef grade(response, label): ...\n")
    finding = look(*words, f"{file}:grade")["reward"]
    assert finding.level == ERROR and "no_such_module" in finding.what
    assert "'mth'" in look(*words, "mth")["reward"].what


@pytest.mark.slow
def test_a_reward_file_is_asked_as_an_engine_asks_it(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    scores = [float(q == p + l) / 2 for q, p, l in zip(queries, prompts, labels)]\n"
        "    return {'rewards': scores, 'scores': scores, 'extra_logs': {}}\n"
    )
    words = ["--data.prompt_dataset", str(data), "--data.label_key", "label", "--reward.remote_url", str(file)]
    assert f"{file} gives 0.5, 0.5, 0.5 to the labels" in look(*words)["reward"].what


def test_bad_data_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"input": "1 + 1"}\n{"question": "2 + 2"}\n')
    finding = look("--data.prompt_dataset", str(file))["data"]
    assert finding.level == ERROR and "line 2" in finding.what and "'input'" in finding.what


def test_rows_that_contradict_each_other_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    pairs = [("1+2=", "3"), ("1+2=", "4"), ("2+2=", "4"), ("2+2=", "04")]
    file.write_text("".join(json.dumps({"input": q, "label": label}) + "\n" for q, label in pairs))
    words = ["--data.prompt_dataset", str(file), "--data.label_key", "label", "--reward.remote_url", "arithmetic"]
    *_, finding = (finding for finding in input_findings(words) if finding.check == "data")
    assert finding.level == WARNING and "2 of 4 rows" in finding.what and "line 1" in finding.what


def test_a_prompt_with_its_answer_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    turns = [{"role": "user", "content": "2+5="}, {"role": "assistant", "content": "7"}]
    file.write_text(json.dumps({"messages": turns, "answer": "7"}))
    words = ["--data.prompt_dataset", str(file), "--data.input_key", "messages", "--data.apply_chat_template"]
    finding = look(*words)["data"]
    assert finding.level == ERROR and "line 1: 'messages'" in finding.what and "assistant" in finding.what


def test_whole_runs_are_checked(argv_with: Callable[[dict[str, str | None]], list[str]]) -> None:
    findings = look(*argv_with({"--rollout.batch_size": "-3"}))
    assert (
        findings["flags"].level == ERROR
        and findings["data"].level == OK
        and "--rollout.batch_size" in findings["flags"].what
    )


def test_a_run_that_needs_more_gpus_is_told(
    argv_with: Callable[[dict[str, str | None]], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_inputs, "check_this_machine", lambda args: None)
    monkeypatch.setattr(doctor_inputs.without_gpu, "is_needed", lambda: False)
    monkeypatch.setattr(doctor_inputs, "cluster_to_join", lambda: None)
    for gpus, level in ((1, ERROR), (64, OK)):
        monkeypatch.setattr(doctor_inputs, "usable_gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr(doctor_inputs.os, "sched_getaffinity", lambda pid: set(range(64)))
        finding = look(*argv_with({"--vllm.num_engines": "2"}))["flags"]
        assert finding.level == level and ("GPU" in finding.what)


def test_a_config_is_a_trainings(tmp_path: Path, data: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"data:\n  prompt_dataset: {data}\n")
    assert look("--config", str(config))["data"].what.endswith(": 5 rows")
    config.write_text("data:\n  prompt_datset: x\n")
    assert "prompt_dataset" in look("--config", str(config))["flags"].what


def test_without_a_hub_the_cache_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(hub, "_hub_is_unreachable", lambda: True)
    monkeypatch.setattr(doctor_inputs, "check_hub_model", lambda flag, value, trusted: None)
    findings = look("--actor.model_name_or_path", "org/model")
    assert levels(findings) == {"hub": WARNING, "model": OK} and "HF_ENDPOINT" in findings["hub"].remedy


# -- the command ------------------------------------------------------------------------------------------------------


def _with(monkeypatch: pytest.MonkeyPatch, *findings: Finding, fails: BaseException | None = None) -> None:
    def check() -> Any:
        yield from findings
        if fails is not None:
            raise fails

    monkeypatch.setattr(doctor, "checks", lambda words, gpu: [("Ray", check)])


SEEN = (Finding("cores", OK, "8 cores"), Finding("disk", WARNING, "little room", "Free some"))
BROKEN = Finding("model", ERROR, "there is none", "Name one")


@pytest.mark.parametrize(("findings", "status"), [(SEEN, 0), ((*SEEN, BROKEN), 1)])
def test_errors_alone_count(
    findings: Sequence[Finding],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _with(monkeypatch, *findings)
    assert doctor.main([]) == status
    said = capsys.readouterr().out
    assert "-> Free some" in said and said.rstrip().endswith("1 warning)")
    assert ("a training cannot start (1 error, 1 warning)" in said) == bool(status)
    assert doctor.main(["--json"]) == status
    record = json.loads(capsys.readouterr().out)
    assert (record["error"], record["warning"]) == (status, 1)
    assert record["findings"][1] == {"check": "disk", "level": "warning", "what": "little room", "remedy": "Free some"}
    assert "openrlhf-ada" in record["versions"]


def test_what_needs_a_missing_package_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with(monkeypatch, fails=ModuleNotFoundError("No module named 'ray'", name="ray"))
    assert doctor.main([]) == 0
    assert "ray is not installed" in capsys.readouterr().out


def test_gpu_tests_are_run_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("openrlhf_ada.platforms.stack_check.usable_gpus", lambda: 0)
    assert [(found.level, found.remedy.rpartition(": ")[2]) for found in doctor.gpu_tests()] == [
        (ERROR, "make gpu-rehearsal")
    ]
    monkeypatch.setattr("openrlhf_ada.platforms.stack_check.usable_gpus", lambda: 1)
    assert doctor.GPU_TESTS.is_file()
    for status, level in ((0, OK), (1, ERROR)):
        script = tmp_path / f"first_run_{status}.sh"
        script.write_text(f"#!/bin/sh\nexit {status}\n")
        script.chmod(0o755)
        monkeypatch.setattr(doctor, "GPU_TESTS", script)
        assert next(iter(doctor.gpu_tests())).level == level
    monkeypatch.setattr(doctor, "GPU_TESTS", tmp_path / "missing.sh")
    assert "first_run.sh" in next(iter(doctor.gpu_tests())).remedy


BARE = """
import importlib.abc, importlib.metadata, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
version = importlib.metadata.version

def only_ours(name):
    if name not in ("openrlhf-ada", "numpy"):
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = only_ours
sys.argv = ["openrlhf-ada", "doctor", *{words!r}]
from openrlhf_ada.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("words", [[], ["--actor.model_name_or_path", "x"], ["--config", "run.yaml"]])
def test_a_bare_installation_is_told_what_it_lacks(words: list[str]) -> None:
    """Only numpy is there."""
    from openrlhf_ada.config.installed import MODULES

    script = BARE.format(modules=sorted(MODULES), words=words)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "not installed, and a training needs them: openrlhf" in done.stdout
    assert "requirements/setup.sh --gpu" in done.stdout
