"""What a trained model can do on held-out prompts of a task: right, working right, right by luck, pass@k, entropy."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.arena.learner import AnswerModel, PromptBatch, is_right, right_share, until_end
from benchmarks.arena.tasks import World
from openrlhf_ada.eval.measures import pass_at_k

ANSWERS = 32
"""Of each held-out prompt."""

PASS_AT = (8, 32)

SEED = 999

HARDEST = 1 / 3


Counts = NDArray[np.int64]


@torch.no_grad()
def measured(model: AnswerModel, world: World) -> tuple[dict[str, float], Counts]:
    """Shares of answers: `right`; `working`, whose chain is right; `luck`, right ones of those whose chain is wrong.

    pass@k: shares of prompts. `entropy`: of whole answers, in nats. `tokens`: mean length. With the same random
    numbers in each call. And how many of its ANSWERS are right by prompt, shape (R,).
    """
    batch = PromptBatch.of(world.held_out, np.repeat(np.arange(len(world.held_out)), ANSWERS).tolist())
    tokens = model.sample(batch, torch.Generator().manual_seed(SEED))
    right, working = is_right(tokens, batch), right_share(tokens, batch, world.task) == 1.0
    counts = right.view(-1, ANSWERS).sum(dim=1).numpy()
    found = {
        "right": float(right.double().mean()),
        "working": float(working.double().mean()),
        "luck": float((right & ~working).sum() / (~working).sum().clamp_min(1)),
        **{f"pass{k}": float(np.mean([pass_at_k(ANSWERS, count, k) for count in counts.tolist()])) for k in PASS_AT},
        "entropy": -float(model.token_log_probs(batch, tokens).sum(dim=1).mean()),
        "tokens": float(until_end(tokens).sum(dim=1).double().mean()),
    }
    return found, counts


def on_hardest(before: Counts, counts: Counts) -> dict[str, float]:
    """Shares of right answers on the HARDEST prompts by the starting model's counts, and on the rest."""
    order = np.argsort(before, kind="stable")
    hard, rest = np.split(counts[order], [round(HARDEST * len(order))])
    return {"right_hard": float(hard.mean()) / ANSWERS, "right_rest": float(rest.mean()) / ANSWERS}
