"""Advantages of a closed pool: r - b by the source of the baseline b, and what OpenRLHF's estimator makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.pieces import Need, Table
from openrlhf_ada.core.types import Bools, Floats, RewardScale

NO_SPREAD = 1e-6
"""A pool whose rewards differ by no more than this (relative to their size) is constant: float residue of a mean must
never become a signal. Dividing by a tiny std would blow it up to advantages in the thousands."""


def is_spread(values: Floats) -> bool:
    """Do the values differ, beyond float noise? Asked of scores, the zero-signal test of the whole package."""
    if len(values) < 2:
        return False
    return bool(values.max() - values.min() > NO_SPREAD * max(1.0, float(np.abs(values).max())))


# -- baselines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a baseline reads. rewards, positive: of the whole pool, shapes (N,). A baseline that lacks
    Need.WHOLE_POOL gets those of the kept samples alone.

    `rate`: the pass rate that the baseline needs, and `strength`, the rollouts that a predicted one is worth.
    `scale`: what an outcome that the pool does not show is worth. `size`: N, samples of the whole pool.
    `rounding`: rates below it are 0 in a predicted baseline, and those above 1 - `rounding` are 1. `factor`: what the
    baseline is multiplied by after that.
    """

    rewards: Floats
    positive: Bools
    rate: float
    strength: float
    scale: RewardScale
    size: int
    rounding: float = 0.0
    factor: float = 1.0

    def worth(self, rates: Floats) -> Floats:
        """Expected rewards at these pass rates, predicted without the samples that they are for, times `factor`;
        shape (N,).

        Any b that a sample has no part in leaves r - b unbiased. With b = 0 instead of p, r - b varies by p instead of
        p (1 - p), and the 1 - p of the rollouts that are wrong need no training.
        """
        certain = np.where(rates > 1.0 - self.rounding, 1.0, rates)
        rates = np.where(rates < self.rounding, 0.0, certain)
        worth_pos = float(self.rewards[self.positive].mean()) if self.positive.any() else self.scale.positive
        worth_neg = float(self.rewards[~self.positive].mean()) if not self.positive.all() else self.scale.negative
        return self.factor * (rates * worth_pos + (1.0 - rates) * worth_neg)


BASELINES: Table[Callable[[Drawn], Floats]] = Table()
"""Functions that return r - b, shape (N,)."""

_OUTSIDE = {Need.SILENT_UNRESOLVED: "gives them one"}
_OWN_STD = "divides by the group's or pool's standard deviation, which is a weight of its own"


@BASELINES.add("pool")
def pool_mean(drawn: Drawn) -> Floats:
    """b is the mean reward of all N rollouts (Reinforce-Ada's code). Biased where outcomes end sampling."""
    return drawn.rewards - drawn.rewards.mean()


@BASELINES.add("loo")
def leave_one_out(drawn: Drawn) -> Floats:
    """b is the mean reward of the other N - 1 (RLOO, arXiv 2402.14740). Unbiased where N is fixed."""
    size = len(drawn.rewards)
    return (drawn.rewards - drawn.rewards.mean()) * (size / max(size - 1, 1))


@BASELINES.add("kept", lacks={Need.WHOLE_POOL: "is the mean of the trained rollouts alone"})
def kept_mean(drawn: Drawn) -> Floats:
    """b is the mean reward of the trained samples (PODS, arXiv 2504.13818), as if nothing else had been drawn."""
    return pool_mean(drawn)


_PREDICTED = {Need.UNBIASED_RATE, Need.PREDICTION}


@BASELINES.add("critic", needs=_PREDICTED | {Need.CRITICS_RATE}, lacks=_OUTSIDE)
@BASELINES.add("estimator", needs=_PREDICTED | {Need.COUNTED_RATE}, lacks=_OUTSIDE)
@BASELINES.add("unbiased", needs={Need.UNBIASED_RATE})
def mean_at_rate(drawn: Drawn) -> Floats:
    """b is rate x the mean reward of positives + (1 - rate) x that of negatives. Unbiased at a predicted rate.

    The rate of `unbiased` is the pool's without stopping bias (`StoppingPlan.unbiased_rate`), that of `estimator`
    is predicted from outcomes of earlier steps, that of `critic` by a critic.
    """
    return drawn.rewards - drawn.worth(np.full(len(drawn.rewards), drawn.rate))


@BASELINES.add("blend", needs=_PREDICTED | {Need.COUNTED_RATE}, lacks=_OUTSIDE)
def blend(drawn: Drawn) -> Floats:
    """As `estimator`, at the rate expected of a prompt after the other rollouts, (s q + K - m) / (s + N - 1).

    q: the prediction, s: its strength, m: whether this sample is one of the K positives. Without evidence that is
    leave-one-out, with one rollout the prediction. Unbiased where N is fixed, as the sample itself has no part in it.
    """
    others = (drawn.positive.sum() - drawn.positive) + drawn.strength * drawn.rate
    return drawn.rewards - drawn.worth(others / (drawn.strength + len(drawn.rewards) - 1))


@BASELINES.add("none", needs={Need.UNSHAPED_REWARDS}, lacks=_OUTSIDE)
def no_baseline(drawn: Drawn) -> Floats:
    """b = 0: with rewards of 0 and 1 only positives are trained (RAFT, arXiv 2304.06767), and with others negatives
    too."""
    return drawn.rewards


AERO_KEPT = 4
"""Samples that AERO trains of a pool of one outcome."""


@BASELINES.add(
    "posterior",
    needs={Need.UNSHAPED_REWARDS},
    lacks=_OUTSIDE | {Need.WHOLE_POOL: "reads the trained rollouts alone", Need.PLAIN_ADVANTAGES: _OWN_STD},
)
def posterior(drawn: Drawn) -> Floats:
    """AERO (arXiv 2602.14338): one outcome has the advantage 2u - 1, u = (K + 1)/(N + 2); two have GRPO's.

    AERO trains 4 samples of a pool of one outcome, and of one with K < N/2 as many negatives as positives. Here all n
    are trained and share that weight: the same expected update, with less noise. Constants from a third party's code.
    """
    positive, n = drawn.positive, len(drawn.rewards)
    k = int(positive.sum())
    if k in (0, n):
        u = (k / n * drawn.size + 1.0) / (drawn.size + 2.0)
        return np.full(n, (2.0 * u - 1.0) * AERO_KEPT / n)
    if 2 * k >= n:
        return over_std(pool_mean(drawn), drawn.rewards)
    # GRPO's advantage in a group of k and k, and all negatives together as much as k of them.
    even = 0.5 / math.sqrt(k / (2.0 * (2.0 * k - 1.0)))
    return np.where(positive, even, -even * k / (n - k))


# -- OpenRLHF's estimators --------------------------------------------------------------------------------------------

ESTIMATORS: Table[Callable[[Floats, Floats], Floats]] = Table()
"""--algo.advantage.estimator, those that take groups selected from a pool: (r - b, rewards) -> advantages."""


WHITENED = ("gae", "reinforce_baseline")
"""Estimators whose advantages OpenRLHF normalises over the whole batch, but for --algo.advantage.no_std_norm."""


@ESTIMATORS.add("flash_reinforce")
@ESTIMATORS.add("reinforce_baseline")
@ESTIMATORS.add("rloo")
@ESTIMATORS.add("dr_grpo")
def plain(advantages: Floats, rewards: Floats) -> Floats:
    """r - b as it is (Dr. GRPO, arXiv 2503.20783)."""
    return advantages


@ESTIMATORS.add("group_norm", needs={Need.SILENT_UNRESOLVED}, lacks={Need.PLAIN_ADVANTAGES: _OWN_STD})
def over_std(advantages: Floats, rewards: Floats) -> Floats:
    """(r - b) / std (GRPO, arXiv 2402.03300); the unbiased std and its epsilon are OpenRLHF's."""
    return advantages / (rewards.std(ddof=1) + 1e-9)


@ESTIMATORS.add(
    "gae",
    needs={Need.FAIR_OUTCOMES},
    lacks={
        Need.NO_BASELINE: "has its critic as baseline",
        Need.SILENT_UNRESOLVED: "gives them one, as its critic is the baseline",
    },
)
def by_token(advantages: Floats, rewards: Floats) -> Floats:
    """PPO's critic is the baseline of every token: nothing of a pool is subtracted, and samples have weights only."""
    return np.ones_like(advantages)
