"""The rollout actor with agents that misbehave. With the real vLLM: tests/e2e/test_engine.py."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout import engine as module
from openrlhf_ada.rollout.engine import AdaRolloutActor, SamplingSetup, _end_with
from openrlhf_ada.rollout.messages import Answer
from openrlhf_ada.rollout.tracked_engine import Job, Rollout, TrackedEngine, current_rollout, salted

Execute = Callable[[Any], Awaitable[Any]]
"""What an agent does with the engine."""


class Llm:
    """Answers with three tokens once `delay_s` is over; knows a request only `preprocessing_s` after it came."""

    def __init__(self, delay_s: float = 0.0, preprocessing_s: float = 0.0) -> None:
        self.delay_s, self.preprocessing_s = delay_s, preprocessing_s
        self.output_processor = SimpleNamespace(external_req_ids=defaultdict(list))
        self.aborted: dict[str, asyncio.Event] = {}
        self.num_calls = 0
        self.errored = False
        self.dead_error = RuntimeError("the core is gone")

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        self.num_calls += 1
        await asyncio.sleep(self.preprocessing_s)
        stopped = self.aborted[request_id] = asyncio.Event()
        self.output_processor.external_req_ids[request_id] = [request_id]
        reason = "stop"
        try:
            await asyncio.wait_for(stopped.wait(), self.delay_s)
            reason = "abort"
        except TimeoutError:
            pass
        del self.output_processor.external_req_ids[request_id]
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1, 2, 3], finish_reason=reason)])

    async def abort(self, request_id: str) -> None:
        self.aborted[request_id].set()


class DyingLlm(Llm):
    """Its core dies while it samples."""

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        self.errored = True
        raise EngineDeadError
        yield


def test_every_kind_of_prompt_gets_the_version_as_its_salt() -> None:
    tokens = {"prompt_token_ids": [1, 2]}
    assert salted([1, 2], 3) == salted(tokens, 3) == tokens | {"cache_salt": "3 "}
    assert salted("1+1=", 3) == {"prompt": "1+1=", "cache_salt": "3 "}
    assert salted(tokens | {"cache_salt": "a"}, 3)["cache_salt"] == "3 a"
    assert tokens == {"prompt_token_ids": [1, 2]}, "the caller's own stays as it is"


@pytest.mark.parametrize(("is_cpu", "slots", "speculation"), [(False, 1024, 256), (False, 64, 64), (True, 256, 16)])
def test_rollouts_to_speculate_follow_the_device(
    monkeypatch: pytest.MonkeyPatch, is_cpu: bool, slots: int, speculation: int
) -> None:
    monkeypatch.setattr(type(module.current_platform), "is_cpu", lambda self: is_cpu)
    actor = make_actor(lambda call: asyncio.sleep(0))
    actor.llm = SimpleNamespace(vllm_config=SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=slots)))
    assert asyncio.run(actor.capacity()) == (slots, speculation)


def make_actor(execute: Execute, llm: Llm | None = None, *, has_weights: bool = True) -> Any:
    actor: Any = AdaRolloutActor.__new__(AdaRolloutActor)
    actor.open_gate()
    if has_weights:
        actor._admit(3)
    actor.llm = TrackedEngine(llm or Llm(), actor)
    actor.executor = SimpleNamespace(execute=lambda **call: execute(call["llm_engine"].llm))
    actor._running, actor._ended = {}, asyncio.Queue()
    actor._start_id = "this one"
    return actor


async def turn(llm: Any, request_id: str = "r") -> dict[str, Any]:
    params = SimpleNamespace(output_kind=None, seed=None)
    outputs = [output async for output in llm.generate({}, params, request_id)]
    return response(outputs[-1].outputs[0].token_ids) | {"extra_logs": {"seed": params.seed}}


def response(tokens: list[int]) -> dict[str, Any]:
    return {
        "observation_tokens": [9, *tokens],
        "action_ranges": [(1, 1 + len(tokens))],
        "rollout_log_probs": None,
        "reward": 1.0,
        "scores": 1.0,
    }


JOB = Job(Request(4, 2), "1+1=", "2", None, run_seed=7)


def test_an_evaluations_answers_have_seeds_by_prompt_label_and_index() -> None:
    """Whatever an engine is asked beside them, and in any order."""

    async def seeds(seed: int | None, *asked: tuple[str, str]) -> dict[tuple[str, str], list[int]]:
        call = {"max_length": 9, "hf_tokenizer": None, "images": None, "num_samples": 3}
        names = map(str, count())
        actor, params = make_actor(lambda llm: turn(llm, next(names))), SimpleNamespace(seed=seed)
        calls = [actor.generate_responses(prompt=p, label=n, sampling_params=params, **call) for p, n in asked]
        answers = await asyncio.gather(*calls)
        return {one: [r["extra_logs"]["seed"] for r in found] for one, found in zip(asked, answers, strict=True)}

    asked = ("a", "1"), ("a", "2"), ("b", "1")
    first = asyncio.run(seeds(7, *asked))
    assert first == asyncio.run(seeds(7, *asked[::-1]))
    assert len({seed for found in first.values() for seed in found}) == 9
    assert first != asyncio.run(seeds(8, *asked))
    assert asyncio.run(seeds(None, asked[0])) == {asked[0]: [None] * 3}, "as OpenRLHF samples"


def setup(timeout_s: float) -> SamplingSetup:
    return SamplingSetup(SimpleNamespace(logprobs=None), 99, None, timeout_s)


async def answer_of(actor: Any, *, stop_after: float | None = None, timeout_s: float = 5.0) -> Answer:
    await actor.submit([JOB], setup(timeout_s))
    if stop_after is not None:
        await asyncio.sleep(stop_after)
        await actor.stop([JOB.request])
    (answer,) = await asyncio.wait_for(actor.answers(), 5)
    assert answer.request == JOB.request and not actor._running
    return answer


def test_sample_uses_its_seed_and_counts_tokens() -> None:
    answer = asyncio.run(answer_of(make_actor(turn)))
    assert answer[:4] == (JOB.request, 3, (3, 3), "")
    assert answer.result is not None
    found = answer.result.response()
    assert found["observation_tokens"].tolist() == [9, 1, 2, 3]
    assert found["extra_logs"] == {"seed": JOB.seed}
    assert (answer.result.reward, answer.result.num_tokens) == (1.0, 3)


def test_versions_are_those_of_first_and_last_token() -> None:
    async def two_turns(llm: Any) -> dict[str, Any]:
        await turn(llm)
        actor._admit(5)
        await turn(llm)
        actor._admit(6)
        return response([1])

    actor = make_actor(two_turns)
    assert asyncio.run(answer_of(actor)).versions == (3, 5)


def test_an_agent_that_returns_nothing_has_failed() -> None:
    async def nothing(llm: Any) -> None:
        await turn(llm)

    answer = asyncio.run(answer_of(make_actor(nothing)))
    assert answer == Answer(JOB.request, 3, (3, 3), answer.error) and "agent" in answer.error


def test_foreign_cancellation_is_a_failure() -> None:
    async def cancels_a_part_of_itself(llm: Any) -> None:
        part = asyncio.ensure_future(asyncio.sleep(9))
        part.cancel()
        await part

    answer = asyncio.run(answer_of(make_actor(cancels_a_part_of_itself)))
    assert answer.result is None and "cancelled" in answer.error


def test_agent_that_catches_everything_is_stopped() -> None:
    async def stubborn(llm: Any) -> None:
        for number in range(10**6):
            try:
                await turn(llm, str(number))
            except Exception:  # noqa: BLE001 - that is the point
                continue

    llm = Llm(delay_s=0.01)
    answer = asyncio.run(answer_of(make_actor(stubborn, llm), stop_after=0.05))
    assert (answer.result, answer.error) == (None, "")
    assert 3 <= answer.num_tokens <= 18 and llm.num_calls < 9


@pytest.mark.parametrize(("delay_s", "preprocessing_s"), [(9.0, 0.0), (0.0, 9.0)], ids=["decoding", "on its way in"])
def test_stop_is_immediate_in_every_phase(delay_s: float, preprocessing_s: float) -> None:
    start = time.monotonic()
    answer = asyncio.run(answer_of(make_actor(turn, Llm(delay_s, preprocessing_s)), stop_after=0.05))
    assert time.monotonic() - start < 2
    assert (answer.result, answer.error, answer.num_tokens) == (None, "", 3 if delay_s else 0)


def test_a_stop_before_the_first_turn_ends_a_long_start() -> None:
    async def slow_start(llm: Any) -> dict[str, Any]:
        await asyncio.sleep(9)
        return await turn(llm)

    for wait in (0.0, 0.05):
        answer = asyncio.run(answer_of(make_actor(slow_start), stop_after=wait))
        assert (answer.result, answer.error, answer.num_tokens) == (None, "", 0)


@pytest.mark.slow
def test_rewards_that_hang_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are threads hang; the next one has its score all the same."""
    hangs = True

    async def rewarded(llm: Any) -> dict[str, Any]:
        await asyncio.to_thread(time.sleep, 1.5 if hangs else 0.0)
        return response([1])

    async def scenario() -> list[Answer]:
        nonlocal hangs
        actor = make_actor(rewarded)
        requests = [Request(0, index) for index in range(40)]
        await actor.submit([Job(r, "", "", None, 0) for r in requests], setup(0.2))
        hung: list[Answer] = []
        while len(hung) < 40:
            hung += await actor.answers()
        assert {answer.error for answer in hung} == {"no answer and score within 0.2 s"}
        hangs = False
        return [await answer_of(actor, timeout_s=1.0)]

    assert asyncio.run(scenario())[0].error == ""


@pytest.mark.parametrize("has_weights", [True, False], ids=["sampling", "just-started"])
def test_reset_clears_everything(has_weights: bool) -> None:
    """Also jobs that came before the policy's weights, from a driver that had not noticed the death before."""

    async def scenario() -> None:
        actor = make_actor(turn, Llm(delay_s=9.0), has_weights=has_weights)
        await actor.submit([JOB], setup(60.0))
        old = asyncio.ensure_future(actor.answers())
        await asyncio.sleep(0.05)
        await actor.reset()
        assert not actor._running and actor._ended.empty()
        actor.llm._llm.delay_s = 0.0
        actor._admit(3)
        assert (await answer_of(actor)).num_tokens == 3, "its answer goes to who asks now"
        old.cancel()

    asyncio.run(scenario())


def test_a_process_ends_with_its_core(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    monkeypatch.setattr(module.os, "_exit", codes.append)
    monkeypatch.setattr(module, "WATCH_S", 0.01)
    monkeypatch.setattr(module, "ended_cores", lambda llm: {"EngineCore_DP0": -signal.SIGKILL})

    async def scenario() -> None:
        llm = Llm()
        watch = asyncio.ensure_future(_end_with(llm))
        await asyncio.sleep(0.05)
        assert not codes
        llm.errored = True
        await watch

    asyncio.run(scenario())
    assert codes == [1]
    assert "ends with its vLLM engine: the core is gone EngineCore_DP0 ended by SIGKILL.\n" in capsys.readouterr().err


@pytest.mark.slow
def test_the_log_shows_what_holds_python(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """As by a regular expression that never ends: nothing else runs in the process."""
    monkeypatch.setattr(module, "STUCK_S", 0.1)

    def never_ends() -> None:
        time.sleep(0.5)

    async def scenario() -> None:
        watch = asyncio.ensure_future(_end_with(Llm()))
        await asyncio.sleep(0.01)
        never_ends()
        watch.cancel()

    asyncio.run(scenario())
    assert "in never_ends" in capfd.readouterr().err


def test_core_death_is_no_failure_of_the_sample() -> None:
    """The process ends with it, and Ray tells. Neither a rollout nor a call of OpenRLHF's own, as in evaluation."""

    async def wait() -> None:
        actor = make_actor(turn, DyingLlm())
        await actor.submit([JOB], setup(5.0))
        for waiting in (actor.answers(), turn(actor.llm)):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting, 0.05)

    asyncio.run(wait())


def test_jobs_that_come_with_a_question_can_be_stopped_at_once() -> None:
    """Aborting others takes its time. A call that stops the new ones may come meanwhile."""

    async def scenario() -> list[Answer]:
        actor = make_actor(turn, Llm(delay_s=9.0))
        old = Job(Request(1, 0), "1+1=", "2", None, 0)
        await actor.submit([old], setup(60.0))
        await asyncio.sleep(0.05)
        asking = asyncio.ensure_future(actor.answers([old.request], [JOB], setup(60.0)))
        await asyncio.sleep(0)
        await actor.stop([JOB.request])
        return await asyncio.wait_for(asking, 5)

    ended = asyncio.run(scenario())
    assert {answer.request for answer in ended} == {JOB.request, Request(1, 0)}
    assert all(answer.result is None and not answer.error for answer in ended)


# -- a start beside the policy ----------------------------------------------------------------------------------------


class StartsNothing(AdaRolloutActor):
    """Up to where vLLM would be started."""

    def with_receiver(self, arguments: dict[str, Any]) -> dict[str, Any]:
        raise EngineDeadError


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("shares_gpu", "has_died", "on_cpu", "looks"),
    [(True, True, False, [(0.7, 2, [1])]), (True, False, False, []), (False, True, False, []), (True, True, True, [])],
    ids=["after a death", "first start", "own GPU", "CPU"],
)
def test_an_engine_that_died_beside_the_policy_awaits_room(
    monkeypatch: pytest.MonkeyPatch, shares_gpu: bool, has_died: bool, on_cpu: bool, looks: list[Any]
) -> None:
    """Whatever way weights come."""
    found: list[Any] = []
    monkeypatch.setattr(module, "wait_for_room", lambda *room: found.append(room))
    monkeypatch.setattr(module, "check_model_code", lambda *_, **__: None)
    monkeypatch.setattr(module.current_platform, "is_cpu", lambda: on_cpu)
    context = SimpleNamespace(was_current_actor_reconstructed=has_died)
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(module.ray, "get_gpu_ids", lambda: [1])
    actor: Any = StartsNothing.__new__(StartsNothing)
    actor.shares_gpu = shares_gpu
    with pytest.raises(EngineDeadError):
        asyncio.run(actor.__init__(model="m", gpu_memory_utilization=0.7, tensor_parallel_size=2))
    assert found == looks


@pytest.mark.parametrize(
    "source",
    [
        "def reward_func(queries, prompts, labels): return [float(queries[0] == '1+1=2')]",
        "async def reward_func(completions, answer, **kwargs): return [float(completions[0] == answer[0])]",
    ],
)
def test_rewards_of_any_form_are_asked_as_openrlhf_asks(source: str, tmp_path: Path) -> None:
    """Files and servers; why one has no score is kept for the driver."""
    file = tmp_path / "reward.py"
    file.write_text(source)
    executor: Any = SingleTurnAgentExecutor(str(file))

    async def reply(queries: list[str], prompts: list[str], labels: list[Any]) -> list[Any]:
        return [[0.5] if labels == ["2"] else "half"]

    executor._fetch_rewards_via_http = reply
    module._prepare_reward(executor, [str(file)], None)
    for ask, score in ((executor._fetch_rewards_via_func, 1.0), (executor._fetch_rewards_via_http, 0.5)):
        assert asyncio.run(ask(["1+1=2"], ["1+1="], ["2"])) == [{"rewards": score}]
    rollout = Rollout(Job(Request(0, 0), "", "", None, 0))

    async def fail() -> None:
        current_rollout.set(rollout)
        with pytest.raises(NoScoreError):
            await executor._fetch_rewards_via_http(["1+1=2"], ["1+1="], ["3"])

    asyncio.run(fail())
    assert rollout.reward_error is not None and "a str as reward" in rollout.reward_error
