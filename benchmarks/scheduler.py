"""What the schedulers gain: one Ada-Seq-balance step at equal pools, in virtual time and on the real vLLM.

Virtual time: 8 engines like a GPU's (memory-bound decoding, 256 slots, 8 to 22 ms a step), 512 prompts, waves of 8, at
most 32 rollouts, lognormal lengths up to 4096 tokens. Real: one vLLM engine on this machine's CPU, the same prompts
and the same seeds for every scheduler (benchmarks/scheduler_real.py).

    python benchmarks/scheduler.py [--quick] [--no-real]     last line: one JSON object; all in benchmarks/results/
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import machine

from openrlhf_ada.core.fleet import run
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.scheduling import SCHEDULERS, Request, Scheduler, SchedulerName
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.speculation import LEAST_CHANCE
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel, SampleOf, VirtualFleet
from openrlhf_ada.simulation.workload import SyntheticRollouts

HERE = Path(__file__).parent
NUM_ENGINES, NUM_PROMPTS, GROUP, WAVE, CAP = 8, 512, 4, 8, 32

PUBLISHED_RATIO = 2.8
"""Step time of Ada-Seq-balance by that of GRPO with n=4, 1.5B (Reinforce-Ada: 290 s by 102 s), scheduled in rounds."""


@dataclass(frozen=True)
class Workload:
    """Pass rates Beta(a, a). `shared`: share of the variance of log-length that a prompt's rollouts have in common."""

    a: float
    shared: float

    @property
    def name(self) -> str:
        return f"Beta({self.a:g}, {self.a:g}), {self.shared:.0%} of length by prompt"

    def answer(self, seed: int) -> SyntheticRollouts:
        return SyntheticRollouts(
            alpha=self.a, beta=self.a, median=500.0, spread=0.9, longest=4096, shared=self.shared, seed=seed
        )


HEADLINE = Workload(1.5, 0.0)
WORKLOADS = [
    HEADLINE,
    *(Workload(a, shared) for a in (0.8, 1.5, 3.0) for shared in (0.0, 0.5) if (a, shared) != (1.5, 0.0)),
]


def balance() -> Sequential:
    return Sequential(ExitRule(2, 2, 0.5), WAVE, CAP, _builder())


def uniform() -> Sequential:
    return Sequential(ExitRule(0, 0, 0.5), GROUP, GROUP, _builder())


def _builder() -> GroupBuilder:
    return GroupBuilder(Selection("balanced", GROUP, 0.5), "dr_grpo", "pool")


def pools(count: int) -> list[PromptPool]:
    return [PromptPool(key, row=key) for key in range(count)]


# -- virtual time -----------------------------------------------------------------------------------------------------


def simulate(workload: Workload, seeds: Sequence[int], least_chance: float = LEAST_CHANCE) -> dict[str, Any]:
    """Means over seeds, and the ratios that the targets are about."""
    cluster = Cluster(NUM_ENGINES, GPU_LIKE, GPU_LIKE.slots)
    results: dict[str, list[Forecast]] = {}
    work: list[float] = []
    floor: list[float] = []
    for seed in seeds:
        answer = workload.answer(seed)
        for name in SCHEDULERS:
            step = forecast(balance(), pools(NUM_PROMPTS), answer, name, cluster, least_chance=least_chance)
            results.setdefault(name, []).append(step)
        # The same pools under every scheduler.
        work.append(work_seconds(step.samples, answer, cluster))
        floor.append(floor_seconds(step.samples, cluster))
        results.setdefault("uniform", []).append(forecast(uniform(), pools(NUM_PROMPTS), answer, "rounds", cluster))
    seconds = {name: statistics.mean(step.seconds for step in steps) for name, steps in results.items()}
    stream = results["stream"]
    return {
        "workload": workload.name,
        "seconds": seconds,
        "rollouts_per_prompt": statistics.mean(step.rollouts for step in results["rounds"]) / NUM_PROMPTS,
        "stream_over_rounds": _ratio(results, "stream", "rounds"),
        "waves_over_rounds": _ratio(results, "waves", "rounds"),
        "stream_over_work": _mean_ratio(stream, work),
        "stream_over_floor": _mean_ratio(stream, floor),
        "waste_share": statistics.mean(step.waste_share for step in stream),
        "step_over_grpo": {name: step_ratio(seconds, name) for name in SCHEDULERS},
        "least_step_over_grpo": step_ratio(seconds | {"work": statistics.mean(work)}, "work"),
    }


def _ratio(results: dict[str, list[Forecast]], one: str, other: str) -> float:
    return statistics.mean(a.seconds / b.seconds for a, b in zip(results[one], results[other], strict=True))


def _mean_ratio(steps: Sequence[Forecast], bounds: Sequence[float]) -> float:
    return statistics.mean(step.seconds / bound for step, bound in zip(steps, bounds, strict=True))


def step_ratio(seconds: dict[str, float], name: str) -> float:
    """Whole step, training included, by GRPO's with n=4.

    Training takes the same in both, since as many rollouts are trained; how long follows from the published ratio,
    which was had with rounds: (rounds + T) / (uniform + T) = 2.8.
    """
    rounds, grpo = seconds["rounds"], seconds["uniform"]
    training = (rounds - PUBLISHED_RATIO * grpo) / (PUBLISHED_RATIO - 1)
    return (seconds[name] + training) / (grpo + training)


def work_seconds(samples: Sequence[Sample], answer: SampleOf, cluster: Cluster) -> float:
    """Seconds for the same pools if it were known from the start which rollouts are needed."""
    in_turn = sorted(samples, key=lambda sample: (sample.index, sample.key))
    return dealt_seconds(in_turn, lambda _: 1, answer, cluster)


def dealt_seconds(
    samples: Sequence[Sample], load: Callable[[Sample], int], answer: SampleOf, cluster: Cluster
) -> float:
    """Seconds of sampling these, all known from the start: each is dealt to the engine with the least load so far."""
    fleet = VirtualFleet(cluster.num_engines, cluster.model, answer)
    loads = [(0, engine) for engine in range(cluster.num_engines)]
    shares: list[list[Request]] = [[] for _ in loads]
    for sample in samples:
        so_far, engine = heapq.heappop(loads)
        shares[engine].append(Request(sample.key, sample.index))
        heapq.heappush(loads, (so_far + load(sample), engine))
    for engine, requests in enumerate(shares):
        fleet.submit(engine, requests)
    left = len(samples)
    while left:
        left -= len(fleet.wait())
    return fleet.now


def floor_seconds(samples: Sequence[Sample], cluster: Cluster) -> float:
    """A lower bound for every schedule of these rollouts: all slots always in use at the engine's best throughput, or
    the longest rollout alone on an engine."""
    steps = cluster.model.steps()
    best = min(seconds / running for running, seconds in enumerate(steps) if running)
    work = sum(sample.num_tokens for sample in samples) * best / cluster.num_engines
    return max(work, max(sample.num_tokens for sample in samples) * steps[1])


# -- what scheduling itself costs -------------------------------------------------------------------------------------


class TimedFleet(VirtualFleet):
    """Engines decode on while the driver thinks: its processor time, less the simulation itself, is virtual time."""

    def __init__(self, num_engines: int, model: EngineModel, answer: SampleOf) -> None:
        super().__init__(num_engines, model, answer)
        self.thinking = 0.0
        self.most_at_once = self._at_once = 0
        self._mark = time.thread_time()

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        self._think()
        self._at_once += len(requests)
        self.most_at_once = max(self.most_at_once, self._at_once)
        super().submit(engine, requests)
        self._mark = time.thread_time()

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        self._think()
        ended = {answer.request for answer in self._answers}
        super().abort(engine, [request for request in requests if request not in ended])
        self._mark = time.thread_time()

    def wait(self) -> Any:
        self._think()
        answers = super().wait()
        self._at_once -= len(answers)
        self._mark = time.thread_time()
        return answers

    def _think(self) -> None:
        elapsed = time.thread_time() - self._mark
        self.thinking += elapsed
        self.now += elapsed
        while (when := self._next_event()) is not None and when <= self.now:
            self._end_next()


def overhead(num_engines: int = 40, num_prompts: int = 2560) -> dict[str, float]:
    """10,240 slots, all in use until the tail."""
    answer = HEADLINE.answer(0)

    def makespan(fleet: VirtualFleet, name: SchedulerName = "stream") -> tuple[float, int]:
        scheduler = Scheduler[None](balance(), pools(num_prompts), name, least_chance=LEAST_CHANCE)
        run(scheduler, fleet, Cluster(num_engines, GPU_LIKE, GPU_LIKE.slots).limits)
        return fleet.now, scheduler.num_sent

    free, _ = makespan(VirtualFleet(num_engines, GPU_LIKE, answer))
    timed = TimedFleet(num_engines, GPU_LIKE, answer)
    costly, sent = makespan(timed)
    return {
        "outstanding": timed.most_at_once,
        "overhead_share": costly / free - 1,
        "processor_share": timed.thinking / costly,
        "us_per_rollout": timed.thinking / sent * 1e6,
    }


def _measure_real(*, quick: bool) -> dict[str, Any]:
    from scheduler_real import LONG, QUICK, SHORT, measure

    if quick:
        real = {"long": measure(QUICK, repeats=2, calibrates=False)}
    else:
        real = {
            "long": measure(LONG, repeats=4, calibrates=True),
            "short": measure(SHORT, repeats=3, calibrates=True),
        }
    print(json.dumps(real))
    return real


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, toy model only: under 5 minutes")
    parser.add_argument("--no-real", action="store_true", help="virtual time only")
    args = parser.parse_args()
    seeds = range(2 if args.quick else 5)
    simulated = [simulate(workload, seeds) for workload in (WORKLOADS[:1] if args.quick else WORKLOADS)]
    for row in simulated:
        print(json.dumps(row))
    chances = [] if args.quick else [
        {"least_chance": chance} | simulate(HEADLINE, seeds, chance) for chance in (0.05, 0.1, 0.2, 0.3, 0.5)
    ]  # fmt: skip
    costs = [overhead() for _ in range(3)]
    cost = {name: statistics.median(c[name] for c in costs) for name in costs[0]}
    print(json.dumps(cost))
    real = {} if args.no_real else _measure_real(quick=args.quick)
    figures = {
        "stream_over_rounds_sim": simulated[0]["stream_over_rounds"],
        "stream_over_rounds_real": real["long"]["stream_over_rounds"] if real else None,
        "stream_over_bound": simulated[0]["stream_over_work"],
        "waste_share": simulated[0]["waste_share"],
        "ada_over_grpo_step": simulated[0]["step_over_grpo"]["stream"],
        "overhead_share": cost["overhead_share"],
    }
    details = {"simulated": simulated, "least_chance": chances, "overhead": cost, "real": real}
    full = {"figures": figures, "engine": asdict(GPU_LIKE), "quick": args.quick, "machine": machine()} | details
    out = HERE / "results" / ("scheduler_quick.json" if args.quick else "scheduler.json")
    out.write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
