"""What a rollout actor's own process spends on each sampled token: vLLM's output processor, without engine or GPU.

vLLM samples in processes of its own. What they have sampled goes through one Python loop of the actor's process, token
by token: at 25 us per token, 40,000 tokens a second are a whole core. 256 answers of 512 tokens of our README, with
SmolLM2's tokenizer; with our settings (rollout/tracked_engine.py) and with those of OpenRLHF. Processor time (others
use the machine too), medians of nine turns.

    python benchmarks/engine_host.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from openrlhf_ada.demo.model import build_smollm2
from openrlhf_ada.platforms import without_gpu

HERE = Path(__file__).parent
ANSWERS, TOKENS, PROMPT = 256, 512, 128


@dataclass(frozen=True)
class Setting:
    """`ours`: what rollout/tracked_engine.py asks for, and no statistics. `logprobs`: are they needed?"""

    ours: bool
    logprobs: bool


SETTINGS = {
    "us_per_token": Setting(ours=True, logprobs=False),
    "us_per_token_logprobs": Setting(ours=True, logprobs=True),
    "us_per_token_host": Setting(ours=False, logprobs=False),
    "us_per_token_logprobs_host": Setting(ours=False, logprobs=True),
}


def steps_of(setting: Setting, sampled: np.ndarray) -> list[list[Any]]:
    """What vLLM's core sends, step by step. `sampled`: [answers, tokens]."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.outputs import LogprobsLists

    columns = 1 if setting.ours else 2
    steps = []
    for step in range(TOKENS):
        ids = np.repeat(sampled[:, step : step + 1], columns, axis=1).astype(np.int32)
        found = LogprobsLists(ids, np.full((ANSWERS, columns), -1.5, np.float32), np.ones(ANSWERS, np.int32))
        end = FinishReason.LENGTH if step == TOKENS - 1 else None
        steps.append(
            [
                EngineCoreOutput(
                    request_id=f"{i}-inside",
                    new_token_ids=[int(sampled[i, step])],
                    new_logprobs=found.slice_request(i, 1) if setting.logprobs else None,
                    finish_reason=end,
                )
                for i in range(ANSWERS)
            ]
        )
    return steps


class Collected(list[Any]):
    """In place of vLLM's queue to the waiting task."""

    def put(self, output: Any) -> None:
        self.append(output)


def add_requests(processor: Any, setting: Setting, sampled: np.ndarray) -> Collected:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest

    from openrlhf_ada.rollout.tracked_engine import ask_for_tokens_only

    collected = Collected()
    for i in range(ANSWERS):
        params = SamplingParams(
            max_tokens=TOKENS,
            logprobs=1 if setting.logprobs else None,
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        if setting.ours:
            ask_for_tokens_only(params)
        request = EngineCoreRequest(
            request_id=f"{i}-inside",
            external_req_id=str(i),
            prompt_token_ids=sampled[i, :PROMPT].tolist(),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        processor.add_request(request, None, queue=collected)
    return collected


def measure(setting: Setting, tokenizer: Any, sampled: np.ndarray) -> tuple[float, list[Any]]:
    """Processor seconds per token in vLLM's output processor, and the answers."""
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.metrics.stats import IterationStats

    has_statistics = not setting.ours
    processor = OutputProcessor(tokenizer, log_stats=has_statistics)
    collected = add_requests(processor, setting, sampled)
    steps = steps_of(setting, sampled)
    begun = time.thread_time()
    for outputs in steps:
        statistics_of_step = IterationStats() if has_statistics else None
        processor.process_outputs(outputs, time.monotonic(), statistics_of_step)
    seconds = time.thread_time() - begun
    if len(collected) != ANSWERS or processor.has_unfinished_requests():
        raise RuntimeError(f"{len(collected)} of {ANSWERS} answers ended")
    return seconds / (ANSWERS * TOKENS), list(collected)


def read(answers: list[Any], *, logprobs: bool) -> float:
    """Processor seconds per token of what OpenRLHF's executor does with the log-probabilities."""
    begun = time.thread_time()
    for answer in answers:
        completion = answer.outputs[0]
        if logprobs:
            values = []
            for token, of_position in zip(completion.token_ids, completion.logprobs, strict=True):
                values.append(of_position.get(token).logprob)
    return (time.thread_time() - begun) / (ANSWERS * TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 turns instead of 9")
    args = parser.parse_args()
    without_gpu.activate()
    from vllm.tokenizers import get_tokenizer

    model = build_smollm2(HERE.parent / ".cache" / "smollm2-chat-model")
    tokenizer = get_tokenizer(str(model))
    text = tokenizer.encode((HERE.parent / "README.md").read_text())
    sampled = np.array([[text[(31 * i + k) % len(text)] for k in range(TOKENS)] for i in range(ANSWERS)])
    seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    reading: dict[str, list[float]] = {name: [] for name in SETTINGS}
    # In turns, so that the machine's mood hits each alike.
    for _ in range(3 if args.quick else 9):
        for name, setting in SETTINGS.items():
            of_turn, answers = measure(setting, tokenizer, sampled)
            seconds[name].append(of_turn)
            reading[name].append(read(answers, logprobs=setting.logprobs))
    figures = {name: round(1e6 * statistics.median(turns), 2) for name, turns in seconds.items()}
    figures |= {
        f"reading_{name}": round(1e6 * statistics.median(reading[name]), 2)
        for name in ("us_per_token_logprobs", "us_per_token_logprobs_host")
    }
    out = HERE / "results" / ("engine_host_quick.json" if args.quick else "engine_host.json")
    turns_us = {name: [round(1e6 * s, 3) for s in turns] for name, turns in seconds.items()}
    out.write_text(json.dumps({"figures": figures, "turns": turns_us, "machine": machine()}, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
