"""OpenRLHF's classes: behind Ray's wrapping, and exchanged for ours while its own code runs.

Contract: test_openrlhf_facts.test_fact
Contract: test_openrlhf_objects.test_names_that_training_substitutes_are_the_hosts
Contract: test_openrlhf_objects.test_ray_classes_are_reached_for_subclassing
Contract: test_openrlhf_surface.test_attributes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


def unwrap_ray_class(actor_class: Any) -> type:
    """The plain class behind `@ray.remote class X`, for subclassing. Ray keeps it in the wrapper's metadata."""
    return actor_class.__ray_metadata__.modified_class


@contextmanager
def substituted(module: ModuleType, **replacements: Any) -> Iterator[None]:
    """Let OpenRLHF's functions find our classes under the names of its own, for the duration of a call: no argument,
    and no method to override, leads there."""
    originals = {name: getattr(module, name) for name in replacements}
    try:
        for name, value in replacements.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in originals.items():
            setattr(module, name, value)


def first_process(group: Any) -> Any:
    """The first actor of a `RayActorGroup`, whose own methods call all of its actors."""
    return group._actor_handlers[0]


def run_training(args: SimpleNamespace, trainer: Any, trainer_async: Any, engine: Any, **actors: Any) -> None:
    """Run OpenRLHF's `train(args)` with our Ray-wrapped trainers, engine and `actors`, by their names in its
    command-line module (such as CriticModelActor), in place of its own."""
    from openrlhf.cli import train_ppo_ray
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async
    from openrlhf.trainer.ray import vllm_engine

    with (
        substituted(ppo_trainer, PPOTrainer=trainer),
        substituted(ppo_trainer_async, PPOTrainerAsync=trainer_async),
        substituted(vllm_engine, RolloutRayActor=engine),
        substituted(train_ppo_ray, **actors),
    ):
        train_ppo_ray.train(args)
