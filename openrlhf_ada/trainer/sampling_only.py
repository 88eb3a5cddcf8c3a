"""Sampling without training: an engine and a generator as a run would start them, to be measured."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.cli import train_ppo_ray as host
from openrlhf.trainer.ppo_trainer import prepare_datasets
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import SamplingParams

from openrlhf_ada.config.passed_on import arguments_of
from openrlhf_ada.host.engine import create_engines
from openrlhf_ada.host.tokenizer import SharedTokenizer
from openrlhf_ada.host.trainer import whole_prompts
from openrlhf_ada.reward.reward_function import Grading
from openrlhf_ada.rollout.answering import AnswerSampler
from openrlhf_ada.rollout.calibration import Calibrator
from openrlhf_ada.rollout.engine import SamplingSetup, rollout_actor
from openrlhf_ada.rollout.engine_starts import watched_starts
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator
from openrlhf_ada.simulation.virtual_engines import EngineModel
from openrlhf_ada.trainer.sampling import make_generator

RESTARTS = 3
"""How often an engine that dies is started again."""


def calibrate(args: SimpleNamespace, on_progress: Callable[[int, int], None]) -> EngineModel:
    """Measure one engine with these flags, model and data; Ray must be initialised."""
    return Calibrator(start_sampling(args), generate_kwargs(args)).measure(on_progress)


def generate_kwargs(args: SimpleNamespace) -> dict[str, Any]:
    """What OpenRLHF's trainers hand to their generator."""
    return {
        "max_len": args.data.max_len,
        "max_new_tokens": args.rollout.max_new_tokens,
        "temperature": args.rollout.temperature,
        "top_p": args.rollout.top_p,
    }


def start_sampling(args: SimpleNamespace) -> AdaptiveSamplesGenerator:
    """One engine with the model as it is, and its generator; Ray must be initialised."""
    strategy: Any = host.get_strategy(args)
    logprobs = args.algo.advantage.is_correction_level != "off"
    engines = _start_engines(args, 1, logprobs=logprobs, restarts=0)
    tokenizer = SharedTokenizer(args.actor.model_name_or_path, use_fast=not args.data.disable_fast_tokenizer)
    loader, _, _ = whole_prompts(prepare_datasets)(strategy, tokenizer.load())
    generator = make_generator(
        SamplesGenerator(strategy, loader, None, tokenizer, engines),
        prompt_values=None,
        restore_engine=lambda engine: [],
    )
    if not isinstance(generator, AdaptiveSamplesGenerator):
        raise TypeError("only the adaptive modes sample like this, and --ada_mode is off")
    return generator


def start_answering(
    args: SimpleNamespace, *, sampling: dict[str, Any], grading: Grading, timeout_s: float, note: Callable[[str], None]
) -> AnswerSampler:
    """All engines with the model as it is, and what samples answers on them; Ray must be initialised.

    `sampling`: temperature, top_p, top_k, max_new_tokens, max_len, seed and what ends an answer.
    """
    with watched_starts(args.vllm.num_engines, note):
        engines = _start_engines(args, args.vllm.num_engines, logprobs=True, restarts=RESTARTS, grading=grading)
    tokenizer = SharedTokenizer(args.actor.model_name_or_path, use_fast=not args.data.disable_fast_tokenizer)
    params = SamplingParams(
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=sampling["top_k"],
        max_tokens=sampling["max_new_tokens"],
        skip_special_tokens=False,
        logprobs=1,
        **arguments_of(sampling["sampling_args"]),
    )
    setup = SamplingSetup(params, sampling["max_len"], tokenizer, timeout_s)
    return AnswerSampler(engines, setup, tokenizer.load(), sampling["seed"], note)


def _start_engines(args: SimpleNamespace, count: int, *, logprobs: bool, **settings: Any) -> list[Any]:
    ours = {"trusts_model_code": args.ada.trust_remote_code, "engine_args": args.ada.engine_args}
    engines = create_engines(
        rollout_actor(**settings, **ours),
        count,
        args.vllm.tensor_parallel_size,
        args.actor.model_name_or_path,
        args.train.seed,
        args.train.full_determinism_enable,
        args.vllm.enable_prefix_caching,
        args.vllm.enforce_eager,
        args.data.max_len,
        gpu_memory_utilization=args.vllm.gpu_memory_utilization,
        logprobs_mode="processed_logprobs" if logprobs else None,
        agent_func_path=args.train.agent_func_path,
        remote_rm_url=args.reward.remote_url,
        max_images_per_prompt=args.data.max_images_per_prompt,
    )
    ray.get([engine.serve_from_disk.remote() for engine in engines])
    return engines
