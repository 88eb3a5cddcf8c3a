"""Sampling answers without a policy: exactly the parameters asked for, seeds by identity, no score is no score."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import ray
from engines import RolloutEngine, end_at_once

from openrlhf_ada.cli import evaluate
from openrlhf_ada.cli.sampling_flags import grading_of, host_namespace, sampling_of
from openrlhf_ada.core.fleet import EngineDown, EngineUp
from openrlhf_ada.eval.answers import Asked, Sampled
from openrlhf_ada.rollout import answering
from openrlhf_ada.rollout.answering import AnswerSampler
from openrlhf_ada.rollout.engine import Job
from openrlhf_ada.trainer import sampling_only


class Tokenizer:
    """Every token is a nine."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "9" * len(tokens)


class AnsweringEngine(RolloutEngine):
    """With log-probabilities of -0.5 per token, and without a score for prompts that end in 7 or 9."""

    def __init__(self) -> None:
        super().__init__(lambda number, k: {7: None, 9: math.nan}.get(number % 10, float(number % 2 == 0)))

    def _answer(self, call: dict[str, Any], number: int, k: int) -> dict[str, Any]:
        answer = super()._answer(call, number, k)
        return answer | {"rollout_log_probs": [0.0, *[-0.5] * (k + 1)]}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[AnsweringEngine]:
    end_at_once(monkeypatch)
    # An object in Ray's store can crash its driver when that leaves Ray (docs/decisions.md).
    monkeypatch.setattr(ray, "put", mock.Mock(side_effect=AssertionError))
    return [AnsweringEngine(), AnsweringEngine()]


def flags(*changes: str) -> argparse.Namespace:
    return evaluate.build_parser().parse_args(["--model", "m", "--benchmark", "math500", *changes])


def start(monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine], *changes: str) -> AnswerSampler:
    monkeypatch.setattr(sampling_only, "_start_engines", lambda *args, **options: engines)
    monkeypatch.setattr(sampling_only, "watched_starts", lambda count, note: nullcontext())
    monkeypatch.setattr(sampling_only.SharedTokenizer, "load", lambda self: Tokenizer())
    args = flags(*changes)
    sampling = sampling_of(args)
    return sampling_only.start_answering(
        host_namespace("m", "math", args, sampling),
        sampling={name: getattr(sampling, name) for name in sampling.__slots__},
        grading=grading_of(args),
        timeout_s=args.timeout,
        note=lambda text: None,
    )


def ask(sampler: AnswerSampler, prompts: Sequence[int], n: int) -> dict[tuple[int, int], Sampled]:
    rows: dict[tuple[int, int], Sampled] = {}
    wanted = [Asked("set", str(prompt), index, str(prompt), "label") for prompt in prompts for index in range(n)]

    def keep(asked: Asked, sampled: Sampled) -> None:
        rows[int(asked.problem), asked.index] = sampled

    sampler.sample(wanted, keep)
    return rows


def test_what_ends_an_answer_is_what_was_given(
    monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]
) -> None:
    sampler = start(monkeypatch, engines, "--sampling_args", '{"stop": ["!"], "stop_token_ids": [5]}')
    assert (sampler._setup.params.stop, sampler._setup.params.stop_token_ids) == (["!"], [5])


def test_sets_that_share_a_problem_each_get_their_answers(
    monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]
) -> None:
    asked = [Asked(run, "2", 0, "2", "label") for run in ("a", "b")]
    answered: list[str] = []
    sampler = start(monkeypatch, engines)
    sampler.sample(asked, lambda asked, row: answered.append(asked.problem_set))
    assert sorted(answered) == ["a", "b"]
    assert len({job.seed for engine in engines for job in engine.jobs}) == 2
    with pytest.raises(ValueError, match="1 answers are asked for twice"):
        sampler.sample([asked[0], asked[0]], lambda asked, row: None)


def test_engines_get_exactly_the_configured_parameters(
    monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]
) -> None:
    """R14."""
    values = {"--temperature": "0.6", "--top_p": "0.95", "--top_k": "20", "--max_new_tokens": "77", "--max_len": "99"}
    sampler = start(monkeypatch, engines, *(word for pair in values.items() for word in pair), "--timeout", "12")
    ask(sampler, [2, 4], 2)
    (setup,) = {id(setup): setup for engine in engines for setup in engine.setups}.values()
    params = setup.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.6, 0.95, 20, 77)
    assert (params.n, params.min_p, params.presence_penalty, params.repetition_penalty) == (1, 0.0, 0.0, 1.0)
    assert (setup.max_length, setup.timeout_s) == (99, 12.0)


def test_every_answer_has_its_row(monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]) -> None:
    rows = ask(start(monkeypatch, engines), [2, 3], 3)
    assert len(rows) == 6
    for (prompt, index), row in rows.items():
        assert (row.response, row.tokens, row.truncated) == ("9" * (index + 1), index + 1, False)
        assert (row.score, row.surprise) == (float(prompt == 2), 0.5)


def test_seeds_depend_on_problem_and_index_only(
    monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]
) -> None:
    ask(start(monkeypatch, engines), [2, 4, 6], 2)
    (alone,) = single = [AnsweringEngine()]
    ask(start(monkeypatch, single), [6, 2], 3)

    def seeds(jobs: Sequence[Job]) -> dict[tuple[int, int], int]:
        return {(job.request.key, job.request.index): job.seed for job in jobs}

    together, again = seeds([job for engine in engines for job in engine.jobs]), seeds(alone.jobs)
    assert all(again[identity] == seed for identity, seed in together.items() if identity in again)
    assert len(set(again.values())) == 6
    other = [AnsweringEngine()]
    ask(start(monkeypatch, other, "--seed", "1"), [6], 1)
    assert other[0].jobs[0].seed not in again.values()


def test_unscored_answer_is_asked_for_twice(monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]) -> None:
    rows = ask(start(monkeypatch, engines), [7, 8, 9], 1)
    assert (rows[8, 0].score, rows[7, 0].score, rows[9, 0].score) == (1.0, None, None)
    assert rows[7, 0].cause == "the reward function returned no score"
    assert rows[9, 0].cause == "the reward function returned the score nan"
    assert sum(engine.drawn for engine in engines) == 1 + 2 * answering.ATTEMPTS


def test_requests_beyond_engine_slots_wait(monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]) -> None:
    """64 at a time on each; a prompt's answers go where its prefix is while there is room."""
    rows = ask(start(monkeypatch, engines), range(2, 40, 2), 16)
    assert len(rows) == 19 * 16
    assert max(len(engine.jobs) for engine in engines) < 19 * 16


def test_requests_of_a_dead_engine_are_repeated(
    monkeypatch: pytest.MonkeyPatch, engines: list[AnsweringEngine]
) -> None:
    sampler = start(monkeypatch, engines[:1])
    engine, connections = engines[0], sampler._connections
    events: list[Any] = []

    def wait() -> list[Any]:
        connections._send()
        if not events:
            # It has taken the first requests along.
            events.append("died")
            engine.ended.clear()
            return [EngineDown(0), EngineUp(0)]
        return ray.get(ray.wait([engine.answers.remote()], num_returns=1)[0][0])

    monkeypatch.setattr(connections, "wait", wait)
    rows = ask(sampler, [2], 4)
    assert sorted(rows) == [(2, index) for index in range(4)]
    assert engine.drawn == 8
    assert len({job.seed for job in engine.jobs}) == 4
