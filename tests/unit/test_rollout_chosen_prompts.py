"""--ada_candidates in the generator: as many steps as without it, no batch with a prompt twice, resumed to the bit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rollouts import INITIAL_STATES, N, Step, TableGenerator, make_args, make_loader, train

from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.choice import PromptChooser
from openrlhf_ada.core.visits import VisitHistory
from openrlhf_ada.rollout.prompts import ChosenPrompts, PromptRequest, PromptSource

FLAGS: dict[str, dict[str, Any]] = {
    "fixed": {"mode": "seq", "exit": "fixed"},
    "balance": {"mode": "seq"},
    "refill": {"mode": "seq", "unresolved": "refill"},
    "gate": {"mode": "seq", "exit": "gate", "pilot": 2},
    "est": {"mode": "est", "budget": 3.0},
    "greso": {"mode": "seq", "choice": "greso", "unresolved": "refill", "exit": "fixed"},
    "pools": {"mode": "est", "budget": 3.0, "choice": "pools"},
    "rated": {"mode": "seq", "choice": "mopps", "estimator": "rating"},
    "two rounds": {"mode": "est", "budget": 3.0, "allocation": "hit", "pilot": 2, "correction": "none"},
}


def make_generator(
    name: str, rows: int, *, candidates: int = 2, batch: int = 2, episodes: int = 2, **changes: Any
) -> TableGenerator:
    """As after a start of the program; its engines answer by visit and index."""
    args = make_args(batch=batch, num_episodes=episodes)
    flags = {"wave": 2, "max_samples": 4, "candidates": candidates, "half_life": 3.0} | FLAGS[name] | changes
    settings = resolve(
        AdaConfig(**flags), n=args.rollout.n_samples_per_prompt, advantage="dr_grpo", batch=args.rollout.batch_size
    )
    policy = make_policy(settings)
    return TableGenerator(
        args,
        make_loader(rows, args, shuffle=True),
        policy,
        lambda request, index: float(np.random.default_rng([request.key, index]).random() < request.row / rows),
        BatchPlan(batch, N, batch * N, 2, 1),
        refill_limit=2 if settings.refills else 0,
        chooser=make_chooser(settings, policy, rows, seed=7) if settings.chooses else None,
    )


def content(step: Step) -> tuple[Any, ...]:
    """Everything of a step that training and its record see."""
    record = step.batch.record
    assert record is not None
    return (
        [sample.tag for sample in step.batch],
        [(group.row, group.choice, group.pool.samples) for group in record.all_groups],
        (record.ledger, record.figures),
        (step.states["ada_policy"], step.states["ada_prompts"]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(("rows", "episodes"), [(4, 2), (5, 2), (9, 2)])
def test_resume_from_any_step_equals_uninterrupted_run(name: str, rows: int, episodes: int) -> None:
    """Prompts, chances, weights, rollouts and coefficients. A checkpoint is written as text."""
    whole = list(train(make_generator(name, rows, episodes=episodes), INITIAL_STATES))
    for cut, step in enumerate(whole, start=1):
        states = step.states | json.loads(json.dumps({key: step.states[key] for key in ("ada_policy", "ada_prompts")}))
        rest = list(train(make_generator(name, rows, episodes=episodes), states))
        assert [content(s) for s in rest] == [content(s) for s in whole[cut:]], f"stopped after step {cut}"


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
def test_no_step_has_a_prompt_twice(name: str) -> None:
    for step in train(make_generator(name, 9, candidates=4, episodes=4), INITIAL_STATES):
        rows = [row for _, row in step.visits]
        assert len(set(rows)) == len(rows)


def serve_all(source: PromptSource, episodes: int) -> list[list[PromptRequest]]:
    """The batches that OpenRLHF's loop would train (PPOTrainer.fit)."""
    batches: list[list[PromptRequest]] = []
    for _ in range(episodes):
        exhausted = False
        while not exhausted:
            requests, exhausted = source.next_batch()
            batches += [requests] if requests else []
    return batches


class Unknown:
    """Every pass rate is as likely."""

    def draw(self, rows: Sequence[int], rng: np.random.Generator) -> Any:
        return rng.random(len(rows))


def test_number_of_steps_is_that_without_choosing() -> None:
    """Steps, their sizes and keys, and the numbers of prompts, for many sizes. Contents are those of the rows."""
    for rows, batch, episodes, candidates in itertools.product(range(4, 10), (1, 2, 3), (1, 2, 3), (2, 3)):
        if candidates * batch > rows:
            continue
        case = f"{rows} rows, batch {batch}, {episodes} episodes, {candidates} candidates"
        args = make_args(batch=batch, num_episodes=episodes)
        plan = BatchPlan(batch, N, batch * N, 1, 1)
        plain = PromptSource(make_loader(rows, args), plan, 0, episodes)
        chooser = PromptChooser(rows, candidates, np.random.default_rng(0), Unknown(), VisitHistory(0.5))
        chosen = ChosenPrompts(make_loader(rows, args), plan, 0, episodes, chooser)
        expected, found = serve_all(plain, episodes), serve_all(chosen, episodes)
        assert [[r.key for r in requests] for requests in found] == [[r.key for r in b] for b in expected], case
        assert (chosen.next_key, chosen.episodes_done) == (plain.next_key, plain.episodes_done), case
        for requests in found:
            assert len({request.row for request in requests}) == len(requests), case
            assert all(request.prompt == f"{request.row}+1=" for request in requests)


def test_spare_prompts_are_others_and_of_this_episode() -> None:
    args = make_args()
    chooser = PromptChooser(6, 2, np.random.default_rng(0), Unknown(), VisitHistory(0.5))
    source = ChosenPrompts(make_loader(6, args), BatchPlan(2, N, 2 * N, 1, 1), 0, 1, chooser)
    assert source.take_extra(1) == ([], True), "no episode has begun"
    batch, _ = source.next_batch()
    spare, exhausted = source.take_extra(3)
    assert len({request.row for request in batch + spare}) == 5 and not exhausted
    spare, exhausted = source.take_extra(3)
    assert ([request.key for request in spare], exhausted) == ([5], True), "6 prompts make an episode"


def test_figures_of_choosing_are_recorded() -> None:
    figures = [step.batch.record.figures for step in train(make_generator("est", 8, episodes=3), INITIAL_STATES)]
    coverage = [figure["ada/coverage"] for figure in figures]
    assert coverage[0] == 2 / 8 and coverage == sorted(coverage) and coverage[-1] == 1.0
    assert all(figure["ada/prompt_age"] >= 0 and 0 < figure["ada/choice_chance"] <= 1 for figure in figures)
    assert all(figure["ada/prompt_age_max"] >= figure["ada/prompt_age"] for figure in figures)


def test_without_candidates_nothing_is_recorded() -> None:
    step = next(train(make_generator("est", 8, candidates=1), INITIAL_STATES))
    assert "ada_prompts" not in step.states and "ada/coverage" not in step.batch.record.figures
    assert [group.choice for group in step.batch.record.groups] == [None, None]


def test_checkpoint_without_a_queue_is_refused() -> None:
    step = next(train(make_generator("est", 8, candidates=1), INITIAL_STATES))
    with pytest.raises(ValueError, match=r"no queue .*without --ada_candidates"):
        make_generator("est", 8).restore(step.states)


def test_checkpoint_with_a_queue_is_refused_without_candidates() -> None:
    step = next(train(make_generator("est", 8), INITIAL_STATES))
    with pytest.raises(ValueError, match=r"queue .*--ada_candidates"):
        make_generator("est", 8, candidates=1).restore(step.states)


@pytest.mark.slow
def test_mixed_prompts_are_visited_more() -> None:
    """Rows 0 and 1 of 16 are (almost) never right; the middle is mixed."""
    visits = np.zeros(16)
    for step in train(make_generator("fixed", 16, candidates=4, episodes=30, half_life=50.0), INITIAL_STATES):
        visits[[row for _, row in step.visits]] += 1
    assert visits.sum() == 30 * 16
    assert visits[6:10].mean() > 1.5 * visits[:2].mean() and visits.min() >= 3
