"""vLLM's engine as a rollout actor uses it: each call is one turn of a rollout, with the seed of that rollout."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_ada.core.scheduling import Request, rollout_seed
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.rollout.conversations import current_conversation
from openrlhf_ada.weights.engine_side import ReceivesWeights

SEED_RANGE = 1 << 63


class Job(NamedTuple):
    """A rollout to sample: which one, of what, in a run of which seed."""

    request: Request
    prompt: str
    label: Any
    image: Any
    run_seed: int

    @property
    def seed(self) -> int:
        """See `rollout_seed`."""
        return rollout_seed(self.run_seed, self.request)


class RolloutStopped(asyncio.CancelledError):
    """This rollout is not needed any more. A CancelledError, so that an agent's `except Exception` cannot catch it."""


@dataclass
class Rollout:
    """One rollout while it is being sampled. `request_id`: vLLM's, while a turn of it runs."""

    job: Job
    request_id: str | None = None
    num_turns: int = 0
    num_tokens: int = 0
    reward_error: str = ""
    grade: TimedGrade | None = None
    task: asyncio.Task[None] | None = None
    first_version: int | None = None
    last_version: int | None = None
    started: bool = False
    stopped: bool = False


current_rollout: ContextVar[Rollout | None] = ContextVar("rollout", default=None)
"""The rollout that OpenRLHF's executor is working on, in its task and in the threads of its reward function."""


class TrackedEngine:
    """vLLM's engine. `generate` finds the calling task's rollout, uses its seed, and waits for confirmed weights.

    Everything else is vLLM's, but that nothing is answered once its core has died. `weights`: knows the policy
    version. `tokens_only`: the executor reads token ids and their log-probabilities alone, so vLLM need not make
    anything else.
    """

    def __init__(self, llm: Any, weights: ReceivesWeights, *, tokens_only: bool = False) -> None:
        self._llm = llm
        self._weights = weights
        self._tokens_only = tokens_only

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._llm, name)
        return _unless_dead(found) if inspect.iscoroutinefunction(found) else found

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> AsyncIterator[Any]:
        """As vLLM's, without an output per token, which nobody reads."""
        sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        if self._tokens_only:
            ask_for_tokens_only(sampling_params)
        if (conversation := current_conversation.get()) is not None:
            conversation.cap(sampling_params)
        await self._weights.admitted()
        prompt = salted(prompt, self._weights.version)
        rollout = current_rollout.get()
        if rollout is None:
            async for output in self._outputs(prompt, sampling_params, request_id):
                yield output
            return
        if rollout.stopped:
            raise RolloutStopped
        sampling_params.seed = (rollout.job.seed + rollout.num_turns) % SEED_RANGE
        rollout.num_turns += 1
        if rollout.first_version is None:
            rollout.first_version = self._weights.version
        rollout.request_id = request_id
        async for output in self._outputs(prompt, sampling_params, request_id):
            rollout.request_id = None
            rollout.last_version = self._weights.version
            rollout.num_tokens += len(output.outputs[0].token_ids)
            if output.outputs[0].finish_reason != "abort":
                yield output
        if rollout.stopped:
            raise RolloutStopped

    async def _outputs(self, prompt: Any, sampling_params: Any, request_id: str) -> AsyncIterator[Any]:
        async with _silent_in_death():
            async for output in self._llm.generate(prompt, sampling_params, request_id=request_id):
                if (conversation := current_conversation.get()) is not None:
                    conversation.num_tokens += len(output.outputs[0].token_ids)
                yield output


def salted(prompt: Any, version: int) -> Any:
    """This prompt of vLLM's, so that it meets only what prompts of the same version left in prefix caches. An update
    empties the one on the GPU, but vLLM may keep blocks elsewhere."""
    if isinstance(prompt, str):
        prompt = {"prompt": prompt}
    elif isinstance(prompt, list):
        prompt = {"prompt_token_ids": prompt}
    return {**prompt, "cache_salt": f"{version} {prompt.get('cache_salt', '')}"}


def reads_tokens_only(executor: Any) -> bool:
    """Does this executor read token ids and their log-probabilities alone?

    OpenRLHF's single-turn one does, and makes the text for rewards from the token ids with a tokenizer of its own. An
    agent may read anything.
    Contract: test_engine_output.test_single_turn_executor_reads_tokens_alone
    """
    return type(executor) is SingleTurnAgentExecutor


def ask_for_tokens_only(params: Any) -> None:
    """Change sampling parameters in place; the tokens that are sampled stay the same.

    vLLM's process of the rollout actor makes the rest in Python, once per token of every running request, so it limits
    how fast an engine can be (benchmarks/engine_host.py).
    """
    # Stop strings are looked for in the text.
    params.detokenize = bool(params.stop)
    if params.logprobs is not None:
        # 0: of the sampled token alone. Nobody reads the most probable token's.
        params.logprobs = 0
        params.flat_logprobs = True


def _unless_dead(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """This call of vLLM's; where its core has died, nothing is answered."""

    @wraps(call)
    async def answer(*args: Any, **kwargs: Any) -> Any:
        async with _silent_in_death():
            return await call(*args, **kwargs)

    return answer


@asynccontextmanager
async def _silent_in_death() -> AsyncIterator[None]:
    """Once vLLM's core is dead nothing is answered: whoever asked learns from Ray, which starts the engine again."""
    try:
        yield
    except EngineDeadError:
        await asyncio.Event().wait()
