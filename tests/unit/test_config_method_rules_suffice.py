"""What the rules let pass, runs: every accepted triple of values trains every pool that it can end with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from fleets import FakeFleet

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.batches import thinned
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.fleet import DispatchLimits, run
from openrlhf_ada.core.scheduling import Request, Scheduler, SchedulerName
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.types import PromptPool

N, PROMPTS = 2, 5

SIZES: dict[str, list[dict[str, Any]]] = {
    "seq": [
        {"exit": exit_rule, "wave": 2, "max_samples": cap}
        for exit_rule, cap in itertools.product(("pos", "balance", "fixed"), (2, 4))
    ]
    + [{"exit": "gate", "pilot": pilot, "max_samples": 4} for pilot in (2, 3)]
    + [{"exit": "balance", "wave": 2, "max_samples": 4, "candidates": 2}],
    "est": [
        {"budget": budget, "allocation": allocation}
        for budget, allocation in itertools.product((None, 3.0), ("inverse_sqrt", "vip", "hit"))
    ]
    + [{"budget": 3.0, "allocation": "hit", "pilot": 3}],
}

CHOICES: dict[str, Sequence[str | None]] = {
    "correction": CORRECTIONS,
    "baseline": (None, *BASELINES),
    "select": SELECTIONS,
    "estimator": ("ema", "critic"),
}


def accepted(mode: str, advantage: str) -> Iterator[Settings]:
    """Combinations that have a triple of values that none before them has."""
    seen: set[tuple[object, ...]] = set()
    for index, *values in itertools.product(range(len(SIZES[mode])), *CHOICES.values()):
        chosen = dict(zip(CHOICES, values, strict=True))
        triples = set(itertools.combinations([("sizes", index), *chosen.items()], 3))
        if triples <= seen:
            continue
        sizes = SIZES[mode][index]
        settings = resolve(AdaConfig(mode=mode, **sizes, **chosen), n=N, advantage=advantage, batch=PROMPTS)
        try:
            check_settings(settings)
        except ConfigError:
            continue
        seen |= triples
        yield settings


def outcomes(rng: np.random.Generator) -> Mapping[int, list[float]]:
    """Answers of every prompt: all wrong, all right, then mixed, with partial credit."""
    mixed = {key: rng.choice([0.0, 0.25, 0.4, 0.75, 1.0], size=12).tolist() for key in range(2, PROMPTS)}
    return {0: [0.0] * 12, 1: [1.0] * 12, **mixed}


def train_a_step(settings: Settings, seed: int) -> None:
    rng = np.random.default_rng(seed)
    answers = outcomes(rng)
    policy = make_policy(settings)
    pools = [PromptPool(key, row=key) for key in answers]
    for pool in pools:
        pool.critic_value = 0.5

    fleet = FakeFleet(lambda r: answers[r.key][r.index], lambda r: r.index, shape=lambda metric: 2.0 * metric - 1.0)
    scheduler = Scheduler[Request](policy, pools, cast("SchedulerName", settings.scheduler), least_chance=0.1)
    run(scheduler, fleet, DispatchLimits(slots=1000, speculative=20))
    groups = [policy.build(pool, rng) for pool in pools]
    if settings.trains_varying:
        assert sum(len(group.indices) for group in groups) == sum(map(len, pools)) >= N * PROMPTS
        groups = thinned(groups, N * PROMPTS, rng)
    assert sum(len(group.indices) for group in groups) in (N * PROMPTS, 2 * N * PROMPTS), "whole batches of OpenRLHF"
    assert settings.trains_varying or sum(len(group.indices) for group in groups) == N * PROMPTS
    assert all(np.isfinite([*group.coefficients, *group.critic_weights]).all() for group in groups)
    assert all(np.isfinite(list(policy.observe(pools).values())))
    make_policy(settings).load_state_dict(json.loads(json.dumps(policy.state_dict())))


@pytest.mark.slow
@pytest.mark.parametrize("advantage", ESTIMATORS)
@pytest.mark.parametrize("mode", SIZES)
def test_every_accepted_triple_trains_a_step(mode: str, advantage: str) -> None:
    number = 0
    for number, settings in enumerate(accepted(mode, advantage), start=1):
        try:
            train_a_step(settings, seed=number)
        except Exception as error:
            raise AssertionError(f"accepted, and then: {settings}") from error
    assert number > 10, "the grid is not empty"
