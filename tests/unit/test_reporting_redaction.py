"""No secret reaches a run's record; flags that only sound like one stay."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli.main import main as program
from openrlhf_ada.config.visible import without_logins
from openrlhf_ada.reporting.redaction import looks_secret, redact
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reward.trial import Row


def test_no_secret_reaches_the_record(tmp_path: Path) -> None:
    config = {
        "logger": {"wandb": {"key": "canary", "org": "team"}},
        "hf_token": "canary",
        "adminPassword": 12345,
        "ada": {"secrets": {"a": "canary"}, "api_key": None},
        "reward": {"remote_url": ["https://me:canary@host/score?model=m&api_key=canary&x=1"]},
        "argv": ["--logger.wandb.key", "canary", "--seed", "1", "--x.token=canary", "--y.password", "--flag"],
        "data": {"input_key": "input", "max_samples": math.inf, "path": Path("a/b")},
        "rollout": {"max_new_tokens": 16},
    }
    RunLog(tmp_path, config).close()
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert "canary" not in text and "12345" not in text
    written = json.loads(text)
    assert written["logger"]["wandb"] == {"key": "<removed>", "org": "team"}
    assert written["ada"]["api_key"] is None
    assert written["reward"]["remote_url"] == ["https://<removed>@host/score?model=m&api_key=<removed>&x=1"]
    assert written["argv"][1:] == ["<removed>", "--seed", "1", "--x.token=<removed>", "--y.password", "--flag"]
    assert written["data"] == {"input_key": "input", "max_samples": "inf", "path": "a/b"}
    assert written["rollout"] == {"max_new_tokens": 16}


URL = "http://me:canary-1@127.0.0.1:9/score?api_key=canary-2"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["train", "doctor", "doctor --json"])
def test_a_login_in_a_rewards_url_is_nowhere_shown_or_kept(
    where: str,
    argv_with: Callable[[dict[str, str | None]], list[str]],
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
    caplog: Any,
) -> None:
    """Notes of every kind, and what cannot reach the server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("openrlhf_ada.cli.train_ppo_ray.prepare_training_data", lambda args: [URL])
    monkeypatch.setattr("openrlhf_ada.cli.train_ppo_ray.prepare_resume", lambda args: [])
    rows = {URL: [Row("1+1=", "2", "2")]}
    monkeypatch.setattr("openrlhf_ada.cli.train_ppo_ray.trial_rows", lambda args: rows)
    for what in ("machine", "gpu", "package", "path", "ray"):
        monkeypatch.setattr(f"openrlhf_ada.platforms.machine_check.{what}_findings", tuple)
    verb, *more = where.split()
    argv = [
        verb,
        *more,
        *argv_with({"--reward.remote_url": URL, "--ds.attn_implementation": "sdpa", "--vllm.sync_backend": "gloo"}),
    ]
    monkeypatch.setattr(sys, "argv", ["openrlhf-ada", *argv])
    assert program() != 0
    said = "".join(capsys.readouterr()) + caplog.text
    assert "127.0.0.1:9" in said and "canary" not in said
    assert not any(b"canary" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "name", ["key", "HF_TOKEN", "wandb.key", "--x.api-key", "apiKey", "dbPassword", "client_secret"]
)
def test_secret_names(name: str) -> None:
    assert looks_secret(name)
    assert redact({name: True}) == {name: True}, "a boolean hides nothing"


@pytest.mark.parametrize(
    "name",
    [
        "input_key",
        "data.label_key",
        "ckpt.best_metric_key",
        "--api_key_env",
        "max_new_tokens",
        "disable_fast_tokenizer",
        "keyword",
    ],
)
def test_harmless_names(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("at 'http://u:p@ss@h:1/x?token=abc': no", "at 'http://<removed>@h:1/x?token=<removed>': no"),
        ("http://u:a/b@h", "http://<removed>@h"),
        ("http://a/x,http://u:p@h/y", "http://a/x,http://<removed>@h/y"),
        ("(http://h?pwd=abc&y=1).", "(http://h?pwd=<removed>&y=1)."),
        ("http://h/x@1", "http://<removed>@1"),  # rather too much
    ],
)
def test_a_url_is_told_without_what_it_logs_in_with(text: str, told: str) -> None:
    assert without_logins(text) == told
