"""An agent for OpenRLHF (`--train.agent_func_path`): after a wrong answer, the model is told so and may try again.

The score of the conversation is that of its last answer. A right first answer is rewarded more than a second one.
For an environment of your own, copy this file and change `reset` and `step`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_ada.reward.reward_function import GRADERS, NoScoreError, pooled

TRIES = 2
SECOND_TRY_REWARD = 0.5

# One pool of grading processes for all conversations of an engine.
REWARD = pooled(GRADERS["math"])


class SecondTry(AgentInstanceBase):
    """One conversation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.tries = 0
        self.prompt = ""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """`states` has the prompt ("observation") and its label; the return value is what the model sees first."""
        self.prompt = states["observation"]
        return states

    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Called with each answer. "rewards" add up over the turns; "scores" of the last turn is the score."""
        self.tries += 1
        # In a thread, so that other conversations go on while this answer is scored.
        grade = await asyncio.to_thread(REWARD.grade, state_dict["action_text"], state_dict["label"])
        if grade.score is None:
            # No score is not a wrong answer: the rollout is sampled again.
            raise NoScoreError(grade.cause)
        is_right = grade.score > 0.5
        is_over = is_right or self.tries == TRIES
        reward = grade.score * (1.0 if self.tries == 1 else SECOND_TRY_REWARD)
        return {
            "rewards": torch.tensor(reward),
            "scores": torch.tensor(grade.score),
            "environment_feedback": "" if is_over else f"\nThat is wrong.\n{self.prompt}",
            "done": is_over,
            "sampling_params": state_dict["sampling_params"],
            "extra_logs": {"tries": torch.tensor(float(self.tries))},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """OpenRLHF looks for this name."""

    def __init__(self) -> None:
        super().__init__(SecondTry)
