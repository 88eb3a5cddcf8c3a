"""No secret reaches a run's record; flags that only sound like one stay."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from openrlhf_ada.reporting.redaction import looks_secret, redact
from openrlhf_ada.reporting.run_log import RunLog


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
