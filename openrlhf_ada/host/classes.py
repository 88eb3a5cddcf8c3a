"""OpenRLHF's classes: behind Ray's wrapping, and exchanged for ours while its own code runs."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


def unwrap_ray_class(actor_class: Any) -> type:
    """The plain class behind `@ray.remote class X`, for subclassing."""
    return actor_class.__ray_metadata__.modified_class


@contextmanager
def substituted(module: ModuleType, **replacements: Any):
    """Let the host use our subclasses where it names its own, for the duration of a call."""
    originals = {name: getattr(module, name) for name in replacements}
    try:
        for name, value in replacements.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in originals.items():
            setattr(module, name, value)


def run_training(args: SimpleNamespace, trainer: Any, trainer_async: Any, **actors: Any) -> None:
    """Run the host's `train(args)`, with our Ray-wrapped trainers in place of its own.

    `actors` replaces names in the host's command-line module, such as CriticModelActor.
    """
    from openrlhf.cli import train_ppo_ray
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async

    with (
        substituted(ppo_trainer, PPOTrainer=trainer),
        substituted(ppo_trainer_async, PPOTrainerAsync=trainer_async),
        substituted(train_ppo_ray, **actors),
    ):
        train_ppo_ray.train(args)
