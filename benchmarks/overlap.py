"""What a synchronous step gains if closed groups are trained while stragglers still sample, in virtual time.

8 GPUs are shared by policy and engines in turns, or each has its own, split in the way that is best for that row.
Training is additive: gradients of closed groups can be computed early and the policy still changes only at the
optimizer step, so such a step is on-policy and exact. Seconds of training are those of
`openrlhf_ada/simulation/step_seconds.py`.

    python benchmarks/overlap.py     last line: one JSON object, which is also saved in benchmarks/results/overlap.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from machine import machine
from scheduler import (
    GROUP,
    HEADLINE,
    NUM_PROMPTS,
    balance,
    dealt_seconds,
    floor_seconds,
    pools,
    uniform,
    work_seconds,
)

from openrlhf_ada.core.fleet import Aborted, Finished, run
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import Request, Scheduler
from openrlhf_ada.core.speculation import LEAST_CHANCE
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.simulation.forecast import Cluster, forecast
from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, ENGINES, PROMPT_TOKENS, STEP_MODELS, StepModel
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, SampleOf, VirtualFleet

SEEDS = 5
FORWARD_SHARE = 0.2
"""Of the time of training: log-probabilities before training, 2 FLOPs per parameter and token beside 8."""

SPLITS = range(1, ENGINES + 1)
"""GPUs of the engines; all of them if shared."""

POLICIES = {"grpo-4": uniform, "balance": balance}


class _WatchedFleet(VirtualFleet):
    """Notes how many prompts are closed at each time that the driver looks."""

    def watch(self, scheduler: Scheduler[None]) -> None:
        self._scheduler = scheduler
        self.closed = [(0.0, 0)]

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        self._note()
        super().submit(engine, requests)

    def wait(self) -> Sequence[Finished[None] | Aborted]:
        self._note()
        return super().wait()

    def _note(self) -> None:
        if self._scheduler.num_closed > self.closed[-1][1]:
            self.closed.append((self.now, self._scheduler.num_closed))


def closing_times(policy: Policy, answer: SampleOf, engines: int) -> tuple[list[tuple[float, int]], float]:
    """([seconds, prompts closed by then], seconds of sampling) of one step with the scheduler `stream`."""
    fleet = _WatchedFleet(engines, GPU_LIKE, answer)
    state = Scheduler[None](
        policy, [PromptPool(key, row=key) for key in range(NUM_PROMPTS)], "stream", least_chance=LEAST_CHANCE
    )
    fleet.watch(state)
    run(state, fleet, Cluster(engines, GPU_LIKE, GPU_LIKE.slots).limits)
    return [*fleet.closed, (fleet.now, NUM_PROMPTS)], fleet.now


def end_of_work(closed: Sequence[tuple[float, int]], seconds: float) -> float:
    """When a worker that needs so many seconds for all prompts is done, if it takes each once it is closed."""
    return max(when + seconds * (1 - before / NUM_PROMPTS) for (_, before), (when, _) in pairwise(closed))


def steps_of(name: str, model: StepModel, seeds: int) -> dict[str, tuple[float, int]]:
    """(seconds of a step, GPUs of the engines) by arrangement: means over seeds, with the best split."""
    work = model.per_token * NUM_PROMPTS * GROUP * (PROMPT_TOKENS + ANSWER_TOKENS)
    runs = {n: [closing_times(POLICIES[name](), HEADLINE.answer(seed), n) for seed in range(seeds)] for n in SPLITS}
    shared = statistics.mean(model.sampling * seconds + work for _, seconds in runs[ENGINES])
    found = {"shared GPUs": (shared, ENGINES)}
    for engines in range(1, ENGINES):
        training = work * ENGINES / (ENGINES - engines)
        rows = [apart(closed, seconds, training, model.sampling) for closed, seconds in runs[engines]]
        for arrangement in rows[0]:
            mean = statistics.mean(row[arrangement] for row in rows)
            found[arrangement] = min(found.get(arrangement, (mean, engines)), (mean, engines))
    return {name: (round(seconds + model.fixed, 1), engines) for name, (seconds, engines) in found.items()}


def parts_of(name: str, model: StepModel, seeds: int) -> dict[str, float]:
    """Seconds of a step on shared GPUs: means over seeds."""
    seconds = [closing_times(POLICIES[name](), HEADLINE.answer(seed), ENGINES)[1] for seed in range(seeds)]
    training = model.per_token * NUM_PROMPTS * GROUP * (PROMPT_TOKENS + ANSWER_TOKENS)
    parts = {"sampling": model.sampling * statistics.mean(seconds), "training": training, "the rest": model.fixed}
    return {part: round(value, 1) for part, value in parts.items()}


def least_sampling(model: StepModel, seeds: int) -> dict[str, float]:
    """Seconds of sampling of `balance` on shared GPUs if more were known from the start: means over seeds."""
    cluster = Cluster(ENGINES, GPU_LIKE, GPU_LIKE.slots)
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        answer = HEADLINE.answer(seed)
        step = forecast(balance(), pools(NUM_PROMPTS), answer, "stream", cluster)
        found.setdefault("which rollouts are needed", []).append(work_seconds(step.samples, answer, cluster))
        found.setdefault("how long each is, too", []).append(longest_first(answer))
        found.setdefault("lower bound of every schedule", []).append(floor_seconds(step.samples, cluster))
    return {name: round(model.sampling * statistics.mean(seconds), 1) for name, seconds in found.items()}


def longest_first(answer: SampleOf) -> float:
    """Seconds of sampling what `balance` needs, dealt to the engines by length, the longest first."""
    cluster = Cluster(ENGINES, GPU_LIKE, GPU_LIKE.slots)
    state = Scheduler[None](balance(), pools(NUM_PROMPTS), "stream", least_chance=LEAST_CHANCE)
    closed = run(state, VirtualFleet(ENGINES, GPU_LIKE, answer), cluster.limits)
    samples = [sample for entry in closed for sample in entry.pool.samples]
    by_length = sorted(samples, key=lambda sample: -sample.num_tokens)
    return dealt_seconds(by_length, lambda sample: sample.num_tokens, answer, cluster)


def apart(closed: Sequence[tuple[float, int]], seconds: float, training: float, factor: float) -> dict[str, float]:
    """Seconds of sampling and training where each has its own GPUs. `factor`: on virtual seconds."""
    scaled, sampling = [(factor * when, count) for when, count in closed], factor * seconds
    forward = FORWARD_SHARE * training
    return {
        "apart": sampling + training,
        "apart, log-probabilities early": end_of_work(scaled, forward) + training - forward,
        "apart, gradients early": end_of_work(scaled, training),
        "apart, asynchronous": max(sampling, training),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed instead of five; nothing is saved")
    args = parser.parse_args()
    seeds = 1 if args.quick else SEEDS
    models = {"1.5B": STEP_MODELS["1.5b"], "7B": STEP_MODELS["7b"]}
    seconds = {size: {name: steps_of(name, model, seeds) for name in POLICIES} for size, model in models.items()}
    parts = {size: {name: parts_of(name, model, seeds) for name in POLICIES} for size, model in models.items()}
    least = {size: least_sampling(model, seeds) for size, model in models.items()}
    for size, by_method in seconds.items():
        print(f"\n{size:32}" + "".join(f"{name:>10}" for name in POLICIES) + "     ratio   GPUs of engines (balance)")
        for arrangement in by_method["balance"]:
            (plain, _), (adapted, engines) = (by_method[name][arrangement] for name in ("grpo-4", "balance"))
            print(f"{arrangement:32}{plain:8.0f} s{adapted:8.0f} s{adapted / plain:10.2f}   {engines} of {ENGINES}")
    result = {"machine": machine(), "seeds": seeds, "prompts": NUM_PROMPTS, "seconds_of_a_step": seconds}
    result |= {"parts_on_shared_gpus": parts, "least_sampling_of_balance": least}
    if not args.quick:
        file = Path(__file__).parent / "results" / "overlap.json"
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name != "machine"}))


if __name__ == "__main__":
    main()
