"""An agent whose samples depend on nothing but the prompt: one request at a time, each with a seed of its own.

vLLM's results depend on which requests share a batch; one at a time, two runs can be compared to the bit.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from openrlhf_ada.reward import arithmetic


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(remote_rm_url=arithmetic.__file__)
        self.lock = asyncio.Lock()
        self.visits: Counter[str] = Counter()
        self.log = Path(os.environ["SERIAL_AGENT_LOG"])

    async def execute(self, prompt: str, label: str, sampling_params: Any, **kwargs: Any) -> dict[str, Any]:
        async with self.lock:
            params = deepcopy(sampling_params)
            params.seed = zlib.crc32(f"{prompt}/{self.visits[prompt]}".encode())
            self.visits[prompt] += 1
            response = await super().execute(prompt, label, params, **kwargs)
            with self.log.open("a") as log:
                log.write(f"{prompt!r} {response['observation_tokens']} {response['reward']}\n")
            return response
