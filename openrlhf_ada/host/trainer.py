"""OpenRLHF's trainers: the synchronous one, and the three actors of the asynchronous one.

Contract: test_openrlhf_facts.test_fact
Contract: test_openrlhf_objects.test_chat_templates_get_their_arguments
Contract: test_openrlhf_objects.test_names_that_training_substitutes_are_the_hosts
Contract: test_trackers.test_wandb_gets_flags_without_secrets
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from openrlhf.datasets import PromptDataset
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.utils.logging_utils import WandbLogger

from openrlhf_ada.config.passed_on import arguments_of
from openrlhf_ada.host.classes import substituted, unwrap_ray_class


class HostTrainer(BasePPOTrainer):
    """Mixed into a trainer of OpenRLHF."""

    def train_step_without_critic(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """OpenRLHF's training step for the policy alone; it would fit a critic that it knows of to advantages. Hidden
        for the call only: OpenRLHF saves its checkpoints by the same attribute."""
        group, self.critic_model_group = self.critic_model_group, None
        try:
            return super().train_step(rollout_samples, global_step)
        finally:
            self.critic_model_group = group


def _prompts(dataset: Any, tokenizer: Any, strategy: Any, **kwargs: Any) -> PromptDataset:
    """OpenRLHF's, which asks its tokenizer for nothing but prompts."""
    template = partial(tokenizer.apply_chat_template, **arguments_of(strategy.args.ada.chat_template_args))
    return PromptDataset(dataset, SimpleNamespace(apply_chat_template=template), strategy, **kwargs)


whole_prompts = substituted(ppo_trainer, PromptDataset=_prompts)
"""A decorator: OpenRLHF hands messages alone to a chat template; in this function, --ada_chat_template_args too."""


class HostSyncTrainer(unwrap_ray_class(ppo_trainer.PPOTrainer)):
    """The synchronous trainer."""

    __init__ = whole_prompts(unwrap_ray_class(ppo_trainer.PPOTrainer).__init__)


@contextmanager
def shown_in_wandb(shown: Callable[[SimpleNamespace], Mapping[str, Any]]) -> Iterator[None]:
    """Within the block, which creates a trainer, Weights & Biases gets `shown(args)` as the run's configuration.

    OpenRLHF would give it all flags, the key of Weights & Biases among them, as texts of nested namespaces.
    """

    def open_logger(args: SimpleNamespace) -> WandbLogger:
        # The logger reads `args.logger` for itself, and `args.__dict__` for the page.
        view = type("Flags", (), {"logger": property(lambda self: args.logger)})()
        vars(view).update(shown(args))
        return WandbLogger(view)

    with substituted(ppo_trainer, WandbLogger=open_logger):
        yield


class HostSamplingActor(unwrap_ray_class(ppo_trainer_async.GenerateSamplesActor)):
    """The asynchronous trainer's process that samples."""

    __init__ = whole_prompts(unwrap_ray_class(ppo_trainer_async.GenerateSamplesActor).__init__)

    def finish_evaluation(self, logs: dict[str, float]) -> dict[str, float]:
        """What is sent to the trainer of an evaluation with these figures. To be overridden."""
        return logs

    def _run_eval(self) -> dict[str, float]:
        """OpenRLHF's loop sends what this returns, and calls nothing else in between."""
        return self.finish_evaluation(super()._run_eval())


class HostAsyncTrainer(unwrap_ray_class(ppo_trainer_async.PPOTrainerAsync)):
    """The asynchronous trainer's coordinator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The constructor creates the other actors by their names in the module."""
        with substituted(ppo_trainer_async, **self.own_actors()):
            super().__init__(*args, **kwargs)

    def own_actors(self) -> dict[str, Any]:
        """Ray-wrapped actors by the name of OpenRLHF's in whose place they are started. To be overridden."""
        return {}
