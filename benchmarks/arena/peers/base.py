"""What a policy may do in a trial beside deciding and building, and what the arena's own policies have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.choice import Choice, PromptChooser
from openrlhf_ada.core.policies import Action, Close, Draw, Policy
from openrlhf_ada.core.types import Floats, PromptPool, Sample, TrainingGroup

if TYPE_CHECKING:
    # Commands that train no small model need no torch.
    from benchmarks.arena.drawn import Batch


class Chooser(Protocol):
    """Which prompts are sampled, as `core.choice.PromptChooser` does it."""

    def take(self, count: int, /) -> list[Choice]: ...

    def end_step(self, pools: Sequence[PromptPool], /) -> dict[str, float]: ...


class Hooks:
    """Called by a trial; nothing happens by default.

    `keeps_log_probs`: of answers when they are sampled. `late`: a step's answers are trained after the next step's
    were sampled. Both are for training by importance ratios to the policy that sampled.
    """

    keeps_log_probs = False
    late = False

    def goes_on(self, pool: PromptPool) -> bool:
        """Is a pool that was closed opened again in the next step, instead of being trained in this one?"""
        return False

    def shaped(self, coefficients: Floats) -> Floats:
        """Those of a whole batch, shape (N,)."""
        return coefficients

    def before_training(self, batch: Batch) -> None: ...

    def after_training(self, batch: Batch) -> None: ...


class Rules(Protocol):
    """A frozen dataclass of a method's constants, which are kept with its results."""

    @property
    def summary(self) -> str: ...

    def start(self, settings: Settings, rows: int, seed: int) -> PeerPolicy:
        """A policy that has learned nothing. `rows`: of the training set."""
        ...


class PeerPolicy(Hooks):
    """A `Policy` that samples each prompt once, in numbers of `counts`, and builds as `inner` does.

    `inner`: the package's policy of the method's flags. A trial is not resumed, so there is no state to save.
    """

    def __init__(self, settings: Settings, rows: int, seed: int) -> None:
        self.inner: Policy = make_policy(settings)
        self.queue: PromptChooser = make_chooser(settings, self, rows, seed)
        self.chooser: Chooser = self.queue
        self.rng = np.random.default_rng([seed, 6])

    @property
    def reads_critic(self) -> bool:
        return False

    def counts(self, pools: Sequence[PromptPool]) -> Sequence[int]:
        """Rollouts of prompts that have none yet."""
        raise NotImplementedError

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        fresh = [pool for pool in pools if not len(pool)]
        counts = dict(zip((pool.key for pool in fresh), self.counts(fresh), strict=True))
        return [Draw(pool.key, counts[pool.key]) if pool.key in counts else Close(pool.key) for pool in pools]

    def chance_of_need(self, pool: PromptPool, ahead: Sequence[Sample], sent: int) -> float:
        """Nothing is sampled ahead."""
        return 0.0

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        return self.inner.build(pool, rng)

    def load_prior_counts(self, draws: ArrayLike, positives: ArrayLike) -> None:
        """Not used."""

    def observe(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("a trial of the arena is not resumed")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a trial of the arena is not resumed")


def group_of(pool: PromptPool, coefficients: Floats) -> TrainingGroup:
    """The whole pool, with these coefficients, shape (N,)."""
    size = len(pool)
    return TrainingGroup(pool.key, tuple(range(size)), tuple(coefficients.tolist()), (1.0,) * size, resolved=True)
