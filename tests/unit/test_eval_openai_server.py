"""A client of OpenAI-compatible servers against a real server on this machine, which also misbehaves."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from dataclasses import replace
from typing import Any

import pytest
from openai_stand_in import Reply as Given
from openai_stand_in import StandIn, chat, completion, running

from openrlhf_ada.eval import openai_server, served_answers
from openrlhf_ada.eval.answers import Asked, Sampled
from openrlhf_ada.eval.openai_server import NoReplyError, OpenAIServer, Reply, ServerError
from openrlhf_ada.eval.served_answers import Grader, sample_from_server
from openrlhf_ada.reward.reward_function import Grading

pytestmark = pytest.mark.slow

KEY = "sk-a-key-that-nobody-may-see"
PARAMETERS = {"temperature": 0.7, "max_tokens": 9}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's client waits half a second before its first repeat."""
    monkeypatch.setattr(openai_server, "RETRIES", 1)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def server_of(url: str, notes: list[str], **changes: Any) -> OpenAIServer:
    server = OpenAIServer(url, "toy", False, "", "OPENAI_API_KEY", 30.0, dict(PARAMETERS), notes.append)
    return replace(server, **changes)


def ask(stand_in: StandIn, notes: list[str] | None = None, prompt: Any = "1+1=", **changes: Any) -> Reply:
    async def once() -> Reply:
        server = server_of(stand_in.url, notes if notes is not None else [], **changes)
        async with server:
            await server.check()
            return await server.reply(prompt, seed=(1 << 62) + 5)

    return asyncio.run(once())


def test_completions_get_exactly_what_was_asked_for() -> None:
    with running(StandIn(lambda request, number: completion("2", "length"))) as stand_in:
        assert ask(stand_in) == Reply("2", 3, True)
    assert stand_in.paths == ["/v1/completions"]
    assert stand_in.requests == [{"model": "toy", "prompt": "1+1=", "temperature": 0.7, "max_tokens": 9, "seed": 5}]


MESSAGES = [{"role": "user", "content": "1+1="}]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "2"}, "2"),
        ({"content": [{"type": "text", "text": "so "}, {"type": "text", "text": "2"}]}, "so 2"),
        ({"content": "2", "reasoning_content": "one and one"}, "<think>one and one</think>2"),
        ({"content": None, "reasoning": "one and"}, "<think>one and"),
        ({"content": None}, ""),
    ],
)
def test_chats_of_all_kinds_are_read(message: dict[str, Any], text: str) -> None:
    with running(StandIn(lambda request, number: chat(message))) as stand_in:
        assert ask(stand_in, prompt=MESSAGES, chat=True) == Reply(text, 3, False)
    assert stand_in.paths == ["/v1/chat/completions"] and stand_in.requests[0]["messages"] == MESSAGES


def test_a_key_is_sent_and_never_repeated() -> None:
    with running(StandIn(lambda request, number: completion(f"your key is {KEY}"), key=KEY)) as stand_in:
        assert ask(stand_in, key=KEY).text == "your key is <removed>"
        with pytest.raises(ServerError, match=r"wants a key \(OPENAI_API_KEY\) \(401: ") as missing:
            ask(stand_in)
        with pytest.raises(ServerError, match=r"refuses the key of OPENAI_API_KEY \(401: Incorrect API key") as wrong:
            ask(stand_in, key="sk-wrong")
    assert "--api_key_env" in str(missing.value) and "sk-wrong" not in str(wrong.value)


REPEATED = [
    (Given(429, {"error": {"message": "Rate limit reached"}}, {"Retry-After": "0.01"}), "429: Rate limit reached"),
    (Given(503, "upstream is away"), "503: upstream is away"),
    (Given(closes=True), "connection"),
]


@pytest.mark.parametrize(("bad", "said"), REPEATED, ids=lambda found: str(getattr(found, "status", "")))
def test_what_may_pass_is_asked_again_and_not_for_ever(bad: Given, said: str) -> None:
    with running(StandIn(lambda request, number: completion("2") if number else bad)) as stand_in:
        assert ask(stand_in).text == "2"
    assert len({request["seed"] for request in stand_in.requests}) == 1
    with running(StandIn(lambda request, number: bad)) as stand_in:
        with pytest.raises(NoReplyError, match=said):
            ask(stand_in)
        assert len(stand_in.requests) == 1 + openai_server.RETRIES


@pytest.mark.parametrize(
    "body",
    ["<html>gateway</html>", '{"choices": [{"te', {"choices": []}, {"error": {"message": "overloaded"}}, ["no"]],
    ids=str,
)
def test_a_reply_that_holds_no_response_is_shown(body: Any) -> None:
    shown = body if isinstance(body, str) else json.dumps(body)
    with (
        running(StandIn(lambda request, number: Given(200, body))) as stand_in,
        pytest.raises(NoReplyError, match=re.escape(shown)),
    ):
        ask(stand_in)


def test_a_server_that_hangs_runs_into_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked."""
    monkeypatch.setattr(openai_server, "RETRIES", 99)
    with running(StandIn(lambda request, number: replace(completion("2"), after_s=2.0))) as stand_in:
        with pytest.raises(NoReplyError, match=r"no reply within 0\.2 s"):
            ask(stand_in, timeout_s=0.2)
        assert len(stand_in.requests) == 1


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Given(404, {"error": {"message": "no such model"}}), r"'other' \(404: no such model"),
        (Given(400, {"error": {"message": "maximum context length is 8"}}), r"refuses .*400: maximum context length"),
        (Given(403, {"detail": "not in your region"}), r"403: not in your region"),
        (Given(307, "", {"Location": "http://elsewhere/v1"}), r"307: http://elsewhere/v1"),
    ],
)
def test_what_cannot_pass_is_asked_once(refusal: Given, said: str) -> None:
    with running(StandIn(lambda request, number: refusal)) as stand_in:
        with pytest.raises(ServerError, match=said):
            ask(stand_in, model="other")
        assert len(stand_in.requests) == 1


def test_a_quota_that_is_used_up_ends_the_run() -> None:
    used_up = Given(429, {"error": {"code": "insufficient_quota", "message": "You exceeded"}})
    with (
        running(StandIn(lambda request, number: used_up)) as stand_in,
        pytest.raises(ServerError, match="429: You exceeded"),
    ):
        ask(stand_in)


def test_an_address_without_v1_is_noticed() -> None:
    with running(StandIn(lambda request, number: completion("2"))) as stand_in:
        stand_in.url = stand_in.url.removesuffix("/v1")
        with pytest.raises(ServerError, match=rf"Try --base_url {stand_in.url}/v1"):
            ask(stand_in)


def test_nobody_at_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ServerError, match=rf"nothing answers at {url}\b"):
        ask(StandIn(lambda request, number: completion("2"), url=url))


def test_newer_servers_name_the_length_limit_otherwise() -> None:
    def answer(request: dict[str, Any], number: int) -> Given:
        if "max_tokens" in request:
            return Given(400, {"error": {"message": "'max_tokens' is not supported. Use 'max_completion_tokens'"}})
        return completion("2")

    with running(StandIn(answer)) as stand_in:
        assert ask(stand_in).text == "2"
    assert stand_in.requests[-1]["max_completion_tokens"] == 9


def test_a_server_without_seeds_is_said() -> None:
    def answer(request: dict[str, Any], number: int) -> Given:
        return Given(422, {"detail": "extra field seed"}) if "seed" in request else completion("2")

    notes: list[str] = []
    with running(StandIn(answer)) as stand_in:
        assert ask(stand_in, notes).text == "2"
    (note,) = notes
    assert stand_in.url in note and "seed" in note


def test_unknown_lengths_are_unknown() -> None:
    with running(StandIn(lambda request, number: completion("2", usage=None))) as stand_in:
        assert ask(stand_in) == Reply("2", None, False)


def wanted(problems: int, n: int) -> list[Asked]:
    labels = {"reward": "arithmetic", "label": "2"}
    return [Asked("s", str(p), i, f"{p}=", json.dumps(labels)) for p in range(problems) for i in range(n)]


def sample(
    stand_in: StandIn, asked: list[Asked], concurrency: int = 4, reward: str = "mixed"
) -> dict[tuple[str, int], Sampled]:
    found: dict[tuple[str, int], Sampled] = {}

    def keep(asked: Asked, sampled: Sampled) -> None:
        found[asked.problem, asked.index] = sampled

    server = server_of(stand_in.url, [])
    with Grader(reward, Grading(workers=1), 5.0) as grader:
        sample_from_server(asked, server, grader, seed=0, concurrency=concurrency, on_answer=keep)
    return found


def test_answers_are_graded_and_few_are_asked_at_a_time() -> None:
    def answer(request: dict[str, Any], number: int) -> Given:
        return replace(completion("2" if request["prompt"] == "0=" else "3"), after_s=0.01)

    with running(StandIn(answer)) as stand_in:
        found = sample(stand_in, wanted(3, 4))
    assert {key: sampled.score for key, sampled in found.items()} == {
        (str(p), i): float(p == 0) for p in range(3) for i in range(4)
    }
    assert 1 < stand_in.most_at_once <= 4
    assert len({request["seed"] for request in stand_in.requests}) == 12


def test_seeds_depend_on_problem_and_index_only() -> None:
    def seeds(asked: list[Asked]) -> dict[str, set[int]]:
        with running(StandIn(lambda request, number: completion("2"))) as stand_in:
            sample(stand_in, asked)
        by_prompt: dict[str, set[int]] = {}
        for request in stand_in.requests:
            by_prompt.setdefault(request["prompt"], set()).add(request["seed"])
        return by_prompt

    few, many = seeds(wanted(2, 1)), seeds(list(reversed(wanted(2, 3))))
    assert all(few[prompt] <= many[prompt] and len(many[prompt]) == 3 for prompt in few)


def test_an_answer_without_a_reply_has_no_score() -> None:
    with running(
        StandIn(lambda request, number: Given(500) if request["prompt"] == "1=" else completion("2"))
    ) as stand_in:
        found = sample(stand_in, wanted(3, 1))
    assert (found["0", 0].score, found["2", 0].score) == (1.0, 1.0)
    assert found["1", 0].score is None and "the server replied 500" in found["1", 0].cause


def test_a_server_that_is_lost_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_server, "RETRIES", 0)
    monkeypatch.setattr(served_answers, "GIVE_UP_AFTER", 5)
    lost = StandIn(lambda request, number: completion("2") if number < 8 else Given(closes=True))
    said = "5 answers in a row have no reply, the last: the connection failed"
    with running(lost) as stand_in, pytest.raises(ServerError, match=said):
        sample(stand_in, wanted(100, 1))
    assert len(stand_in.requests) < 20


@pytest.mark.parametrize("named", ["{file}", "{file}:reward_func"])
@pytest.mark.parametrize(
    "source",
    [
        "def reward_func(queries, prompts, labels): return [float(queries[0] == prompts[0] + '2')]",
        "async def reward_func(prompts, completions, label): return [completions[0] == '2' and bool(prompts)]",
    ],
)
def test_rewards_of_any_form_grade_as_with_engines(source: str, named: str, tmp_path: Any) -> None:
    file = tmp_path / "reward.py"
    file.write_text(source)
    with running(StandIn(lambda request, number: completion("2" if request["prompt"] == "0=" else "3"))) as stand_in:
        found = sample(stand_in, wanted(2, 1), reward=named.format(file=file))
    assert [found[problem, 0].score for problem in ("0", "1")] == [1.0, 0.0]


def test_a_reward_file_grades_as_with_engines(tmp_path: Any) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    if prompts[0] == '1=':\n"
        "        raise KeyError('no such prompt')\n"
        "    return {'rewards': [0.0], 'scores': [float(queries[0] == prompts[0] + '2') / 2]}\n"
    )
    with running(StandIn(lambda request, number: completion("2"))) as stand_in:
        found = sample(stand_in, wanted(3, 1), reward=str(file))
    assert (found["0", 0].score, found["2", 0].score) == (0.5, 0.5)
    assert found["1", 0].cause == "the reward failed: KeyError: 'no such prompt'"
