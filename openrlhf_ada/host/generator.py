"""OpenRLHF's generator of samples and its loader of prompts, with public names for what they keep to themselves.

Contract: test_openrlhf_facts.test_fact
Contract: test_openrlhf_objects.test_every_override_overrides_something
Contract: test_openrlhf_objects.test_loader_order_follows_the_seed
Contract: test_openrlhf_objects.test_row_numbers_pass_through_the_hosts_loader
"""

from __future__ import annotations

from functools import partial
from typing import Any

from openrlhf.trainer.ppo_utils import samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from torchdata.stateful_dataloader.sampler import RandomSampler
from vllm import SamplingParams

from openrlhf_ada.config.passed_on import arguments_of
from openrlhf_ada.host.classes import substituted


class HostGenerator(SamplesGenerator):
    """Takes the place of a generator that OpenRLHF has made, with another tokenizer."""

    def __init__(self, host: SamplesGenerator, tokenizer: Any) -> None:
        """OpenRLHF creates the list of samples ahead in its first call; here it is there before."""
        super().__init__(host.strategy, host.prompts_dataloader, host.eval_dataloader, tokenizer, host.vllm_engines)
        self._sample_buffer: list[Experience] = []

    @property
    def samples_ahead(self) -> list[Experience]:
        """Samples that wait for a later step."""
        return self._sample_buffer

    def restart_evaluation(self) -> None:
        """Let the next evaluation begin with the first prompt. OpenRLHF forgets how far it has come, but not where it
        fails to put a dead engine to sleep."""
        self._eval_dataloader_iter = None

    def _dispatch_prompts_to_vllm(
        self, prompts: list[str], labels: list[Any], *, seed: int | None = None, **generate_kwargs: Any
    ) -> list[Any]:
        """OpenRLHF makes the sampling parameters here, with neither a seed (`seed`: of an evaluation) nor stops."""
        params = partial(SamplingParams, seed=seed, **arguments_of(self.args.ada.sampling_args))
        with substituted(samples_generator, SamplingParams=params):
            return super()._dispatch_prompts_to_vllm(prompts, labels, **generate_kwargs)

    def on_sample(self, experience: Experience) -> None:
        """Called with each sample that OpenRLHF's own loop has read. To be overridden."""

    def _process_response_into_experience(self, response: Any, **generate_kwargs: Any) -> Experience:
        """OpenRLHF's loop calls it for each response, rejected ones too. Its length is its sampled tokens: OpenRLHF's
        has what others tell between turns."""
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        experience.response_length = experience.action_mask.sum(dim=-1)
        self.on_sample(experience)
        return experience


def number_rows(dataset: Any) -> None:
    """Let every row of a `PromptDataset` carry its position through OpenRLHF's loader, in the place of its datasource,
    which training ignores."""
    dataset.datasources = list(range(len(dataset)))


def seed_order(loader: Any, seed: int) -> None:
    """Let the next iteration of OpenRLHF's loader be in the order of this seed, unless its state is restored. A
    shuffling sampler has a generator of its own, seeded at random when it was made."""
    if isinstance(loader.sampler, RandomSampler):
        loader.sampler.generator.manual_seed(seed)
