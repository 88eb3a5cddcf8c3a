"""Raw scores from the engines to the batch: policies see 0 or 1 by a threshold that is fixed before the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from cases import sequential
from engines import RolloutEngine, end_at_once
from openrlhf.trainer.ppo_utils.experience import Experience
from rollouts import (
    GENERATE,
    INITIAL_STATES,
    N,
    TableGenerator,
    make_args,
    make_loader,
    response,
    result_of,
    table,
    train,
)

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.fleet import Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.eval.held_out import HeldOut
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.rollout.engine_connections import EngineConnections
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.ray_fleet import RayFleet
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.records import RolloutBatch
from openrlhf_ada.rollout.responses import NoScoreError

BATCH = 2
PLAN = BatchPlan(BATCH, N, BATCH * N, 2, 1)

SCORES = {0: [3.0, -1.0], 1: [-2.0, -4.0, -3.0, 5.0], 2: [1.5, 0.5, 9.0, 9.0], 3: [2.0, 7.0, 8.0, 0.0]}
"""By row, in the order of drawing. With threshold 0 rows 0 and 1 (step 1) need one wave and two. The first N = 2 of
each are -4, -2, -1, 3, so step 2 has the threshold -2 with Q = 0.5, and both of its prompts are all positive."""


def make_generator(
    quantile: float | None = 0.5, *, outcomes: Mapping[int, Sequence[float]] = SCORES
) -> TableGenerator:
    args = make_args(batch=BATCH)
    policy = sequential(1, 1, n=N, wave=2, cap=4, graded=True)
    options: dict[str, Any] = {"threshold": ScoreThreshold(0.0, quantile), "first_scores": N}
    return TableGenerator(args, make_loader(len(outcomes), args), policy, table(outcomes), PLAN, **options)


def figures(batch: RolloutBatch) -> dict[str, float]:
    assert batch.record is not None
    return batch.record.figures


def seen(batch: RolloutBatch) -> dict[int, list[float]]:
    assert batch.record is not None
    return {group.row: group.pool.scores.tolist() for group in batch.record.all_groups}


# -- thresholds from step to step -----------------------------------------------------------------------------------


def test_two_steps_by_hand() -> None:
    first, second = train(make_generator(), INITIAL_STATES)
    assert seen(first.batch) == {0: [1, 0], 1: [0, 0, 0, 1]}
    assert figures(first.batch) == {"ada/score_threshold": 0.0, "ada/raw_score_mean": -1.0}
    # With its own scores in it the threshold would be another one, and prompt 2 would be mixed.
    assert figures(second.batch)["ada/score_threshold"] == -2.0
    assert seen(second.batch) == {2: [1, 1, 1, 1], 3: [1, 1, 1, 1]}


def test_a_fixed_threshold_stays() -> None:
    first, second = train(make_generator(None), INITIAL_STATES)
    assert [figures(step.batch)["ada/score_threshold"] for step in (first, second)] == [0.0, 0.0]
    assert seen(second.batch)[3] == [1, 1, 1, 0]


def test_scores_are_recorded_rewards_are_trained() -> None:
    first, _ = train(make_generator(), INITIAL_STATES)
    assert first.batch.record is not None
    for group in first.batch.record.all_groups:
        drawn = len(group.pool)
        assert list(group.raw_scores) == SCORES[group.row][:drawn]
        assert group.pool.rewards.tolist() == SCORES[group.row][:drawn]


def test_rewards_are_clipped_and_scores_are_not() -> None:
    outcomes = {0: [30.0, -1.0], 1: [-2.0, 20.0]}
    (step,) = train(make_generator(outcomes=outcomes), INITIAL_STATES)
    assert step.batch.record is not None
    (first, second) = step.batch.record.groups
    assert (list(first.raw_scores), first.pool.rewards.tolist()) == ([30.0, -1.0], [10.0, -1.0])
    assert list(second.raw_scores) == [-2.0, 20.0]


def test_a_resumed_run_has_the_same_thresholds() -> None:
    first, second = train(make_generator(), INITIAL_STATES)
    (resumed,) = train(make_generator(), first.states)
    assert figures(resumed.batch) == figures(second.batch)
    assert seen(resumed.batch) == seen(second.batch)


@pytest.mark.parametrize(("written", "read"), [(0.5, None), (None, 0.5)])
def test_a_checkpoint_of_other_flags_is_refused(written: float | None, read: float | None) -> None:
    first, _ = train(make_generator(written), INITIAL_STATES)
    with pytest.raises(ValueError, match="--ada_positive_quantile"):
        make_generator(read).restore(first.states)


def test_quantile_checkpoint_is_refused_for_unit_scores() -> None:
    first, _ = train(make_generator(), INITIAL_STATES)
    args = make_args(batch=BATCH)
    unit = TableGenerator(args, make_loader(4, args), sequential(1, 1, n=N, wave=2, cap=4), table(SCORES), PLAN)
    with pytest.raises(ValueError, match="--ada_positive_quantile"):
        unit.restore(first.states)


def test_one_outcome_has_signal_with_graded_rewards() -> None:
    """Both prompts of step 2 are all positive; their rewards differ, so their coefficients do: r minus the mean."""
    _, second = train(make_generator(), INITIAL_STATES)
    assert second.batch.record is not None
    for group in second.batch.record.groups:
        assert group.group is not None and not group.group.resolved
        rewards = group.pool.rewards
        expected = [rewards[i] - rewards.mean() for i in group.group.indices]
        assert group.group.coefficients == pytest.approx(expected)
        assert any(group.group.coefficients)


# -- one response ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_no_score(score: float) -> None:
    reader = make_generator()._reader(GENERATE)
    with pytest.raises(NoScoreError, match="its score is"):
        reader.sample(Request(0, 0), result_of(response("1+1=", score)), (0, 0))


def test_a_servers_list_is_one_number() -> None:
    """`python -m openrlhf.cli.serve_rm` answers with lists; PPO needs rewards of shape (1,) per sample."""
    reader = make_generator()._reader(GENERATE)
    result = result_of(response("1+1=", 0.0) | {"reward": [2.5], "scores": [-7.0]})
    sample = reader.sample(Request(0, 0), result, (0, 0))
    experience = reader.experience(result)
    assert (sample.score, sample.reward) == (0.0, 2.5)
    for values, value in ((experience.rewards, 2.5), (experience.info["reward"], 2.5), (experience.scores, -7.0)):
        assert isinstance(values, torch.Tensor)
        assert values.tolist() == [value]


def test_two_rewards_for_one_answer_are_no_score() -> None:
    reader = make_generator()._reader(GENERATE)
    with pytest.raises(NoScoreError, match="2 rewards or scores"):
        reader.sample(Request(0, 0), result_of(response("1+1=", 0.0) | {"reward": [1.0, 2.0]}), (0, 0))


# -- answers without a score ----------------------------------------------------------------------------------------


def test_answers_without_engine_reward_get_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that have ended since the last time are scored in one call; what failed is not."""
    end_at_once(monkeypatch)
    engine = RolloutEngine(lambda number, k: None)
    asked: list[list[list[int]]] = []

    def score(answers: Sequence[Sequence[int]]) -> list[float]:
        asked.append([list(tokens) for tokens in answers])
        return [100.0 * tokens[0] + len(tokens) for tokens in answers]

    requests = {7: PromptRequest(7, row=0, prompt="4", label="", image=None)}
    reader = make_generator()._reader(GENERATE)
    fleet = RayFleet(
        EngineConnections([engine], lambda index: [], print, 60.0), requests, None, reader.sample, seed=0, score=score
    )
    fleet.submit(0, [Request(7, 0), Request(7, 1)])
    found: dict[Request, Finished[Result]] = {}
    while len(found) < 2:
        for event in fleet.wait():
            assert isinstance(event, Finished), event
            found[Request(event.sample.key, event.sample.index)] = event
    for event in found.values():
        assert event.sample.reward == 10.0, "clipped as rewards are"
        experience = reader.experience(event.payload)
        assert experience.scores is not None
        assert float(experience.scores[0]) == 100.0 * 4 + experience.sequences.shape[1]
        assert experience.rewards.tolist() == [10.0]
    assert sum(len(call) for call in asked) == 2


# -- evaluation -----------------------------------------------------------------------------------------------------


def test_evaluation_uses_the_first_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the quantile has come to: evaluations of a run are compared with each other."""
    generator = make_generator()
    list(train(generator, INITIAL_STATES))
    assert generator.options.threshold is not None and generator.options.threshold.value != 0.0

    def evaluate(self: RecordedGenerator, **kwargs: Any) -> list[Experience]:
        self.held_out = HeldOut(2, {"sums": [Answered([-3.0, 0.5], [1, 1], [False, False])]})
        return []

    monkeypatch.setattr(RecordedGenerator, "generate_eval_samples", evaluate)
    monkeypatch.setattr(generator._connections, "wait_until_ready", lambda: None)
    generator.generate_eval_samples()
    assert generator.held_out.scores() == {"sums": [[0.0, 1.0]]}
    assert generator.held_out.is_measurable
