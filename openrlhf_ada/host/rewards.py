"""OpenRLHF's way to ask a reward file or reward servers about an answer, without an engine.

Contract: test_openrlhf_objects.test_executor_asks_for_rewards_without_an_engine
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor


class HostReward:
    """`endpoints`: one Python file, or URLs, as `--reward.remote_url` takes them."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._executor = SingleTurnAgentExecutor(list(endpoints))

    @property
    def function(self) -> Any:
        """The file's `reward_func`; None with URLs."""
        return self._executor.reward_func

    async def __call__(self, query: str, prompt: str, label: Any) -> dict[str, Any]:
        """What it returns for one answer. Raises what the file raises, and RuntimeError for a server that fails."""
        executor = self._executor
        ask = executor._fetch_rewards_via_http if self.function is None else executor._fetch_rewards_via_func
        (returned,) = await ask([query], [prompt], [label])
        return returned
