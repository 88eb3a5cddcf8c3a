"""From checked flags to a running job: platform, Ray, and the host's own `train`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from openrlhf_ada.upstream import run_training


def train(args: SimpleNamespace) -> None:
    """Run the host's training with our trainer; Ray must be initialised."""
    from openrlhf_ada.trainer.ppo_trainer import RayAdaPPOTrainer

    actors: dict[str, Any] = {}
    if args.ada.mode != "off" and args.algo.advantage.estimator == "gae":
        from openrlhf_ada.trainer.critic import RayAdaCritic

        actors["CriticModelActor"] = RayAdaCritic
    run_training(args, RayAdaPPOTrainer, **actors)
