"""The host's generator that counts and remembers, for the record of a run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_ada.core.types import Ledger
from openrlhf_ada.rollout.records import RolloutBatch
from openrlhf_ada.rollout.shared_tokenizer import SharedTokenizer

Scores = dict[str, list[list[float]]]
"""By datasource: for each prompt, the score of each of its answers (NaN where the reward function gave none)."""


class RecordedGenerator(SamplesGenerator):
    """Counts what a batch cost (the host's filter may reject some of what was drawn) and remembers the last
    evaluation's scores, for intervals. It sends its tokenizer by name.
    """

    eval_scores: Scores
    _sample_buffer: list[Experience]

    def __init__(self, host: SamplesGenerator) -> None:
        tokenizer = SharedTokenizer(
            host.args.actor.model_name_or_path, use_fast=not host.args.data.disable_fast_tokenizer
        )
        super().__init__(host.strategy, host.prompts_dataloader, host.eval_dataloader, tokenizer, host.vllm_engines)
        self._processed: list[int] = []
        # The host creates it in its first call.
        self._sample_buffer = []

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, float | None, int, bool]:
        """The host's batch with its ledger. What the host sampled ahead counts in the step that trains it."""
        self._processed = []
        before = _lengths(self._sample_buffer)
        samples, pass_rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        kept, ahead = _lengths(samples), _lengths(self._sample_buffer)
        rejected = len(self._processed) + len(before) - len(kept) - len(ahead)
        rejected_tokens = sum(self._processed) + sum(before) - sum(kept) - sum(ahead)
        ledger = Ledger(
            drawn=len(kept) + rejected,
            kept=len(kept),
            unused=rejected,
            drawn_tokens=sum(kept) + rejected_tokens,
            kept_tokens=sum(kept),
            unused_tokens=rejected_tokens,
        )
        return RolloutBatch(samples, ledger), pass_rate, consumed, exhausted

    def _process_response_into_experience(self, response: Any, **generate_kwargs: Any) -> Experience:
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        self._processed.append(int(experience.action_mask.sum()))
        return experience

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """The host's; its samples come with a prompt's answers next to each other."""
        samples = super().generate_eval_samples(**generate_kwargs)
        self._processed = []
        dataset = self.eval_dataloader.dataset
        sources = dict(zip(dataset.prompts, dataset.datasources, strict=True))
        per_prompt = generate_kwargs["n_samples_per_prompt"]
        self.eval_scores = defaultdict(list)
        for start in range(0, len(samples), per_prompt):
            group = samples[start : start + per_prompt]
            self.eval_scores[sources[group[0].prompts[0]]].append([_score(sample) for sample in group])
        return samples


def _lengths(samples: list[Experience]) -> list[int]:
    """Response tokens of each."""
    return [int(sample.action_mask.sum()) for sample in samples]


def _score(sample: Experience) -> float:
    return float("nan") if sample.scores is None else float(sample.scores[0])
