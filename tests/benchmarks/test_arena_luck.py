"""Tasks whose last symbol alone is checked, and the baseline of least noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.arena.grid import BUDGETS, RATES, TUNING_SEED, Cell, Trials, marks
from benchmarks.arena.grid_kept import begin_with, kept, main
from benchmarks.arena.grid_page import compared, details, render
from benchmarks.arena.learner import (
    AnswerModel,
    ChainModel,
    PromptBatch,
    _imperfect,
    is_right,
    right_share,
    sample,
    score_norms,
)
from benchmarks.arena.measures import ANSWERS, measured, on_hardest
from benchmarks.arena.methods import METHODS
from benchmarks.arena.orderings import AGREE, DISAGREE, NOT_RUN, OPEN, View, found, summary
from benchmarks.arena.orderings import TASKS as ORDERED
from benchmarks.arena.sigmoid import Sigmoid, fitted
from benchmarks.arena.tasks import END, FREE, LUCKY, NUM_SYMBOLS, PAD, TAG, World, make_world
from openrlhf_ada.core.least_noise import score_norm


def model_of(world: World) -> ChainModel:
    torch.manual_seed(0)
    return ChainModel(world.task.num_functions, max(world.task.lengths))


def perfect_answers(world: World, seed: int) -> tuple[PromptBatch, torch.Tensor]:
    """Prompts with their canonical answers, and answers of a model that knows everything."""
    rng = np.random.default_rng(seed)
    world.skills[:] = 1.0
    function, start, length, tokens, _ = _imperfect(world, rng, 2000)
    by_prompt = {(f, x, n): row for row, (f, x, n) in enumerate(zip(*columns(world), strict=True))}
    asked = [
        (at, by_prompt[key]) for at, key in enumerate(zip(function, start, length, strict=True)) if key in by_prompt
    ]
    index, rows = zip(*asked, strict=True)
    return PromptBatch.of(world.held_out, rows), torch.from_numpy(tokens[list(index)])


def columns(world: World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return world.held_out.function, world.held_out.start, world.held_out.length


@pytest.mark.parametrize("name", LUCKY)
def test_who_knows_everything_is_right(name: str) -> None:
    """But for answers that are cut off, and for the class, which the starting model says a little worse."""
    world = make_world(LUCKY[name], 3)
    prompts, tokens = perfect_answers(world, 5)
    assert (right_share(tokens, prompts, world.task) == 1.0).all()
    ended = (tokens == END).any(dim=1)
    right = is_right(tokens, prompts)
    assert not (right & ~ended).any()
    chance = 1.0 if not world.task.classes else 0.95 + 0.05 / world.task.classes
    assert float(right[ended].double().mean()) == pytest.approx(chance, abs=0.03)


@pytest.mark.parametrize("classes", [2, 4, 10])
def test_a_wrong_chain_is_right_as_often_as_chance(classes: int) -> None:
    world = make_world(LUCKY[f"luck{classes}"], 0)
    prompts = PromptBatch.of(world.held_out, np.repeat(np.arange(512), 40))
    tokens = torch.randint(0, NUM_SYMBOLS, prompts.answers.shape, generator=torch.Generator().manual_seed(1))
    place = prompts.length.unsqueeze(1)
    tokens.scatter_(1, place, torch.randint(0, classes, place.shape, generator=torch.Generator().manual_seed(2)))
    tokens.scatter_(1, place + 1, END)
    wrong = right_share(tokens, prompts, world.task) < 1.0
    assert float(is_right(tokens, prompts)[wrong].double().mean()) == pytest.approx(1 / classes, abs=0.01)


def test_only_what_stands_before_the_end_is_checked() -> None:
    world = make_world(LUCKY["ways"], 0)
    row = int(np.flatnonzero(world.held_out.length == 2)[0])
    right, wrong = int(world.held_out.final[row]), (int(world.held_out.final[row]) + 1) % 4
    answers = {
        (right, END): True,
        (wrong, right, END): True,
        (right, wrong, END): False,
        (right, END, wrong, END): True,
        (TAG, right, END): True,
        (END,): False,
        (right,): False,
        (right, TAG, END): False,
    }
    width = world.held_out.answers.shape[1]
    tokens = torch.tensor([[*answer, *[PAD] * (width - len(answer))] for answer in answers])
    assert is_right(tokens, PromptBatch.of(world.held_out, [row] * len(answers))).tolist() == list(answers.values())


def test_the_share_of_a_chain_that_is_right_is_partial_credit() -> None:
    world = make_world(LUCKY["partial"], 0)
    batch = PromptBatch.of(world.train, np.arange(len(world.train)))

    class Says(AnswerModel):
        def sample(self, prompts: PromptBatch, generator: torch.Generator) -> torch.Tensor:
            """The right chain but for its first symbol, and a wrong class."""
            tokens = prompts.answers.clone()
            tokens[:, 0] = (tokens[:, 0] + 1) % NUM_SYMBOLS
            at = prompts.length.unsqueeze(1)
            return tokens.scatter(1, at, (tokens.gather(1, at) + 1) % 4)

        def token_log_probs(self, prompts: PromptBatch, tokens: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError

    answers = sample(Says(), batch, torch.Generator(), world.task)
    assert not answers.right.any()
    expected = 0.5 * (batch.length - 1) / batch.length
    assert answers.scores.tolist() == pytest.approx(expected.tolist())


def test_labels_that_nothing_meets() -> None:
    world = make_world(LUCKY["labels"], 0)
    batch = PromptBatch.of(world.train)
    right = is_right(torch.where(batch.answers == FREE, 0, batch.answers), batch).numpy()
    assert not right[~world.solvable].any() and right[world.solvable].all()


def test_measures_of_an_untrained_model() -> None:
    world = make_world(LUCKY["luck2"], 0)
    (found, counts), (again, _) = (measured(model_of(world), world) for _ in range(2))
    assert found == again
    assert found["right"] == pytest.approx(counts.mean() / ANSWERS)
    parts = on_hardest(counts, counts)
    assert parts["right_hard"] < found["right"] < parts["right_rest"]
    assert found["right"] <= found["pass8"] <= found["pass32"] <= 1.0
    assert found["working"] < found["right"] and 0.0 < found["luck"] < 0.6
    assert found["pass32"] * 512 == pytest.approx(round(found["pass32"] * 512)), f"of {ANSWERS} answers"


def test_norms_of_score_vectors_are_those_of_the_package() -> None:
    log_probs = torch.tensor([[1.0, 1.0], [0.5, 1.0], [0.1, 0.2]]).log()
    assert score_norms(log_probs).tolist() == pytest.approx([score_norm(row) for row in log_probs.double().numpy()])


# -- published orderings ----------------------------------------------------------------------------------------------


def grid_of(folder: Path, right: Callable[[str, float, int], float]) -> View:
    """Results of three worlds with these shares of right answers, by method, budget and world."""
    trials = Trials(folder)

    def measures(share: float) -> dict[str, float]:
        return {"right": share, "pass8": 0.5, "pass32": 0.5, "entropy": 1.0 - share}

    for task, name, seed in itertools.product(ORDERED, METHODS, (TUNING_SEED, 0, 1, 2)):
        if "/" in name:
            at = marks(BUDGETS[-1])
            result = {"at": at, "accuracy": [right(name, point, seed) for point in at]}
            result["measures"] = {str(budget): measures(right(name, budget, seed)) for budget in (0, *BUDGETS)}
            trials.by_cell[Cell(task, name, RATES[0], seed, BUDGETS[-1])] = result
    return View(trials, 3)


def test_an_ordering_without_runs_is_not_run(tmp_path: Path) -> None:
    verdicts = summary(found(View(Trials(tmp_path), 3)))
    assert verdicts == {AGREE: [], DISAGREE: [], OPEN: [], NOT_RUN: list(range(1, 16))}


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, AGREE), (-0.1, DISAGREE), (0.0, OPEN)])
def test_the_verdict_is_that_of_the_interval(gain: float, verdict: str, tmp_path: Path) -> None:
    """Of the ninth: one rollout with a baseline is better than GRPO."""

    def right(name: str, budget: float, seed: int) -> float:
        return 0.3 + 0.01 * budget + (gain if name == "n1/1" and budget else 0.0) + 0.001 * (seed * len(name) % 7)

    verdicts = summary(found(grid_of(tmp_path, right)))
    assert 9 in verdicts[verdict]
    assert {6, 7, 8, 11} <= set(verdicts[NOT_RUN]), "nothing was run at equal steps"


# -- curves -----------------------------------------------------------------------------------------------------------


CURVES = [Sigmoid(0.2, 0.8, 1.0, 1.3), Sigmoid(0.5, 0.6, 4.0, 0.7), Sigmoid(0.3, 0.95, 0.2, 2.0)]


@pytest.mark.parametrize("curve", CURVES)
def test_a_sigmoid_is_found_again(curve: Sigmoid) -> None:
    cost = [0.0, *np.geomspace(1 / 8, 16, 15)]
    found = fitted(cost, curve.at(np.array(cost)).tolist())
    assert (found.end, found.middle, found.slope) == pytest.approx((curve.end, curve.middle, curve.slope), rel=1e-3)
    with pytest.raises(ValueError, match="5"):
        fitted([0.0, 1.0], [0.1, 0.2])


def line_to(right: float, pass8: float, budget: int = 4) -> dict[str, Any]:
    """A run whose accuracy goes from .2 to this by a line in the logarithm of the cost."""
    points = [round(at, 4) for at in marks(budget)]
    shares = [0.0, *np.linspace(0.1, 1.0, len(points) - 1)]
    measures = dict.fromkeys(("working", "luck", "pass32", "entropy", "tokens", "right_hard", "right_rest"), 0.5)
    return {
        "at": points,
        "accuracy": [0.2 + share * (right - 0.2) for share in shares],
        "spent": {"rollouts": [90] * len(points), "tokens": [900] * len(points), "seconds-7b": [7] * len(points)}
        | {"updates": [12] * len(points)},
        "measures": {
            str(at): measures | {"right": right if at else 0.2, "pass8": pass8} for at in (0, *BUDGETS) if at <= budget
        },
    }


def test_a_grid_is_kept_and_shown(tmp_path: Path) -> None:
    """What has a world more than uniform sampling is shown on as many worlds; what has fewer is not shown."""
    trials = Trials(tmp_path / "grid")
    for name, right, pass8, worlds in (
        ("n4/1", 0.6, 0.9, 3),
        ("n8/1", 0.6, 0.8, 3),
        ("n1/1", 0.8, 0.7, 4),
        ("n2/1", 0.9, 0.9, 2),
    ):
        for seed in (TUNING_SEED, *range(worlds)):
            trials.add(Cell("luck4", name, RATES[1], seed, 4), line_to(right, pass8))
    with pytest.raises(ValueError, match="no settings"):
        main("keep", [str(tmp_path / "grid")])
    (tmp_path / "grid" / "settings.json").write_text('{"trials": {}}')
    main("keep", [str(tmp_path / "grid"), "--out", str(tmp_path / "kept")])
    settings, read = kept(tmp_path / "kept")
    begin_with(tmp_path / "kept", tmp_path / "more")
    assert Trials(tmp_path / "more").by_cell == read.by_cell
    with pytest.raises(ValueError, match="holds something"):
        begin_with(tmp_path / "kept", tmp_path / "more")
    assert settings == {"trials": {}} and read.by_cell.keys() == trials.by_cell.keys()
    (one,) = compared(read, 4)
    assert one.seeds == 3 and one.methods == ["n1/1", "n4/1", "n8/1"]
    assert one.pass8_lead == pytest.approx({"n1/1": -0.2, "n4/1": 0.0, "n8/1": -0.1})
    assert one.beside_best["n1/1"] == 1.0 < one.beside_best["n4/1"] == one.beside_best["n8/1"]
    assert one.beside_uniform["n4/1"] == 1.0
    page, (head, *rows) = render(read), [line.split(",") for line in details(read).splitlines()]
    assert "`n2/1`" not in page and page.count("`n1/1`") >= 2
    assert {tuple(row[1:3]) for row in rows} == {(b, m) for b in ("1", "4") for m in one.methods}
    spent = dict(zip(head, rows[0], strict=True))
    assert (spent["rollouts spent"], spent["updates spent"]) == ("90", "12")
