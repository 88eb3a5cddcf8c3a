"""The small model: exact pass rates, the gradient that the coefficients say, and tasks as they are described."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.arena.costs import COSTS
from benchmarks.arena.learner import ChainModel, Learner, PromptBatch, log_probs, pass_rates, sample, warm_start
from benchmarks.arena.methods import METHODS
from benchmarks.arena.tasks import END, FREE, PAD, TASKS, make_world
from benchmarks.arena.trial import Trial
from benchmarks.arena.weights import ENUMERATED

SMALL = "graded"


def model_of(task: str, seed: int = 0) -> ChainModel:
    torch.manual_seed(seed)
    return ChainModel(TASKS[task].num_functions, max(TASKS[task].lengths))


@pytest.mark.parametrize("name", TASKS)
def test_answers_follow_the_tables(name: str) -> None:
    world = make_world(TASKS[name], 3)
    train, task = world.train, world.task
    assert len(train) == task.num_train and abs(len(world.held_out) - task.num_held_out) <= 3
    for row in range(0, len(train), 37):
        said = [int(token) for token in train.answers[row] if token not in (PAD, FREE)]
        if not world.solvable[row]:
            assert train.answers[row, 0] == PAD
            continue
        symbol, expected = int(train.start[row]), []
        for _ in range(int(train.length[row])):
            symbol = int(world.tables[train.function[row], symbol])
            expected.append(symbol)
        expected += [symbol % task.classes] if task.classes else []
        end = [] if task.free else [END]
        assert said[int(task.tag_skill is not None) :] == expected + end


def test_no_prompt_is_held_out_and_trained() -> None:
    world = make_world(TASKS["hard"], 0)
    train, held_out = (
        set(zip(p.function.tolist(), p.start.tolist(), p.length.tolist(), strict=True))
        for p in (world.train, world.held_out)
    )
    assert len(train) == len(world.train) and not train & held_out


def test_pass_rates_are_those_of_sampling() -> None:
    world = make_world(TASKS[SMALL], 0)
    model = model_of(SMALL)
    batch = PromptBatch.of(world.train, [0] * 20_000)
    # The answer that this model gives most often, as if it were right.
    answers = sample(model, batch, torch.Generator().manual_seed(0))
    common = torch.unique(answers.tokens, dim=0, return_counts=True)
    most = common[0][common[1].argmax()]
    world.train.answers[0] = most.numpy()
    expected = float(pass_rates(model, world.train)[0])
    share = float((answers.tokens == most).all(dim=1).double().mean())
    assert share == pytest.approx(expected, abs=4 * (expected / 20_000) ** 0.5)


def test_what_nobody_checks_leaves_an_answer_right() -> None:
    """Exact pass rates are those of sampling, and right answers to one prompt differ."""
    world = make_world(TASKS["varied"], 0)
    model = model_of("varied")
    rates = pass_rates(model, world.train)
    row = int(rates.argmax())
    answers = sample(model, PromptBatch.of(world.train, [row] * 20_000), torch.Generator().manual_seed(0))
    length, right = int(world.train.length[row]), answers.tokens[answers.right]
    assert float(answers.right.double().mean()) == pytest.approx(rates[row], abs=4 * (rates[row] / 20_000) ** 0.5)
    assert len(torch.unique(right[:, :length], dim=0)) == 1 and len(torch.unique(right, dim=0)) > len(right) / 2


def test_unsolvable_prompts_have_pass_rate_zero() -> None:
    world = make_world(TASKS["unsolvable"], 0)
    rates = pass_rates(model_of("unsolvable"), world.train)
    assert (rates[~world.solvable] == 0.0).all() and (rates[world.solvable] > 0.0).all()
    answers = Learner(world, model_of("unsolvable").state_dict(), 1e-3, 0).sample(np.flatnonzero(~world.solvable))
    assert not answers.right.any()


def test_step_follows_the_coefficients() -> None:
    """Answers of coefficient 0 have no say; a positive one makes its answer likelier, a negative one less likely."""
    world = make_world(TASKS[SMALL], 0)
    learner = Learner(world, model_of(SMALL).state_dict(), 1e-2, 0)
    answers = learner.sample(range(8))
    prompts = PromptBatch.of(world.train, range(8))
    before = log_probs(learner.model, prompts, answers.tokens).detach()
    learner.train(answers, [0, 1, 2, 3], [1.0, 0.0, 0.0, -1.0])
    change = (log_probs(learner.model, prompts, answers.tokens) - before).detach()
    assert change[0] > 0 > change[3]


@pytest.mark.parametrize(("epochs", "updates"), [(1, 4), (2, 2)])
def test_every_epoch_makes_so_many_updates(epochs: int, updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of coefficient 0 count in the mean of their part. Nothing is updated here, so PPO's ratios stay 1 and a
    part's objective is the sum of its coefficients at every position."""
    world = make_world(TASKS[SMALL], 0)
    learner = Learner(world, model_of(SMALL).state_dict(), 1e-3, 0)
    made: list[tuple[float, float]] = []
    monkeypatch.setattr(learner, "_update", lambda gain, size: made.append((gain.item(), size)))
    answers = learner.sample(range(16))
    learner.train(answers, list(range(16)), [1.0, 0.0] * 8, epochs, updates)
    assert len(made) == epochs * updates and {size for _, size in made} == {16 / updates}
    positions = answers.tokens.shape[1]
    assert sum(gain for gain, _ in made) == pytest.approx(epochs * 8 * positions)


OF_EACH_KIND = (*("uniform-4-e2", "grpo-4-skip", "spo-n2", "balance", "est", "dapo", "greso", "weighed-as-est"),)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_every_method_keeps_its_books(name: str) -> None:
    # Weights that were measured are of some tasks only.
    weight_of = METHODS[name].weight_of
    task = "unsolvable" if weight_of is None or weight_of in ENUMERATED else "graded"
    world = make_world(TASKS[task], 0)
    trial = Trial(Learner(world, model_of(task).state_dict(), 1e-3, 0), METHODS[name], 32, seed=0)
    curve = trial.run(150)
    assert len(curve.accuracy) == len(curve.spent) == 41
    last = curve.spent[-1]
    assert last["rollouts"] >= 150
    assert last["trained_tokens"] <= last["tokens"] * METHODS[name].epochs
    assert last["trained"] <= last["rollouts"] * METHODS[name].epochs and last["steps"] > 0
    assert sum(rollouts for batch in last["batches"] for _, rollouts in batch) == last["rollouts"]
    assert last["batches"][0][0][0] == 32 * last["steps"]


def test_budget_may_be_in_seconds() -> None:
    """Of steps of 512 real prompts, 4 rollouts each, all trained: 99 s a step."""
    learner = Learner(make_world(TASKS[SMALL], 0), model_of(SMALL).state_dict(), 1e-3, 0)
    curve = Trial(learner, METHODS["uniform-4"], 32, seed=0).run(400, "seconds")
    assert [point["steps"] for point in curve.spent][-1] == 5
    assert COSTS["seconds"](curve.spent)[-1] == pytest.approx(5 * 99.1, rel=0.01)


@pytest.mark.slow
def test_same_seed_gives_the_same_curve() -> None:
    world, weights = make_world(TASKS[SMALL], 0), model_of(SMALL).state_dict()
    curves = [
        Trial(Learner(world, weights, 1e-3, 0), METHODS["balance"], 32, seed=0).run(150).accuracy for _ in range(2)
    ]
    assert curves[0] == curves[1]


def test_unsolvable_task_starts_as_the_graded_one() -> None:
    """Its labels alone differ, and the warm start does not read them."""
    graded, unsolvable = (make_world(TASKS[name], 0) for name in ("graded", "unsolvable"))
    assert np.array_equal(graded.tables, unsolvable.tables) and np.array_equal(graded.skills, unsolvable.skills)
    assert replace(unsolvable.task, name="graded", summary=graded.task.summary, unsolvable=0.0) == graded.task


@pytest.mark.long
@pytest.mark.parametrize("name", ["graded", "hard"])
def test_starting_models_are_as_the_task_says(name: str) -> None:
    world = make_world(TASKS[name], 0)
    model = model_of(name)
    model.load_state_dict(warm_start(world, 0))
    rates = pass_rates(model, world.train)[world.solvable]
    if name == "graded":
        assert np.quantile(rates, 0.1) < 0.1 and np.quantile(rates, 0.9) > 0.7
    if name == "hard":
        assert np.median(rates) < 0.1
