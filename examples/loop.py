"""One training with adaptive sampling, whole, in one file: no Ray, no vLLM, no GPU. `python examples/loop.py`

Prompts, a toy model, adaptive sampling, groups, coefficients, update. What decides is the package's own, made of the
same flags as in `openrlhf-ada train`; the language model, the engines and the optimizer are stand-ins:

    here                            in a real run
    ----------------------------    --------------------------------------------------------------
    ToyModel.answer                 vLLM engines                 rollout/engine.py
    score                           a reward function            reward/
    sample_pools                    a scheduler over engines     core/scheduling.py, core/fleet.py
    sampler.build                   the very same call           core/grouping.py
    ToyModel.update                 DeepSpeed                    trainer/experience_maker.py, trainer/policy.py

It shows how things go, not what pays: compare samplers at equal answers drawn, not at equal steps. On this toy uniform
sampling is ahead then.
"""

from __future__ import annotations

import argparse

import numpy as np

from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.policies import Draw, Policy
from openrlhf_ada.core.types import Ledger, PromptPool, Sample, TrainingGroup

NUMBERS, DIGITS = 20, 10
"""Prompts are "what is the last digit of a + b?" for a and b below 20; answers are one digit."""

Prompt = tuple[int, int]


def right_answer(prompt: Prompt) -> int:
    return sum(prompt) % DIGITS


def score(prompt: Prompt, answer: int) -> float:
    """What decides how much is sampled, and here also the reward that is trained on."""
    return float(answer == right_answer(prompt))


class ToyModel:
    """A softmax over ten answers for each pair of last digits, so what is learnt carries over to other prompts."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.logits = rng.normal(size=(DIGITS, DIGITS, DIGITS))
        # A warm start: pass rates from nearly 0 to nearly 1, as those of a language model.
        for a in range(DIGITS):
            for b in range(DIGITS):
                self.logits[a, b, right_answer((a, b))] += rng.normal(0.0, 2.0)

    def probabilities(self, prompt: Prompt) -> np.ndarray:
        exponents = np.exp(self.logits[self._place(prompt)])
        return exponents / exponents.sum()

    def answer(self, prompt: Prompt, rng: np.random.Generator) -> int:
        return int(rng.choice(DIGITS, p=self.probabilities(prompt)))

    def update(self, trained: list[tuple[Prompt, int, float]], rate: float) -> None:
        """One step along the mean of coefficient x gradient of the answer's log-probability."""
        step = np.zeros_like(self.logits)
        for prompt, answer, coefficient in trained:
            gradient = -self.probabilities(prompt)
            gradient[answer] += 1.0
            step[self._place(prompt)] += coefficient * gradient
        self.logits += rate * step / len(trained)

    @staticmethod
    def _place(prompt: Prompt) -> tuple[int, int]:
        return prompt[0] % DIGITS, prompt[1] % DIGITS


def sample_pools(
    sampler: Policy, model: ToyModel, prompts: dict[int, Prompt], rng: np.random.Generator
) -> tuple[list[PromptPool], dict[int, list[int]]]:
    """Draw answers until the sampler has closed every prompt. Returns the pools, and the answers by prompt."""
    pools = {key: PromptPool(key, row=key) for key in prompts}
    answers: dict[int, list[int]] = {key: [] for key in prompts}
    still_open = dict(pools)
    while still_open:
        for action in sampler.decide(list(still_open.values())):
            if not isinstance(action, Draw):
                del still_open[action.key]
                continue
            pool, prompt = pools[action.key], prompts[action.key]
            drawn = [model.answer(prompt, rng) for _ in range(action.count)]
            scores = [score(prompt, answer) for answer in drawn]
            first = len(pool)
            pool.add(Sample(pool.key, first + i, s, s, num_tokens=1) for i, s in enumerate(scores))
            answers[pool.key] += drawn
    return list(pools.values()), answers


def train(flags: AdaConfig, *, n: int, steps: int, batch: int, rate: float, seed: int) -> None:
    """Train, and print every tenth step."""
    rng = np.random.default_rng(seed)
    everything = [(a, b) for a in range(NUMBERS) for b in range(NUMBERS)]
    order = rng.permutation(len(everything))
    held_out, prompts = [everything[i] for i in order[:100]], [everything[i] for i in order[100:]]
    model = ToyModel(rng)

    # 1. The flags of a run, with the defaults that depend on each other filled in, and checked.
    settings = resolve(flags, n=n, advantage="dr_grpo", batch=batch)
    check_settings(settings)
    # 2. What they describe: when to stop sampling a prompt, which answers to train, with which coefficients.
    sampler = make_policy(settings)

    ledger, drawn = Ledger(), 0
    for step in range(1, steps + 1):
        rows = rng.choice(len(prompts), size=batch, replace=False)
        of_step = {int(row): prompts[row] for row in rows}
        # 3. Sample each prompt for as long as the sampler wants.
        pools, answers = sample_pools(sampler, model, of_step, rng)
        # 4. Of each pool, the group that is trained. A coefficient is weight x advantage.
        groups: list[TrainingGroup] = [sampler.build(pool, rng) for pool in pools]
        trained = [
            (of_step[group.key], answers[group.key][index], coefficient)
            for group in groups
            for index, coefficient in zip(group.indices, group.coefficients, strict=True)
        ]
        # 5. One update of the model, and what the sampler remembers for later steps.
        model.update(trained, rate)
        sampler.observe(pools)
        # 6. Every answer that was drawn is accounted for.
        drawn += sum(map(len, answers.values()))
        for pool, group in zip(pools, groups, strict=True):
            ledger.record_group(pool.samples, group.indices)
        ledger.check(drawn=drawn)
        if step % 10 == 0 or step == 1:
            signal = sum(group.resolved for group in groups) / len(groups)
            print(
                f"step {step:3}: {drawn:6} answers drawn, {signal:4.0%} of the groups have signal, "
                f"held-out accuracy {accuracy(model, held_out):.1%}"
            )


def accuracy(model: ToyModel, prompts: list[Prompt]) -> float:
    """Of these prompts: the mean probability of the right answer."""
    return float(np.mean([model.probabilities(prompt)[right_answer(prompt)] for prompt in prompts]))


SAMPLERS = {
    "reinforce-ada-balance": AdaConfig(mode="seq", exit="balance", wave=8, max_samples=32),
    "uniform": AdaConfig(mode="seq", exit="fixed", max_samples=4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a toy model with adaptive sampling, in seconds.")
    parser.add_argument("--sampler", choices=SAMPLERS, default="reinforce-ada-balance")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train(SAMPLERS[args.sampler], n=4, steps=args.steps, batch=64, rate=20.0, seed=args.seed)


if __name__ == "__main__":
    main()
