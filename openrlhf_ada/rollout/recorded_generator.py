"""OpenRLHF's generator that counts and remembers, for the record of a run."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_ada.core.types import Ledger
from openrlhf_ada.eval.held_out import HeldOut
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.host.generator import HostGenerator
from openrlhf_ada.host.tokenizer import SharedTokenizer
from openrlhf_ada.reward.reward_function import short
from openrlhf_ada.rollout.records import RolloutBatch


class RecordedGenerator(HostGenerator):
    """Counts what a batch cost (OpenRLHF's filter may reject some of what was drawn) and remembers the last
    evaluation. It sends its tokenizer by name."""

    held_out: HeldOut

    def __init__(self, host: SamplesGenerator) -> None:
        tokenizer = SharedTokenizer(
            host.args.actor.model_name_or_path, use_fast=not host.args.data.disable_fast_tokenizer
        )
        super().__init__(host, tokenizer)
        self._processed: list[Experience] = []

    def restore(self, states: dict[str, Any]) -> None:
        """Go on from a checkpoint's states (or from OpenRLHF's initial ones). Mode off has none of its own."""

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, float | None, int, bool]:
        """OpenRLHF's batch with its ledger. What OpenRLHF sampled ahead counts in the step that trains it.

        Raises ValueError for a reward that is not finite: OpenRLHF would clip it, or train on nothing but it.
        """
        self._processed = []
        before = _lengths(self.samples_ahead)
        samples, pass_rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        _check_rewards(samples)
        kept, ahead = _lengths(samples), _lengths(self.samples_ahead)
        # What was sampled ahead before, and now, but for what waits.
        drawn = before + _lengths(self._processed)
        count, tokens = len(drawn) - len(ahead), sum(drawn) - sum(ahead)
        ledger = Ledger(
            drawn=count,
            kept=len(kept),
            unused=count - len(kept),
            drawn_tokens=tokens,
            kept_tokens=sum(kept),
            unused_tokens=tokens - sum(kept),
        )
        # With what OpenRLHF's filter has rejected; of a batch that was sampled ahead, its own.
        accuracy = _accuracy(self._processed or samples)
        self._processed = []
        return RolloutBatch(samples, ledger, accuracy=accuracy), pass_rate, consumed, exhausted

    def on_sample(self, experience: Experience) -> None:
        self._processed.append(experience)

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """OpenRLHF's; its samples come with a prompt's answers next to each other.

        Prompts with an answer without a score are left out of what is returned, of which OpenRLHF takes means.
        Answers are seeded by prompt and index: the same policy answers alike in every run, and at every step.
        """
        samples = super().generate_eval_samples(seed=self.args.train.seed, **generate_kwargs)
        self._processed = []
        dataset = self.eval_dataloader.dataset
        # Several sources may have the same prompt.
        sources: dict[str, list[str]] = {}
        for prompt, source in zip(dataset.prompts, dataset.datasources, strict=True):
            sources.setdefault(prompt, []).append(source)
        per_prompt = generate_kwargs["n_samples_per_prompt"]
        self.held_out = HeldOut(per_prompt)
        complete: list[Experience] = []
        for start in range(0, len(samples), per_prompt):
            group = samples[start : start + per_prompt]
            known = [sample for sample in group if sample.scores is not None and sample.rewards is not None]
            self.held_out.no_score += len(group) - len(known)
            source = sources[group[0].prompts[0]].pop(0)
            if known:
                self.held_out.by_source.setdefault(source, []).append(_answers(known))
            if len(known) == len(group):
                complete += group
        return complete


def _lengths(samples: list[Experience]) -> list[int]:
    """Response tokens of each."""
    return [int(sample.action_mask.sum()) for sample in samples]


def _check_rewards(samples: list[Experience]) -> None:
    for sample in samples:
        if sample.rewards is not None and not sample.rewards.isfinite().all():
            raise ValueError(
                f"an answer to the prompt {short(sample.prompts[0])} (label {sample.labels[0]!r}) has reward "
                f"{sample.rewards.tolist()}, expected a finite number. Fix the reward function"
            )


def _accuracy(samples: list[Experience]) -> float | None:
    """Mean score; None where one is missing or outside of [0, 1]."""
    scores = [math.nan if sample.scores is None else float(sample.scores[0]) for sample in samples]
    return statistics.fmean(scores) if scores and all(0.0 <= score <= 1.0 for score in scores) else None


def _answers(samples: list[Experience]) -> Answered:
    return Answered(
        [float(sample.scores[0]) for sample in samples],
        _lengths(samples),
        [bool(sample.truncated[0]) for sample in samples],
    )
