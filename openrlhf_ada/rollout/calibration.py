"""Measures how long a real engine takes, rewards, tokenisation and driver included."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import ray

from openrlhf_ada.core.fleet import Finished, Fleet
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey
from openrlhf_ada.rollout.prompts import take_prompts
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator
from openrlhf_ada.simulation.virtual_engines import EngineModel

REPEATS = 3
SHARING = 8
"""Rollouts per prompt in the batches that measure shared prefixes."""
LONGEST_S = 20.0
"""Seconds. Larger batches, which would take longer, are extrapolated."""
MOST_TOKENS = 64
SLOW_S = 2.0
"""Seconds. A batch that takes longer is measured once, because noise is small in comparison."""


class Calibrator:
    """Measures the first engine of a generator, with the prompts of its data.

    All rollouts of a batch have the same, forced length. Two lengths are measured, which gives the time per token and
    the time per rollout.
    """

    def __init__(self, generator: AdaptiveSamplesGenerator, generate_kwargs: dict[str, Any]) -> None:
        self._generator = generator
        self._kwargs = generate_kwargs
        self._engine = generator.vllm_engines[0]
        self._slots, self._speculation = ray.get(self._engine.capacity.remote())
        self._prompts, _ = take_prompts(iter(generator.prompts_dataloader), self._slots, 0)
        self._keys: Iterator[PromptKey] = count()
        longest = max(self._num_tokens(prompt.prompt) for prompt in self._prompts)
        room = min(generate_kwargs["max_len"] - longest, MOST_TOKENS)
        self._lengths = (max(room // 4, 1), room)
        if room < 2:
            raise ValueError(f"prompts of up to {longest} tokens leave no room for answers: raise --data.max_len")

    def measure(self, on_progress: Callable[[int, int], None]) -> EngineModel:
        """Takes minutes on a CPU. `on_progress` gets the batch size that is measured, and the largest possible."""
        short, long = self._lengths
        self._median_seconds(4, short)  # warm-up
        sizes: list[int] = []
        steps: list[float] = []
        alone: list[float] = []
        shared: list[float] = []
        for size in (1 << power for power in range(int(math.log2(self._slots)) + 1)):
            on_progress(size, self._slots)
            brief, lengthy = self._median_seconds(size, short), self._median_seconds(size, long)
            sizes.append(size)
            steps.append(max((lengthy - brief) / (long - short), 1e-6))
            alone.append(brief - short * steps[-1])
            shared.append(self._median_seconds(size, short, sharing=SHARING) - short * steps[-1])
            if 2 * lengthy > LONGEST_S and len(sizes) > 1:
                break
        prefill, latency = fit_line(sizes, alone)
        groups = [math.ceil(size / SHARING) for size in sizes]
        rest = [(t - latency - prefill * g) / (b - g) for t, g, b in zip(shared, groups, sizes, strict=True) if b > g]
        return EngineModel(
            batch_sizes=tuple(sizes),
            # A larger batch never takes less time; if it was measured so, that is noise.
            step_seconds=tuple(np.maximum.accumulate(steps).tolist()),
            slots=self._slots,
            prefill=prefill,
            shared_prefill=max(statistics.median(rest), 0.0) if rest else prefill,
            latency=latency,
            speculation=self._speculation,
        )

    def _median_seconds(self, size: int, tokens: int, *, sharing: int = 1) -> float:
        """Median time of a batch of rollouts from its submission to its last score."""
        first = self._time_batch(size, tokens, sharing)
        if first > SLOW_S:
            return first
        return statistics.median([first, *(self._time_batch(size, tokens, sharing) for _ in range(REPEATS - 1))])

    def _time_batch(self, size: int, tokens: int, sharing: int) -> float:
        ray.get(self._engine.reset_prefix_cache.remote())
        prompts = [self._prompts[i % len(self._prompts)] for i in range(math.ceil(size / sharing))]
        visits = {next(self._keys): prompt for prompt in prompts}
        requests = [Request(key, index) for key in visits for index in range(sharing)][:size]
        fleet: Fleet[Any] = self._generator.fleet(
            visits, self._kwargs | {"max_new_tokens": tokens, "min_new_tokens": tokens}
        )
        start = time.monotonic()
        fleet.submit(0, requests)
        left = size
        while left:
            for event in fleet.wait():
                if not isinstance(event, Finished):
                    raise RuntimeError(f"a rollout got no score, so its time says nothing: {event}")
                left -= 1
        return time.monotonic() - start

    def _num_tokens(self, prompt: str) -> int:
        return len(self._generator.tokenizer.load()(prompt)["input_ids"])


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(slope, intercept) of seconds over sizes, neither below 0; large batches count by their relative error."""
    x, y = np.asarray(sizes, dtype=float), np.asarray(seconds)
    slope, intercept = np.polyfit(x, y, 1, w=1.0 / np.maximum(y, 1e-3))
    if intercept < 0:
        return max(float((x * y).sum() / (x * x).sum()), 0.0), 0.0
    return max(float(slope), 0.0), float(intercept)
