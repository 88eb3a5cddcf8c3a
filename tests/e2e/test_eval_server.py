"""`eval --base_url` against vLLM's own OpenAI server, with the toy model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import LIMIT_S, Toy, read_jsonl

from openrlhf_ada.cli import evaluate
from openrlhf_ada.platforms import without_gpu

pytestmark = [pytest.mark.e2e, pytest.mark.long]

KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture(scope="module")
def url(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    flags = {"--model": toy.model, "--served-model-name": "toy", "--host": "127.0.0.1", "--port": port}
    flags |= {"--api-key": KEY, "--max-model-len": 64, "--max-num-seqs": 64}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [*command, *(str(word) for flag in flags.items() for word in flag)],
            env=os.environ | without_gpu.worker_environment(), stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        finally:
            # Its engine is a process of its own.
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)


def run(url: str, toy: Toy, out: Path, *more: str) -> int:
    sampling = ("--n", "4", "--max_new_tokens", "4", "--reward", "arithmetic")
    return evaluate.main(
        ["--base_url", url, "--benchmark", str(toy.heldout), "--out", str(out), "--no_chat", *sampling, *more]
    )


def test_vllms_server_samples_the_same_answers_again(
    url: str, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    answers: list[dict[tuple[str, int], str]] = []
    for name in ("first", "second"):
        assert run(url, toy, tmp_path / name, "--model", "toy") == 0
        rows = read_jsonl(tmp_path / name / "toy" / "heldout" / "answers.jsonl")
        answers.append({(row["problem"], row["index"]): row["response"] for row in rows})
        assert all(row["score"] in (0.0, 1.0) and 1 <= row["tokens"] <= 4 for row in rows)
        assert all(row["score"] == float(row["answer"] == row["label"]) for row in rows)
    assert answers[0] == answers[1] and len(answers[0]) == 32 * 4
    assert len({answers[0][key] for key in answers[0]}) > 4
    figures = json.loads((tmp_path / "first" / "results.json").read_text())["models"][0]["figures"]["heldout"]
    assert 0.0 < figures["avg@4"]["mean"] < figures["pass@4"]["mean"] <= 1.0
    assert KEY not in capsys.readouterr().err
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_vllms_refusals_are_clear(
    url: str, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(url, toy, tmp_path / "no-key", "--model", "toy") == 2
    assert "wants a key (OPENAI_API_KEY) (401" in capsys.readouterr().err
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert run(url, toy, tmp_path / "no-model", "--model", "other") == 2
    assert "'other' (404: " in capsys.readouterr().err
    assert run(url, toy, tmp_path / "too-long", "--model", "toy", "--max_new_tokens", "4000") == 2
    assert "(400: " in capsys.readouterr().err
