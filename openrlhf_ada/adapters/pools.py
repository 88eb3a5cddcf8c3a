"""For any trainer: it opens a visit of prompts, generates and scores the requests that are `due`, reports each, builds
what is trained once none is open, and records what it has taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.scheduling import FinishedPool, Request, Scheduler
from openrlhf_ada.core.types import Ledger, PromptPool, Sample, TrainingGroup, Waste


@dataclass
class Visit:
    """Prompts that are sampled together. `payloads`: what the trainer keeps of rollouts, by prompt key and index."""

    scheduler: Scheduler[None]
    rows: dict[int, int]
    payloads: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])

    def due(self) -> Iterator[Request]:
        """The rollouts that the policy waits for. Each must be reported."""
        while (request := self.scheduler.take_required()) is not None:
            yield request


@dataclass
class Closed:
    """What came of a visit: pools, groups, what entered no pool, and how many rollouts were drawn."""

    finished: list[FinishedPool[None]]
    groups: list[TrainingGroup]
    waste: Waste
    drawn: int


class Pools:
    """A policy with its memory and its books. `settings`: from `settings_for`. `seed`: of the run."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings, self.policy, self.ledger = settings, make_policy(settings), Ledger()
        self.next_key = self.closed = self.no_score = 0
        self._seed = seed

    def open(self, rows: Sequence[int]) -> Visit:
        """Begin to sample these rows of the dataset. Nothing is drawn ahead of need."""
        pools = [PromptPool(self.next_key + i, row=row) for i, row in enumerate(rows)]
        self.next_key += len(pools)
        name = "rounds" if self.settings.scheduler == "rounds" else "waves"
        return Visit(Scheduler(self.policy, pools, name), {pool.key: pool.row for pool in pools})

    def report(self, visit: Visit, request: Request, value: float, reward: float, tokens: int, version: int) -> None:
        """A rollout is there, of this `version` of the policy. Raises ConfigError for a score outside [0, 1].

        Args:
            value: the score, which decides. NaN: none, and then its prompt trains nothing.
            reward: what is trained.
        """
        if math.isnan(value) or math.isnan(reward):
            visit.scheduler.give_up(request, tokens, "a reward function returned None or NaN")
            return
        threshold = self.settings.positive_threshold
        score = float(value > threshold) if self.settings.scores == "raw" and threshold is not None else value
        if not 0.0 <= score <= 1.0:
            rule = "the first reward function decides how much is sampled, by numbers from 0 to 1"
            remedy = "Put such a function first, or use --ada_scores raw with --ada_positive_threshold"
            raise ConfigError("reward_funcs", value, rule, remedy)
        visit.scheduler.finish(request, Sample(*request[:2], score, reward, tokens, version, version), None)

    def build(self, visit: Visit) -> Closed:
        """What is trained of a visit that is done. A prompt without a score trains as many rollouts, with 0."""
        groups = [self._group(visit, one) for one in visit.scheduler.finished]
        return Closed(visit.scheduler.finished, groups, visit.scheduler.waste, visit.scheduler.num_sent)

    def _group(self, visit: Visit, one: FinishedPool[None]) -> TrainingGroup:
        if not one.failure:
            # Seeded by identity, as under OpenRLHF.
            return self.policy.build(one.pool, np.random.default_rng([self._seed, one.pool.key]))
        drawn = sorted(index for key, index in visit.payloads if key == one.pool.key)
        size = one.wanted if self.settings.trains_all else self.settings.group_size
        indices = tuple(drawn[i % len(drawn)] for i in range(size))
        return TrainingGroup(one.pool.key, indices, (0.0,) * size, (0.0,) * size, resolved=False)

    def record(self, closed: Closed) -> dict[str, float]:
        """Learn from a visit and account for it; returns figures. Raises RuntimeError if too many prompts have no
        score (--ada_max_no_score), or if the books do not balance."""
        before, scored = asdict(self.ledger), [one.pool for one in closed.finished if not one.failure]
        for one, group in zip(closed.finished, closed.groups, strict=True):
            self.ledger.record_group(one.pool.samples, () if one.failure else group.indices)
        self.ledger.record_waste(closed.waste)
        self.ledger.check(drawn=before["drawn"] + closed.drawn)
        self.closed += len(closed.finished)
        self.no_score += len(closed.finished) - len(scored)
        allowed = math.ceil(self.settings.max_no_score * self.closed - 1e-9)
        if self.no_score > allowed:
            last = next(one for one in reversed(closed.finished) if one.failure)
            raise RuntimeError(
                f"row {last.pool.row} has no score: {last.failure}. {self.no_score} of {self.closed} prompts have "
                f"none, {allowed} may (--ada_max_no_score). Return a number for every rollout, or remove such rows."
            )
        signal = sum(group.resolved for group in closed.groups) / len(closed.groups)
        counts = {f"ada/{name}": float(now - before[name]) for name, now in asdict(self.ledger).items()}
        return counts | {"ada/signal_share": signal} | (self.policy.observe(scored) if scored else {})

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        counts = {"next_key": self.next_key, "closed": self.closed, "no_score": self.no_score}
        return counts | {"ledger": asdict(self.ledger), "policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises ValueError on the state of another policy."""
        self.policy.load_state_dict(state["policy"])
        self.ledger = Ledger(**state["ledger"])
        self.next_key, self.closed, self.no_score = state["next_key"], state["closed"], state["no_score"]
