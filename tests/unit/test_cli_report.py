"""openrlhf-ada report: what it writes, and what it answers to folders that are no runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_runs import CONFIG, make_run

from openrlhf_ada.cli import main as cli
from openrlhf_ada.cli.report import main

SAMPLE = '{"step": 1, "key": 0, "index": 0, "metric": 1.0, "reward": 1.0, "tokens": 2, %s}\n'


def error_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What the command says; it exits with 2."""
    monkeypatch.setattr("sys.argv", ["openrlhf-ada", "report", *map(str, words)])
    assert cli.main() == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, "one line"
    return shown.err


@pytest.mark.slow
def test_one_run_gets_its_page_and_several_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        make_run(tmp_path / name, steps=2, config=CONFIG | {"train": {"seed": seed}})
    assert main(["a"]) == main(["a", "b"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["a/report.html", "comparison.html"]
    assert Path("a/report.html").exists() and "2 runs, 1 configuration" in Path("comparison.html").read_text()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, ["no config.json"]),
        ({"config.json": '{"model_type": "llama"}'}, ["no metrics.jsonl"]),
        ({"config.json": '{"ada": {', "metrics.jsonl": ""}, ["config.json"]),
        ({"config.json": "[]", "metrics.jsonl": ""}, ["config.json"]),
        ({"config.json": "{}", "metrics.jsonl": '{"loss": 1}\n'}, ["metrics.jsonl, line 1", "'step'"]),
        (
            {"config.json": "{}", "metrics.jsonl": '{"step": 1, "ada/drawn": "many"}\n'},
            ["line 1", "'ada/drawn' is 'many'"],
        ),
        ({"config.json": "{}", "metrics.jsonl": "\x00\x01\n"}, ["metrics.jsonl, line 1"]),
        (
            {"config.json": "{}", "metrics.jsonl": "", "samples.jsonl": '{"text": "of another program"}\n'},
            ["samples.jsonl, line 1", "'step'"],
        ),
        ({"config.json": "{}", "metrics.jsonl": '{"step": 1, "ada/drawn": {}}\n'}, ["line 1", "'ada/drawn' is {}"]),
        (
            {"config.json": "{}", "metrics.jsonl": '{"step": 0, "eval/accuracy": null}\n'},
            ["line 1", "'eval/accuracy' is None"],
        ),
        (
            {"config.json": "{}", "metrics.jsonl": "", "summary.json": '{"accuracy_before": "good"}'},
            ["summary.json", "'accuracy_before' is 'good'"],
        ),
        (
            {"config.json": "{}", "metrics.jsonl": "", "samples.jsonl": SAMPLE % '"coefficient": "much"'},
            ["samples.jsonl, line 1", "'coefficient' is 'much'"],
        ),
        (
            {"config.json": "{}", "metrics.jsonl": "", "samples.jsonl": SAMPLE % '"response": 3.5'},
            ["samples.jsonl, line 1", "'response' is 3.5"],
        ),
    ],
    ids=[
        "empty",
        "a model",
        "half a config",
        "a list",
        "foreign metrics",
        "text",
        "binary",
        "foreign samples",
        "an object for a figure",
        "no accuracy",
        "foreign summary",
        "a word for a coefficient",
        "a number for a text",
    ],
)
def test_folders_that_are_no_runs_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    said: list[str],
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    error = error_of(monkeypatch, capsys, tmp_path)
    assert all(part in error for part in said)


def test_one_bad_folder_of_several_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good", steps=1)
    assert str(tmp_path / "bad") in error_of(monkeypatch, capsys, tmp_path / "good", tmp_path / "bad")
    for out in (tmp_path / "no" / "page.html", tmp_path):
        assert f"--out {out}" in error_of(monkeypatch, capsys, tmp_path / "good", "--out", out)


@pytest.mark.parametrize("damage", ["killed", "no samples", "no summary", "fewer keys"])
def test_half_written_runs_get_their_page(tmp_path: Path, damage: str) -> None:
    make_run(tmp_path / "run", steps=3, evaluations=(0,))
    metrics, samples = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "samples.jsonl"
    if damage == "killed":
        for path in (metrics, samples):
            path.write_bytes(path.read_bytes()[:-20])
    elif damage == "no samples":
        samples.unlink()
    elif damage == "fewer keys":
        metrics.write_text(
            "".join(json.dumps({"step": step, "loss": 0.1, "ada/signal_share": 0.5}) + "\n" for step in (1, 2))
        )
    assert main([str(tmp_path / "run")]) == 0
    assert "not finished" in (tmp_path / "run" / "report.html").read_text()


def test_flags_of_another_program_are_no_reason_to_fail(tmp_path: Path) -> None:
    foreign = {"rollout": {"n_samples_per_prompt": "four"}, "ada": {"mode": 7}, "algo": "x"}
    make_run(tmp_path / "run", steps=2, config=foreign)
    assert main([str(tmp_path / "run")]) == 0
