"""Conversations of several turns (--train.agent_func_path): length, limit and truncation mean sampled tokens.

OpenRLHF's executor lets a conversation go on until --data.max_len, whatever the environment inserts, and says of its
last turn alone whether it was cut off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


@dataclass
class Conversation:
    """One conversation while it is being sampled. `limit`: of sampled tokens (--rollout.max_new_tokens), or None."""

    limit: int | None
    num_tokens: int = 0
    is_cut: bool = False
    """The environment has answered its last turn, and would go on."""

    def cap(self, sampling_params: Any) -> None:
        """Let the next turn sample what is left of the limit."""
        if self.limit is not None:
            left = max(self.limit - self.num_tokens, 1)
            sampling_params.max_tokens = min(sampling_params.max_tokens or left, left)

    def end_turn(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The environment's answer, which ends the conversation where nothing more may be sampled."""
        self.is_cut = not answer["done"]
        is_full = self.limit is not None and self.num_tokens >= self.limit
        return {**answer, "done": True} if is_full else answer


current_conversation: ContextVar[Conversation | None] = ContextVar("conversation", default=None)
"""The conversation that the calling task samples; None outside of OpenRLHF's executor of several turns."""


def count_sampled_tokens(executor: Any) -> None:
    """Let this executor of conversations end at the limit, and say which ones were truncated; leave others alone."""
    # A class of the user's may have come without OpenRLHF's constructor, and go its own way.
    if isinstance(executor, MultiTurnAgentExecutor) and hasattr(executor, "agent_instance_cls"):
        counted: Any = executor
        agent = counted.agent_instance_cls
        counted.agent_instance_cls = type(agent.__name__, (agent,), {"step": _noting(agent.step)})
        counted.execute = _counting(counted.execute)


def _noting(step: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def noted(agent: AgentInstanceBase, *args: Any, **kwargs: Any) -> dict[str, Any]:
        answer = await step(agent, *args, **kwargs)
        conversation = current_conversation.get()
        return answer if conversation is None else conversation.end_turn(answer)

    return noted


def _counting(execute: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    def call(*, sampling_params: Any, **kwargs: Any) -> Awaitable[dict[str, Any]]:
        # Before any of a prompt's conversations begins: the executor writes into the parameters that they share.
        return run(deepcopy(sampling_params), **kwargs)

    async def run(sampling_params: Any, **kwargs: Any) -> dict[str, Any]:
        conversation = Conversation(sampling_params.max_tokens)
        current_conversation.set(conversation)
        response = await execute(sampling_params=sampling_params, **kwargs)
        if not response:
            return response
        return response | {"truncated": bool(response.get("truncated")) or conversation.is_cut}

    return call
