"""The generator that the flags ask for, in whichever process it runs."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from openrlhf.datasets.utils import blending_datasets
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_ada.config.choosing import check_candidates, make_chooser
from openrlhf_ada.config.host_values import batch_plan, scored_by_model
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.fleet import sampling_progress
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.data.prepared import DRAWS, POSITIVES
from openrlhf_ada.host.classes import first_process
from openrlhf_ada.rollout.engine_connections import Restore
from openrlhf_ada.rollout.ray_fleet import ScoreAnswers
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, PromptValues, SamplingOptions
from openrlhf_ada.trainer.recorder import emit, note


def make_generator(
    host: SamplesGenerator,
    *,
    prompt_values: PromptValues | None,
    restore_engine: Restore,
    score: ScoreAnswers | None = None,
) -> RecordedGenerator:
    """In place of OpenRLHF's own. Mode off: OpenRLHF's generator, which then also counts.

    `score`: asks the reward model, in a run that has one.
    """
    args = host.args
    settings: Settings = args.ada
    if settings.mode == "off":
        return RecordedGenerator(host)
    policy, num_prompts = make_policy(settings), len(host.prompts_dataloader.dataset)
    check_candidates(settings, args.rollout.batch_size, num_prompts)
    options = SamplingOptions(
        plan=batch_plan(args, settings),
        prompt_values=prompt_values,
        restore_engine=restore_engine,
        known_counts=known_counts(host) if settings.known_counts else None,
        threshold=score_threshold(settings),
        score=score if scored_by_model(args) else None,
        on_progress=sampling_progress(partial(emit, args, "sampling"), time.monotonic),
        on_note=partial(note, args),
        chooser=make_chooser(settings, policy, num_prompts, args.train.seed) if settings.chooses else None,
    )
    return AdaptiveSamplesGenerator(host, policy, options)


def score_threshold(settings: Settings) -> ScoreThreshold | None:
    """What makes scores of raw scores; None where they are in [0, 1] already."""
    if settings.scores == "unit":
        return None
    start: Any = settings.positive_threshold
    return ScoreThreshold(start, settings.positive_quantile)


def known_counts(host: SamplesGenerator) -> tuple[list[int], list[int]]:
    """Columns ada_draws and ada_positives of the training data, in the order of OpenRLHF's data set."""
    args = host.args
    data = blending_datasets(
        args.data.prompt_dataset,
        args.data.prompt_probs,
        host.strategy,
        args.train.seed,
        max_count=args.data.max_samples,
        dataset_split=args.data.prompt_split,
    )
    rows = data.select(range(min(args.data.max_samples, len(data))))
    expected = len(host.prompts_dataloader.dataset)
    if len(rows) != expected:
        raise RuntimeError(f"the data has {len(rows)} rows with counts, and {expected} prompts")
    return list(rows[DRAWS]), list(rows[POSITIVES])


def restore_engine(policy: Any, engine: int, *, rank_0_only: bool) -> list[Any]:
    """Let the policy, a Ray group, give one engine its weights: all of its processes, which may hold them in parts.

    `rank_0_only`: the first alone, which must have them whole. While others let the processes train, they might get
    the two calls in different orders.
    """
    if rank_0_only:
        return [first_process(policy).restore_engine.remote(engine, alone=True)]
    return policy.async_run_method(method_name="restore_engine", engine=engine)


def eval_arguments(args: Any, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What OpenRLHF's generator takes for an evaluation."""
    return generate_kwargs | {
        "temperature": args.eval.temperature,
        "n_samples_per_prompt": args.eval.n_samples_per_prompt,
    }


def optimizer_steps(args: Any, num_prompts: int, host_steps: int) -> int:
    """Optimiser steps of the whole run, for the learning-rate schedule. `num_prompts`: of one episode.

    OpenRLHF counts whole batches per episode; in an adaptive mode an episode's rest is trained in the next one.
    """
    if args.ada.mode == "off":
        return host_steps
    return batch_plan(args, args.ada).optimizer_steps(num_prompts * args.train.num_episodes) * args.train.max_epochs


def training_steps(args: Any, num_prompts: int) -> int:
    """Rollout batches in the whole run, at most (refilling takes prompts too)."""
    if args.ada.mode == "off":
        return -(-num_prompts // args.rollout.batch_size) * args.train.num_episodes
    return batch_plan(args, args.ada).steps(num_prompts * args.train.num_episodes)
