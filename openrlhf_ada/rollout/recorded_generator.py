"""The host's generator that counts and remembers, for the record of a run."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_ada.core.types import Ledger
from openrlhf_ada.eval.held_out import HeldOut, PromptAnswers
from openrlhf_ada.host.generator import HostGenerator
from openrlhf_ada.host.tokenizer import SharedTokenizer
from openrlhf_ada.rollout.records import RolloutBatch


class RecordedGenerator(HostGenerator):
    """Counts what a batch cost (the host's filter may reject some of what was drawn) and remembers the last
    evaluation. It sends its tokenizer by name.
    """

    held_out: HeldOut

    def __init__(self, host: SamplesGenerator) -> None:
        tokenizer = SharedTokenizer(
            host.args.actor.model_name_or_path, use_fast=not host.args.data.disable_fast_tokenizer
        )
        super().__init__(host, tokenizer)
        self._processed: list[int] = []

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, float | None, int, bool]:
        """The host's batch with its ledger. What the host sampled ahead counts in the step that trains it."""
        self._processed = []
        before = _lengths(self.samples_ahead)
        samples, pass_rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        kept, ahead = _lengths(samples), _lengths(self.samples_ahead)
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

    def on_sample(self, experience: Experience) -> None:
        self._processed.append(int(experience.action_mask.sum()))

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """The host's; its samples come with a prompt's answers next to each other.

        Prompts with an answer without a score are left out of what is returned, of which the host takes means.
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


def _answers(samples: list[Experience]) -> PromptAnswers:
    return PromptAnswers(
        [float(sample.scores[0]) for sample in samples],
        _lengths(samples),
        [bool(sample.truncated[0]) for sample in samples],
    )
