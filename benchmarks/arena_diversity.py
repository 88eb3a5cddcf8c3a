"""Does a method buy its accuracy with the variety of its answers? How far does one step move the policy?

python benchmarks/arena_diversity.py      about twenty minutes on two cores

With each method's tuned settings, at equal seconds: what one and eight answers to a held-out prompt get right at the
end, the entropy of an answer, and the share of a step's trained tokens whose ratio ends outside PPO's clip range.
Means over three worlds that count. Writes benchmarks/results/arena_diversity.json, and measures what it lacks: delete
it to measure all again. Its last line is the same as one JSON object.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import torch

import openrlhf_ada.arena
from openrlhf_ada.arena.campaign import Setting
from openrlhf_ada.arena.costs import budget_of
from openrlhf_ada.arena.learner import CLIP, Answers, Learner, PromptBatch, log_probs, pass_rates, sample, warm_start
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.page import unpack
from openrlhf_ada.arena.tasks import PAD, TASKS, World, make_world
from openrlhf_ada.arena.trial import Trial

RESULTS = Path(__file__).parent / "results" / "arena_diversity.json"
PACKED = Path(openrlhf_ada.arena.__file__).parent / "results"

MEASURED = ("graded", "hard", "varied")
NAMES = (
    "first-right",
    "raft-twice",
    "counted",
    "counted-linear",
    "uniform-4-twice-skip",
    "grpo-4",
    "grpo-4-in-eight",
    "pos",
    "balance",
)
"""Where they were tuned."""

SLOWER = {"first-right": 1e-3}
"""Also measured with a smaller learning rate than the tuned one, and the tuned size of a step: `NAME at RATE`."""

BUDGET, COST, WORLDS, ANSWERS = 24_000, "seconds", (0, 1, 2), 8


class Watched(Learner):
    """Notes after each step which trained tokens have left the clip range."""

    def __init__(self, world: World, weights: dict[str, torch.Tensor], rate: float, seed: int) -> None:
        super().__init__(world, weights, rate, seed)
        self.outside: list[float] = []

    def train(
        self, answers: Answers, index: Sequence[int], coefficients: Sequence[float], passes: int = 1, parts: int = 1
    ) -> None:
        rows = torch.tensor([i for i, c in zip(index, coefficients, strict=True) if c])
        before = self._log_probs(answers, rows)
        super().train(answers, index, coefficients, passes, parts)
        said = answers.tokens[rows] != PAD
        ratio = (self._log_probs(answers, rows) - before).exp()
        left = ((ratio < 1.0 - CLIP[0]) | (ratio > 1.0 + CLIP[1])) & said
        self.outside.append(float(left.sum() / said.sum()))

    @torch.no_grad()
    def _log_probs(self, answers: Answers, rows: torch.Tensor) -> torch.Tensor:
        prompts = PromptBatch(*(column[rows] for column in answers.prompts.columns))
        return self.model.token_log_probs(prompts, answers.tokens[rows])


def run(task: str, name: str, setting: Setting, seed: int) -> dict[str, float]:
    """One world, in a process of its own."""
    torch.set_num_threads(1)
    world = make_world(TASKS[task], seed)
    learner = Watched(world, warm_start(world, seed), setting[0], seed)
    start = measured(learner, seed)
    Trial(learner, METHODS[name], setting[1], seed).run(budget_of(BUDGET, COST), COST)
    end = measured(learner, seed)
    return end | {f"{what}_at_start": value for what, value in start.items()} | {"outside": mean(learner.outside)}


def measured(learner: Learner, seed: int) -> dict[str, float]:
    """Of held-out prompts. Pass rates are exact; the entropy is of one answer to each, in nats."""
    held_out = learner.world.held_out
    rates, batch = pass_rates(learner.model, held_out), PromptBatch.of(held_out)
    said = sample(learner.model, batch, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        entropy = -float(log_probs(learner.model, batch, said.tokens).mean())
    return {"one": float(rates.mean()), "eight": float(np.mean(1.0 - (1.0 - rates) ** ANSWERS)), "entropy": entropy}


def cases_of(task: str) -> dict[str, tuple[str, Setting]]:
    """What is measured: a method and its setting, by the name in the results."""
    tuned = unpack(PACKED / f"{task}.jsonl.gz")[COST].settings
    slower = {f"{name} at {rate:g}": (name, (rate, tuned[name][1])) for name, rate in SLOWER.items()}
    return {name: (name, tuned[name]) for name in NAMES if name in tuned} | slower


def main() -> None:
    found: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        for task in MEASURED:
            cases = cases_of(task)
            missing = [case for case in cases if case not in found.get(task, {})]
            calls = {of: pool.submit(run, task, *cases[of[0]], of[1]) for of in product(missing, WORLDS)}
            for name in missing:
                worlds = [calls[name, seed].result() for seed in WORLDS]
                found.setdefault(task, {})[name] = {
                    what: round(mean(w[what] for w in worlds), 4) for what in worlds[0]
                }
                print(task, name, found[task][name], flush=True)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
