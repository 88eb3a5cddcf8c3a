"""From checked flags to a running job: platform, Ray, and OpenRLHF's own `train`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config import program
from openrlhf_ada.config.host_values import shares_gpus
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.host.classes import run_training
from openrlhf_ada.host.ray_session import root_cause
from openrlhf_ada.platforms.resources import on_this_node
from openrlhf_ada.reward.pool import limits_of
from openrlhf_ada.reward.reward_function import Grading, Shaping
from openrlhf_ada.trainer.preflight import parse_weights


class _Kept:
    """A class of trainers as OpenRLHF starts it. OpenRLHF's function keeps the trainer to itself; this has it too."""

    def __init__(self, trainers: Any) -> None:
        self._trainers = trainers
        self.trainer: Any = None

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        self.trainer = self._trainers.remote(*args, **kwargs)
        return self.trainer


def train(args: SimpleNamespace, note: Callable[[str], None]) -> None:
    """Run OpenRLHF's training with our trainer, which exports the model; then end the record. Ray must be initialised.

    `note` gets lines for the user.
    """
    from openrlhf_ada.trainer.ppo_trainer import RayAdaPPOTrainer
    from openrlhf_ada.trainer.ppo_trainer_async import RayAdaPPOTrainerAsync

    actors: dict[str, Any] = {}
    if args.ada.own_critic:
        from openrlhf_ada.trainer.prompt_critic import RayPassRateCritic

        actors["CriticModelActor"] = RayPassRateCritic
    elif args.algo.advantage.estimator == "gae":
        from openrlhf_ada.trainer.critic import RayAdaCritic

        actors["CriticModelActor"] = RayAdaCritic
    from openrlhf_ada.rollout.engine import rollout_actor
    from openrlhf_ada.trainer.policy import RayAdaPolicyActor, RayReferenceActor, RayRewardActor

    actors["PolicyModelActor"] = RayAdaPolicyActor
    actors["ReferenceModelActor"], actors["RewardModelActor"] = RayReferenceActor, RayRewardActor
    # Mode off has OpenRLHF's sampling, which does not go on without an engine.
    restarts = 0 if args.ada.mode == "off" else args.ada.engine_restarts
    engine = rollout_actor(
        restarts,
        shares_gpu=shares_gpus(args),
        grading=grading(args.ada),
        trusts_model_code=args.ada.trust_remote_code,
        engine_args=args.ada.engine_args,
    )
    here = on_this_node()
    started = _Kept(RayAdaPPOTrainer.options(**here)), _Kept(RayAdaPPOTrainerAsync.options(**here))
    run_training(args, *started, engine, **actors)
    (trainer,) = [kept.trainer for kept in started if kept.trainer is not None]
    _finish(trainer, args, note)


def _finish(trainer: Any, args: SimpleNamespace, note: Callable[[str], None]) -> None:
    """The model is exported and every step is recorded: a page that cannot be drawn is no reason to fail."""
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(trainer.finish.remote())
    except RayError as error:
        run_dir = args.ada.resolved_run_dir(args.logger.wandb.run_name)
        note(
            f"the model is exported and the steps are recorded, but the report is not there: "
            f"{' '.join(root_cause(error).split())}. Draw it with: {program.called()} report "
            f"{shlex.quote(str(run_dir))}"
        )


def grading(config: AdaConfig) -> Grading:
    """What the flags say of grading."""
    return Grading(
        limits_of(config),
        config.reward_workers,
        Shaping(config.format, config.format_bonus),
        parse_weights(config.reward_weights) if config.reward_weights else None,
    )
