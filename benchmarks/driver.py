"""How many rollouts the process that samples can take, per second of one core: from a message to training.

All that the driver does with a rollout is real: Ray and its messages, `EngineConnections`, the scheduler and the
policy (balance, n = 4, M = 8, at most 32), groups, the ledger, the record, and the experience of what is trained. The
engines are stand-ins in Ray actors whose answers are ready at once, 64 to a message, or 16. A busy driver finds more
in each message, because engines gather while they wait for it: of 64 engines that give 10,000 rollouts a second, each
gathers 64 in 0.4 s. Lengths are lognormal with a mean of 730 tokens (as in scheduler.py), 128, or 4,096, with
log-probabilities.

Figures are processor time, medians over steps: of Python's thread, which limits the driver, and of the whole process
with the threads in which Ray receives messages. `us_not_kept` is Python's thread without the conversion of what is
trained.

    python benchmarks/driver.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from machine import machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from cases import sequential  # noqa: E402
from rollouts import settings  # noqa: E402

from openrlhf_ada.demo.toy import build_toy_model  # noqa: E402
from openrlhf_ada.platforms import without_gpu  # noqa: E402

GROUP, WAVE, CAP = 4, 8, 32
ENGINES = 4
MAX_LENGTH, PROMPT_TOKENS = 4608, 128
PROMPT = "how much is it? " * 30
SETTINGS = {
    "lognormal": (None, 64),
    "128": (128, 64),
    "4096": (4096, 64),
    "lognormal, messages of 128": (None, 128),
    "lognormal, messages of 16": (None, 16),
    "4096, messages of 16": (4096, 16),
}
"""Tokens of an answer, and answers to a message."""
MODEL = HERE.parent / ".cache" / "toy-model"
GENERATE = {"max_len": MAX_LENGTH, "max_new_tokens": 4096}


def answer_of(rng: np.random.Generator, length: int | None, *, is_right: bool) -> Any:
    """A rollout's answer as an engine's process has it; the response is like one of OpenRLHF's executor."""
    import torch

    from openrlhf_ada.core.scheduling import Request
    from openrlhf_ada.rollout.messages import Answer, result_of

    count = length or int(min(max(rng.lognormal(6.2, 0.9), 8), 4096))
    values = [0.0] * PROMPT_TOKENS + (-rng.random(count)).astype(np.float32).tolist()
    score = torch.tensor([float(is_right)])
    response = {
        "prompt": PROMPT, "label": "0.5", "images": None, "mm_train_inputs": None,
        "observation_tokens": rng.integers(1000, 150_000, PROMPT_TOKENS + count).tolist(),
        "action_ranges": [(PROMPT_TOKENS, PROMPT_TOKENS + count)], "rollout_log_probs": values,
        "truncated": count >= 4096, "reward": score, "scores": score, "extra_logs": {},
    }  # fmt: skip
    return Answer(Request(0, 0), count, (3, 3), "", result_of(response, max_length=MAX_LENGTH, logprobs=True))


def start_engines(length: int | None, message: int) -> list[Any]:
    """Actors with the calls of a rollout actor that the driver makes. Every answer is ready when it is asked for."""
    import ray

    class ReadyEngine:
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self._known = [[answer_of(rng, length, is_right=side) for _ in range(64)] for side in (False, True)]
            self._rng, self._ended, self._filled = rng, [], asyncio.Event()

        async def ready(self) -> str:
            return "this one"

        async def capacity(self) -> tuple[int, int]:
            return 1024, 256

        async def submit(self, jobs: Any, setup: Any) -> None:
            for job in jobs:
                answer = self._known[self._rng.random() < float(job.label)][int(self._rng.integers(64))]
                self._ended.append(answer._replace(request=job.request))
            self._filled.set()

        async def stop(self, requests: Any) -> None:
            """All have been sampled to the end."""

        async def answers(self, stops: Any, jobs: Any, setup: Any) -> Any:
            await self.submit(jobs, setup)
            while not self._ended:
                self._filled.clear()
                await self._filled.wait()
            found, self._ended = self._ended[:message], self._ended[message:]
            return found

    engines = [ray.remote(num_cpus=0)(ReadyEngine).remote() for _ in range(ENGINES)]
    ray.get([engine.ready.remote() for engine in engines])
    return engines


class Loader:
    """One episode of prompts of about 500 characters; the label is the prompt's pass rate."""

    def __init__(self, prompts: int, strategy: Any) -> None:
        from openrlhf.datasets import PromptDataset

        rates = np.random.default_rng(0).beta(1.5, 1.5, prompts)
        rows = [{"input": f"{i}: {PROMPT}", "label": f"{rate:.4f}"} for i, rate in enumerate(rates)]
        self.dataset = PromptDataset(rows, None, strategy)
        self.sampler = range(prompts)

    def __iter__(self) -> Any:
        return (self.dataset.collate_fn([self.dataset[i]]) for i in self.sampler)


def make_generator(engines: list[Any], prompts: int, steps: int) -> Any:
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from openrlhf_ada.core.batches import BatchPlan
    from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, SamplingOptions

    args = SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path=str(MODEL)),
        rollout=SimpleNamespace(batch_size=prompts, n_samples_per_prompt=GROUP, max_new_tokens=4096),
        train=SimpleNamespace(num_episodes=1, seed=0, agent_func_path=None),
        vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(advantage=SimpleNamespace(is_correction_level="token")),
        reward=SimpleNamespace(
            overlong_buffer_len=None,
            overlong_penalty_factor=1.0,
            stop_properly_penalty_coef=None,
            clip_range=(-10, 10),
        ),
        data=SimpleNamespace(max_len=MAX_LENGTH, input_key="input", label_key="label", disable_fast_tokenizer=False),
        ada=settings(scheduler="stream"),
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    host = SamplesGenerator(strategy, Loader(prompts * steps, strategy), None, None, engines)
    plan = BatchPlan(prompts, GROUP, prompts * GROUP, steps, 1)
    options = SamplingOptions(plan=plan, restore_engine=lambda engine: [])
    return AdaptiveSamplesGenerator(host, sequential(2, 2, n=GROUP, wave=WAVE, cap=CAP), options)


@contextmanager
def timed_conversion() -> Iterator[list[float]]:
    """Processor seconds that it takes to make experience of what is trained, by step."""
    from openrlhf_ada.rollout.records import Batch

    seconds: list[float] = []
    convert = Batch.samples

    def timed(*args: Any) -> Any:
        begun = time.thread_time()
        samples = convert(*args)
        seconds.append(time.thread_time() - begun)
        return samples

    Batch.samples = timed
    yield seconds
    Batch.samples = convert


def measure(engines: list[Any], prompts: int, steps: int, profile: cProfile.Profile | None) -> dict[str, float]:
    """Medians over the steps but the first."""
    generator = make_generator(engines, prompts, steps)
    with timed_conversion() as conversion:
        return _measure(generator, steps, profile, conversion)


def _measure(
    generator: Any, steps: int, profile: cProfile.Profile | None, conversion: list[float]
) -> dict[str, float]:
    rows: list[dict[str, float]] = []
    for step in range(steps):
        if profile is not None and step:
            profile.enable()
        begun, begun_main, begun_wall = time.process_time(), time.thread_time(), time.perf_counter()
        samples, *_ = generator.generate_samples(**GENERATE)
        seconds, main, wall = (
            time.process_time() - begun,
            time.thread_time() - begun_main,
            time.perf_counter() - begun_wall,
        )
        if profile is not None:
            profile.disable()
        drawn, kept = samples.ledger.drawn, samples.ledger.kept
        rows.append(
            {
                "us_python": 1e6 * main / drawn,
                "us_process": 1e6 * seconds / drawn,
                "us_not_kept": 1e6 * (main - conversion[-1]) / drawn,
                "us_more_if_kept": 1e6 * conversion[-1] / kept,
                "us_wall": 1e6 * wall / drawn,
                "drawn_per_kept": drawn / kept,
            }
        )
    return {name: statistics.median(row[name] for row in rows[1:]) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer prompts and steps")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    args = parser.parse_args()
    prompts, steps = (128, 4) if args.quick else (256, 6)
    without_gpu.activate()
    paths = [str(HERE), str(HERE.parent / "tests" / "support"), *sys.path]
    os.environ |= without_gpu.worker_environment() | {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    os.environ["OMP_NUM_THREADS"] = "1"
    import ray
    import torch

    torch.set_num_threads(1)
    ray.init(
        num_cpus=4, log_to_driver=False, include_dashboard=False,
        runtime_env={"worker_process_setup_hook": "openrlhf_ada.platforms.without_gpu.activate"},
    )  # fmt: skip
    build_toy_model(MODEL)
    results: dict[str, Any] = {}
    profile = cProfile.Profile() if args.profile else None
    for name, (length, message) in SETTINGS.items():
        engines = start_engines(length, message)
        results[name] = measure(engines, prompts, steps, profile if name == "lognormal" else None)
        print(name, {key: round(value, 1) for key, value in results[name].items()}, flush=True)
        for engine in engines:
            ray.kill(engine)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    figures: dict[str, Any] = {"rollouts_per_s": round(1e6 / results["lognormal"]["us_python"])}
    for figure in ("us_python", "us_process", "us_not_kept", "us_more_if_kept"):
        figures[figure] = {name: round(row[figure], 1) for name, row in results.items()}
    out = HERE / "results" / ("driver_quick.json" if args.quick else "driver.json")
    out.write_text(json.dumps({"figures": figures, "results": results, "machine": machine()}, indent=1) + "\n")
    print(json.dumps(figures))
    ray.shutdown()


if __name__ == "__main__":
    main()
