"""`eval --base_url`: the whole command against a server on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai_stand_in import Reply, StandIn, chat, completion, running

from openrlhf_ada.cli import evaluate
from openrlhf_ada.eval import openai_server

pytestmark = pytest.mark.slow

KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture
def problems(tmp_path: Path) -> str:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(6)))
    return str(path)


def sums(request: dict[str, Any], number: int) -> Reply:
    """Right answers of even sums; half of the others are written in another way, and wrong."""
    prompt = request.get("prompt") or request["messages"][-1]["content"]
    first = int(prompt.partition("+")[0])
    answer = first + 1 if first % 2 == 0 or request["model"] == "better" else -(request["seed"] % 2)
    return completion(str(answer)) if "prompt" in request else chat({"content": str(answer)})


def run(url: str, problems: str, out: Path, *more: str) -> int:
    arguments = ["--base_url", url, "--benchmark", problems, "--out", str(out), "--reward", "arithmetic"]
    return evaluate.main([*arguments, "--n", "4", "--max_new_tokens", "8", *more])


def rows_of(out: Path, model: str = "toy") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / model / "sums" / "answers.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_models_of_a_server_are_compared(
    problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out = tmp_path / "out"
    with running(StandIn(sums, key=KEY)) as server:
        assert run(server.url, problems, out, "--no_chat", "--model", "toy", "better") == 0
        asked = len(server.requests)
        # Everything is there: nothing is asked again.
        assert run(server.url, problems, out, "--no_chat", "--model", "toy", "better") == 0
        assert len(server.requests) == asked == 2 * 6 * 4
    told = capsys.readouterr()
    results = json.loads((out / "results.json").read_text())
    toy, better = (model["figures"]["sums"] for model in results["models"])
    assert (toy["avg@4"]["mean"], better["avg@4"]["mean"], toy["maj@4"]["mean"]) == (0.5, 1.0, 0.5)
    gain = results["models"][1]["minus_first"]["sums"]
    assert (gain["mean"], gain["num_differing"]) == (0.5, 3) and gain["low"] < 0 < gain["high"]
    assert "better - toy = +50.0 points [" in told.out and "]; 3 of 6 problems differ" in told.out
    first = f"evaluating toy, better on {problems}, 4 answers per problem, prompt '{{}}'"
    assert told.err.splitlines()[0] == first
    assert "toy: 24/24 answers, 50% right so far" in told.err
    assert "\r" not in told.err + told.out and "\x1b" not in told.err + told.out
    for path in out.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()
    assert KEY not in told.out + told.err


def test_a_reward_file_grades_several_models_in_peace(
    problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OpenRLHF's logger keeps the output that was there when the first model's answers were graded."""
    reward = tmp_path / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': [1.0]}\n")
    with running(StandIn(sums)) as server:
        assert run(server.url, problems, tmp_path, "--model", "a", "b", "--no_chat", "--reward", str(reward)) == 0
    told = capsys.readouterr()
    assert "Logging error" not in told.err and "Loading custom" not in told.out
    assert {row["answer"] for row in rows_of(tmp_path, "a")} == {None}


def test_chat_messages_go_to_chat_models(problems: str, tmp_path: Path) -> None:
    with running(StandIn(sums)) as server:
        assert run(server.url + "/chat/completions", problems, tmp_path, "--model", "toy", "--system", "Add.") == 0
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "Add."}
    row = rows_of(tmp_path)[0]
    assert set(row) == {
        *("problem", "index", "score", "answer", "question", "prompt", "label", "response", "tokens", "truncated"),
        *("cause", "scoring_s", "surprise"),
    }
    assert row["prompt"] == [{"role": "system", "content": "Add."}, {"role": "user", "content": row["question"]}]
    assert row["answer"] == row["response"] and row["score"] == float(row["answer"] == row["label"])


def test_a_server_gets_what_training_gave(problems: str, tmp_path: Path) -> None:
    given = ["--chat_template_args", '{"enable_thinking": false}', "--sampling_args", '{"stop": ["!"]}']
    with running(StandIn(sums)) as server:
        assert run(server.url, problems, tmp_path, "--model", "toy", *given) == 0
        asked = server.requests[0]
        assert (asked["chat_template_kwargs"], asked["stop"]) == ({"enable_thinking": False}, ["!"])
        assert asked["include_stop_str_in_output"] is True, "graders read a stop string in training"
        # Other answers than these are no part of the same evaluation.
        assert run(server.url, problems, tmp_path, "--model", "toy", *given[:2]) == 2
    assert json.loads((tmp_path / "results.json").read_text())["settings"]["sampling_args"] == given[3]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(404, {"error": {"message": "none"}}), "'mine' (404: none"),
        (Reply(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}), "refuses the key of MY_KEY (401"),
    ],
)
def test_refusals_end_in_one_line(
    reply: Reply, said: str, problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MY_KEY", KEY)
    with running(StandIn(lambda request, number: reply)) as server:
        assert run(server.url, problems, tmp_path, "--model", "mine", "--api_key_env", "MY_KEY") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("openrlhf-ada eval: error")]
    assert said in line and KEY not in line


@pytest.mark.slow
def test_what_a_server_did_not_answer_is_asked_again(
    problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_server, "RETRIES", 0)
    is_away = [True]

    def answer(request: dict[str, Any], number: int) -> Reply:
        return Reply(503, "away") if is_away[0] and request["prompt"] == "0+1=" else sums(request, number)

    with running(StandIn(answer)) as server:
        assert run(server.url, problems, tmp_path, "--model", "toy", "--no_chat") == 0
        assert "4 answers have no score and are in no figure" in capsys.readouterr().out
        is_away[0] = False
        assert run(server.url, problems, tmp_path, "--model", "toy", "--no_chat") == 0
        assert "no score and" not in capsys.readouterr().out
    assert len(rows_of(tmp_path)) == 24


def test_what_is_right_is_said(problems: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    return {'rewards': [0.0], 'scores': [1.0 if queries[0] == prompts[0] + labels[0] else 0.99]}\n"
    )
    with running(StandIn(sums)) as server:
        more = ("--model", "toy", "--no_chat", "--reward", str(reward))
        assert run(server.url, problems, tmp_path, *more) == 0
        assert "0.999999 (--right_above)" in capsys.readouterr().out
        assert run(server.url, problems, tmp_path, *more, "--right_above", "0.5") == 0
    assert "0.5 (--right_above)" in capsys.readouterr().out
    figures = json.loads((tmp_path / "results.json").read_text())["models"][0]["figures"]["sums"]
    assert (figures["avg@4"]["mean"], figures["score"]["mean"]) == (1.0, pytest.approx(0.995))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--base_url", "localhost:8000"], "--base_url is 'localhost:8000': it is not the address of a server"),
        (["--base_url", "http://me:secret@host/v1"], "--base_url is '<removed>': it has a login or a query"),
        (["--base_url", "http://host/v1?api-key=secret"], "--base_url is '<removed>'"),
        (
            ["--base_url", "http://host/v1", "--engines", "2"],
            "--engines is 2: it is for engines that this command starts",
        ),
        (["--base_url", "http://host/v1", "--max_len", "99"], "--max_len is 99: it is for engines"),
        (["--base_url", "http://host/v1", "--concurrency", "0"], "--concurrency is 0"),
        (
            ["--base_url", "http://host/v1", "--api_key_env", "NO_SUCH"],
            "--api_key_env is 'NO_SUCH': this environment variable is not set",
        ),
        (["--base_url", "http://host/v1", "--system", "S", "--no_chat"], "--system is 'S'"),
        (["--concurrency", "3"], "--concurrency is 3: it goes with --base_url"),
        (["--right_above", "nan"], "--right_above is nan"),
    ],
)
def test_bad_flags_are_refused_at_once(
    changes: list[str], said: str, problems: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--model", "m", "--benchmark", problems, *changes]) == 2
    told = capsys.readouterr().err
    assert said in told and "secret" not in told
