"""What a trained model can do on held-out prompts of a task: right, working right, right by luck, pass@k, entropy."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.arena.learner import AnswerModel, PromptBatch, is_right, right_share, until_end
from benchmarks.arena.tasks import World
from openrlhf_ada.eval.measures import pass_at_k

ANSWERS = 32
"""Of each held-out prompt."""

PASS_AT = (8, 32)

SEED = 999


@torch.no_grad()
def measured(model: AnswerModel, world: World) -> dict[str, float]:
    """Shares of answers: `right`; `working`, whose chain is right; `luck`, right ones of those whose chain is wrong.

    pass@k: shares of prompts. `entropy`: of whole answers, in nats. `tokens`: mean length. With the same random
    numbers in each call.
    """
    batch = PromptBatch.of(world.held_out, np.repeat(np.arange(len(world.held_out)), ANSWERS).tolist())
    tokens = model.sample(batch, torch.Generator().manual_seed(SEED))
    right, working = is_right(tokens, batch), right_share(tokens, batch, world.task) == 1.0
    counts = right.view(-1, ANSWERS).sum(dim=1).tolist()
    return {
        "right": float(right.double().mean()),
        "working": float(working.double().mean()),
        "luck": float((right & ~working).sum() / (~working).sum().clamp_min(1)),
        **{f"pass{k}": float(np.mean([pass_at_k(ANSWERS, count, k) for count in counts])) for k in PASS_AT},
        "entropy": -float(model.token_log_probs(batch, tokens).sum(dim=1).mean()),
        "tokens": float(until_end(tokens).sum(dim=1).double().mean()),
    }
