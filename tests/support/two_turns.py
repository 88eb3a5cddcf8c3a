"""A conversation of two turns (--train.agent_func_path): the toy answers a sum, and again after two others."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_ada.reward import arithmetic

INSERTED = "\n12+5=17\n4+9=13\n"


class TwoTurns(AgentInstanceBase):
    """Scored by its first answer."""

    def __init__(self) -> None:
        self.score: float | None = None
        self.prompt = ""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self.prompt = states["observation"]
        return states

    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        is_over = self.score is not None
        if self.score is None:
            self.score = arithmetic.grade(state_dict["action_text"], state_dict["label"]).score
        value = torch.tensor(self.score)
        return {
            "rewards": value * is_over,
            "scores": value,
            "environment_feedback": "" if is_over else INSERTED + self.prompt,
            "done": is_over,
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(TwoTurns)
