"""How even engines' loads should be: a step of Ada-Seq-balance in virtual time, prompts being short or long.

As benchmarks/scheduler.py, with engines of 1,024 slots. A prompt's prefill holds up its whole engine; further rollouts
on the same engine share it. *bound*: the same scheduler where requests move between engines at any moment for free, so
that all engines always have equally many, and prompts are prefilled once. *tail*: since when engines have fewer than
128 requests on average for good. *before*: a prompt stays on its first engine until that is full. Means over seeds.

    python benchmarks/balance.py [--quick]     last line: one JSON object; all in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from machine import machine
from scheduler import NUM_ENGINES, Workload, balance, pools

from openrlhf_ada.core import fleet
from openrlhf_ada.core.fleet import Aborted, DispatchLimits, Finished, run
from openrlhf_ada.core.scheduling import Request, Scheduler
from openrlhf_ada.core.speculation import GPU_SPECULATION, LEAST_CHANCE
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel, VirtualFleet

HERE = Path(__file__).parent
WORKLOAD = Workload(1.5, 0.5)
SEEDS = {128: 8, 512: 4, 2048: 2}
"""By number of prompts."""
PREFILL = {"128": 0.00128, "4,096": 0.041}
"""Seconds by tokens of a prompt, at 100,000 tokens a second."""
AHEAD = (4, 8, 16, 32, 64)
TAIL = 128

ENGINE = replace(GPU_LIKE, slots=1024)


class Former(fleet.Dispatcher[Any]):
    """A prompt stays on its first engine until that is full."""

    def __init__(self, of: fleet.Fleet[Any], slots: int) -> None:
        super().__init__(of, slots)
        self._slots, self._first = slots, dict[Any, int]()

    def _place(self, request: Request) -> int:
        engine = self._first.get(request.key)
        if engine is None or self._loads[engine] >= self._slots:
            engine = min(range(len(self._loads)), key=self._loads.__getitem__)
            self._first.setdefault(request.key, engine)
        self._engine_of[request] = engine
        self._loads[engine] += 1
        return engine


class WatchedFleet(VirtualFleet):
    """Knows when it last had `many` requests."""

    many = TAIL * NUM_ENGINES
    last_busy = 0.0
    outstanding = 0

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        self.outstanding += len(requests)
        super().submit(engine, requests)

    def wait(self) -> Sequence[Finished[None] | Aborted]:
        was_busy = self.outstanding >= self.many
        answers = super().wait()
        self.outstanding -= len(answers)
        if was_busy:
            self.last_busy = self.now
        return answers


def one_for_all(model: EngineModel, count: int) -> EngineModel:
    """Engines whose requests are always spread evenly."""
    return replace(
        model,
        batch_sizes=tuple(count * size for size in model.batch_sizes),
        slots=count * model.slots,
        prefill=model.prefill / count,
    )


def step(prompts: int, model: EngineModel, seed: int, *, engines: int = NUM_ENGINES) -> dict[str, float]:
    """Seconds of sampling, and those of its tail."""
    each = NUM_ENGINES // engines
    watched = WatchedFleet(engines, model, WORKLOAD.answer(seed))
    scheduler = Scheduler[None](balance(), pools(prompts), "stream", least_chance=LEAST_CHANCE)
    run(scheduler, watched, DispatchLimits(model.slots, GPU_SPECULATION * each))
    return {"step": watched.now, "tail": watched.now - watched.last_busy}


def means(*runs: dict[str, float]) -> dict[str, float]:
    return {name: statistics.mean(seen[name] for seen in runs) for name in runs[0]}


def compare(prompts: int, tokens: str) -> dict[str, Any]:
    model = replace(ENGINE, prefill=PREFILL[tokens])
    seeds = range(SEEDS[prompts])
    pooled = one_for_all(model, NUM_ENGINES)
    row: dict[str, Any] = {"prompts": prompts, "tokens": tokens}
    row["bound"] = means(*(step(prompts, pooled, seed, engines=1) for seed in seeds))
    rules = {"before": ("Dispatcher", Former), **{str(most): ("MOST_AHEAD", most) for most in AHEAD}}
    for name, (constant, value) in rules.items():
        with patch.object(fleet, constant, value):
            row[name] = means(*(step(prompts, model, seed) for seed in seeds))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="128 prompts only; nothing is saved")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for prompts in list(SEEDS)[: 1 if args.quick else None]:
        for tokens in PREFILL:
            rows.append(compare(prompts, tokens))
            print(json.dumps(rows[-1]), flush=True)
    figures = {
        f"{part}_over_bound_{name}": max(row[str(name)][part] / row["bound"][part] for row in rows)
        for part in ("step", "tail")
        for name in ("before", *AHEAD)
    }
    full = {"figures": figures | {"chosen": fleet.MOST_AHEAD}, "steps": rows, "machine": machine()}
    if not args.quick:
        (HERE / "results" / "balance.json").write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
