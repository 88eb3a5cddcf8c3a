"""--ada_zeros skip: where a rollout of coefficient 0 has no part in any gradient, so that nothing need be computed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.settings import Settings


def check_skip_zeros(settings: Settings, host: SimpleNamespace) -> None:
    """Raises ConfigError. `host`: the host's parsed namespace, nested by dots."""
    for name, value, why in _part_of_zeros(settings, host):
        rule = f"{why}, so rollouts of coefficient 0 must be computed too"
        raise ConfigError(name, value, rule, "Leave it out, or use --ada_zeros compute")


def _part_of_zeros(settings: Settings, host: SimpleNamespace) -> Iterator[tuple[str, object, str]]:
    """What else than its coefficient a rollout is trained by: flag, value, why."""
    if settings.in_ppo:
        yield "--algo.advantage.estimator", "gae", "the critic learns from every rollout"
    if host.algo.kl.init_coef > 0:
        yield "--algo.kl.init_coef", host.algo.kl.init_coef, "the KL penalty counts every rollout"
    if host.actor.entropy_coef is not None:
        yield "--actor.entropy_coef", host.actor.entropy_coef, "the entropy is that of every rollout"
    if host.actor.aux_loss_coef > 1e-8:
        yield "--actor.aux_loss_coef", host.actor.aux_loss_coef, "this loss counts every rollout"
