"""What our choices for vLLM on a CPU do: the engine's processes, its cache blocks, and a seed for every request.

64 answers of 16 tokens after prompts of 45, four answers a prompt, by engines with SmolLM2-135M in this process. All
variants are measured in turns, so that the machine's mood hits each alike; figures are medians without the first turn.

    python benchmarks/cpu_engine.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from machine import machine

from openrlhf_ada.demo.model import build_smollm2
from openrlhf_ada.platforms import without_gpu

HERE = Path(__file__).parent
ANSWERS, TOKENS, PROMPT, SHARING = 64, 16, 45, 4

ENGINES: dict[str, dict[str, Any]] = {
    "default": {},
    "worker process": {"distributed_executor_backend": "mp"},
    "blocks of 128": {"block_size": 128},
}
VARIANTS = {"default": ("default", True), "no seeds": ("default", False)} | {
    name: (name, True) for name in ENGINES if name != "default"
}
"""By name: which engine, and whether requests have seeds."""


async def start(model: str, changes: dict[str, Any]) -> tuple[Any, float]:
    """An engine as our runs start it, and after how many seconds it was there."""
    import vllm

    from openrlhf_ada.platforms.without_gpu.engine import cpu_engine_arguments

    host = {"model": model, "enable_prefix_caching": True, "max_model_len": 256}
    begun = time.monotonic()
    arguments = cpu_engine_arguments(host) | {"worker_extension_cls": ""} | changes
    engine = vllm.AsyncLLMEngine.from_engine_args(vllm.AsyncEngineArgs(**arguments))
    await engine.is_sleeping()
    return engine, time.monotonic() - begun


async def answer_all(engine: Any, turn: int, *, seeded: bool) -> float:
    import vllm

    async def answer(i: int) -> None:
        prompt = [(7 * (i // SHARING) + 3 * k + turn) % 1000 + 20 for k in range(PROMPT)]
        params = vllm.SamplingParams(
            max_tokens=TOKENS, min_tokens=TOKENS, temperature=1.0, seed=1000 * turn + i if seeded else None
        )
        async for _ in engine.generate(vllm.inputs.TokensPrompt(prompt_token_ids=prompt), params, f"{turn}-{i}"):
            pass

    begun = time.monotonic()
    await asyncio.gather(*map(answer, range(ANSWERS)))
    return time.monotonic() - begun


async def measure(model: str, turns: int) -> dict[str, dict[str, float]]:
    engines: dict[str, Any] = {}
    started: dict[str, float] = {}
    for name, changes in ENGINES.items():
        engines[name], started[name] = await start(model, changes)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(turns + 1):
        for number, (name, (engine, seeded)) in enumerate(VARIANTS.items()):
            seconds[name].append(await answer_all(engines[engine], 10 * turn + number, seeded=seeded))
    for engine in engines.values():
        engine.shutdown()
    medians = {name: statistics.median(of_turns[1:]) for name, of_turns in seconds.items()}
    return {"seconds": medians, "start_s": started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 turns instead of 9")
    args = parser.parse_args()
    without_gpu.activate()
    os.environ |= without_gpu.worker_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"}
    model = build_smollm2(HERE.parent / ".cache" / "smollm2-chat-model")
    figures = asyncio.run(measure(str(model), 3 if args.quick else 9))
    out = HERE / "results" / ("cpu_engine_quick.json" if args.quick else "cpu_engine.json")
    out.write_text(json.dumps({"figures": figures, "machine": machine()}, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
