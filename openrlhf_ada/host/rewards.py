"""OpenRLHF's way to ask reward servers about an answer, without an engine.

Contract: test_openrlhf_objects.test_executor_asks_for_rewards_without_an_engine
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor


class HostReward:
    """`endpoints`: URLs, as `--reward.remote_url` takes them."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._executor = SingleTurnAgentExecutor(list(endpoints))

    async def __call__(self, queries: list[str], prompts: list[str], labels: list[Any]) -> Any:
        """What one returns for one answer, in lists. Raises RuntimeError for a server that fails."""
        (returned,) = await self._executor._fetch_rewards_via_http(queries, prompts, labels)
        return returned
