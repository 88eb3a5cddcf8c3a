"""No answer from a cache that old weights have filled: an engine that is asked the same prompt at every moment (R9).

Its cache is keyed by what the prompt says, as vLLM's, and remembers which weights wrote it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.weights.engine_side import ReceivesWeights

HALF_LOADED = -99


class Llm:
    """While it works on an update others get their turn."""

    def __init__(self) -> None:
        self.weights, self.cache = 0, dict[str, int]()
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(enable_prefix_caching=True),
            model_config=SimpleNamespace(is_multimodal_model=False),
        )

    def get_num_unfinished_requests(self) -> int:
        return 0

    def sample(self, prompt: str) -> int:
        """By which weights."""
        return self.cache.setdefault(prompt, self.weights)

    async def start_weight_update(self) -> None:
        self.weights = HALF_LOADED
        await asyncio.sleep(0)

    async def update_weights(self, request: Any) -> None:
        await asyncio.sleep(0)

    async def finish_weight_update(self, version: str) -> None:
        await asyncio.sleep(0)
        self.weights = int(version)
        await asyncio.sleep(0)

    async def reset_prefix_cache(self) -> bool:
        await asyncio.sleep(0)
        self.cache.clear()
        await asyncio.sleep(0)
        return True


class LeavesOpen(ReceivesWeights):
    async def begin_update(self) -> None:
        await self.llm.start_weight_update()


class AdmitsBeforeTheReset(ReceivesWeights):
    async def admit_update(self, version: int) -> None:
        await self.llm.finish_weight_update(str(version))
        self._admit(version)
        await self.llm.reset_prefix_cache()


class AdmitsBeforeTheEnd(ReceivesWeights):
    async def admit_update(self, version: int) -> None:
        self._admit(version)
        await super().admit_update(version)


class OpenAndResetsFirst(LeavesOpen):
    async def admit_update(self, version: int) -> None:
        await self.llm.reset_prefix_cache()
        await self.llm.finish_weight_update(str(version))
        self._admit(version)


class NeverResets(ReceivesWeights):
    async def admit_update(self, version: int) -> None:
        await self.llm.finish_weight_update(str(version))
        self._admit(version)


WRONG = [LeavesOpen, AdmitsBeforeTheReset, AdmitsBeforeTheEnd, OpenAndResetsFirst, NeverResets]


async def stale_answers(kind: type[ReceivesWeights]) -> list[tuple[int, int]]:
    """(version that is said, version that answered) where they differ, over three updates."""
    actor: Any = kind()
    actor.llm, found, ended = Llm(), [], False
    actor.open_gate()
    await actor.serve_from_disk()
    actor.version = 0

    async def sample() -> None:
        while not ended:
            await actor.admitted()
            found.append((actor.version, actor.llm.sample("1+1=")))
            await asyncio.sleep(0)

    sampling = asyncio.create_task(sample())
    for version in (1, 2, 3):
        await asyncio.sleep(0)
        await actor.begin_update()
        await actor.receive_update({}, sums=False)
        await actor.admit_update(version)
    await asyncio.sleep(0)
    ended = True
    await sampling
    assert {said for said, _ in found} >= {0, 3}
    return [(said, answered) for said, answered in found if said != answered]


def test_answers_come_from_their_stated_weights() -> None:
    assert asyncio.run(stale_answers(ReceivesWeights)) == []


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_every_wrong_order_would_be_seen(kind: type[ReceivesWeights]) -> None:
    assert asyncio.run(stale_answers(kind)) != []
