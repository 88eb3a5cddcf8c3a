"""Running totals: prompts, workings, luck and reward, by enumeration; the plan of runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.arena import running_totals as totals
from benchmarks.arena.methods import check_on_real_stack
from benchmarks.arena.real import KINDS, Conditions, plan, prompts_per_step, rollouts_per_prompt, run_flags
from benchmarks.arena.run_real import SUBJECTS
from openrlhf_ada.cli.demo import flags_of_any_run, words
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.trainer.preflight import check_without_files

CLASSES = pytest.mark.parametrize("classes", totals.CLASSES)


def drawn(classes: int, count: int, *, imperfect: bool) -> list[tuple[str, str, str]]:
    """(prompt, label with its working, answer)"""
    rng = Random(0)
    found: list[tuple[str, str, str]] = []
    for _ in range(count):
        terms = totals.drawn_terms(rng)
        said = totals.answer(terms, classes, rng, imperfect=imperfect)
        label = totals.class_of(sum(terms), classes) + totals.ASKS_FOR_WORKING
        found.append((f"{'+'.join(map(str, terms))}=", label, said))
    return found


@CLASSES
def test_perfect_answers_have_full_marks_in_any_order(classes: int) -> None:
    rows = drawn(classes, 300, imperfect=False)
    assert {totals.score(*row[:1], row[2], row[1]) for row in rows} == {1.0}
    orders = {totals.answer([2, 3, 4, 5, 6, 7], classes, Random(seed), imperfect=False) for seed in range(50)}
    assert len(orders) > 40, "many workings are right"


@CLASSES
def test_a_wrong_total_is_right_by_luck_as_often_as_stated(classes: int) -> None:
    """Whatever the total: by all errors that one addition can have."""
    for total in range(150):
        right = [totals.class_of(total + error, classes) == totals.class_of(total, classes)
                 for error in totals.errors(classes)]  # fmt: skip
        assert sum(right) / len(right) == 1 / classes


@CLASSES
def test_imperfect_workings_are_right_as_often_as_skills_say(classes: int) -> None:
    rows = drawn(classes, 4000, imperfect=True)
    marks = [totals.score(prompt, said, label) for prompt, label, said in rows]
    working = [mark in (1.0, totals.WORKING) for mark in marks]
    right = [mark >= totals.RIGHT for mark in marks]
    expected = 0.0
    for prompt, _, said in rows:
        chance = 1.0
        for term in said.partition(";")[0].split("+")[1:]:
            chance *= totals.skill(int(term.split("=")[0]))
        expected += chance / len(rows)
        assert prompt
    assert sum(working) / len(rows) == pytest.approx(expected, abs=0.02)
    wrong = [is_right for is_right, well in zip(right, working, strict=True) if not well]
    assert sum(wrong) / len(wrong) == pytest.approx(1 / classes, abs=0.03)
    assert all(is_right for is_right, well in zip(right, working, strict=True) if well), "the class is never misread"


def test_answers_have_20_to_60_tokens_and_fit() -> None:
    from openrlhf_ada.demo.model import _build_tokenizer, find_gguf

    tokenizer = _build_tokenizer(find_gguf())
    shortest, longest = [2] * 6, [9] * 8
    for terms in (shortest, longest):
        prompt = f"{'+'.join(map(str, terms))}="
        said = totals.answer(terms, 10, Random(0), imperfect=False)
        whole = tokenizer.encode(prompt + said)
        assert len(whole) == len(prompt) + len(said), "one token a character"
        assert 20 <= len(said) + 1 <= SUBJECTS["totals-10"].recipe.max_new_tokens <= 60
        assert len(prompt) + SUBJECTS["totals-10"].recipe.max_new_tokens <= 64


@CLASSES
def test_prompts_are_balanced_distinct_and_apart(classes: int, tmp_path: Path) -> None:
    sizes = {"num_train": 400, "num_heldout": 40}
    totals.write_prompts(tmp_path, classes, **sizes, seed=3)
    train, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "heldout")
    )
    assert Counter(row["label"] for row in train) == dict.fromkeys(totals.CLASSES[classes], 400 // classes)
    assert all(row["label"].endswith(totals.ASKS_FOR_WORKING) for row in held_out)

    def numbers(rows: list[dict[str, str]]) -> set[str]:
        return {"".join(sorted(row["input"])) for row in rows}

    assert len({row["input"] for row in train + held_out}) == 440
    assert not numbers(train) & numbers(held_out)
    again = tmp_path / "again"
    totals.write_prompts(again, classes, **sizes, seed=3)
    assert (again / "train.jsonl").read_bytes() == (tmp_path / "train.jsonl").read_bytes()


PROMPT = "2+3+4="
HELD_OUT = f"9{totals.ASKS_FOR_WORKING}"


@pytest.mark.parametrize(
    ("said", "trained", "held_out"),
    [
        ("2+3=5+4=9;9", 1.0, 1.0),
        ("4+2=6+3=9;9<|im_end|>", 1.0, 1.0),
        ("2+3=6+4=10+9=19;9", 1.0, 0.75),
        (";9", 1.0, 0.75),
        ("2+3=5;9", 1.0, 0.75),
        ("2+3=5+4=9;8", 0.0, 0.25),
        ("2+3=5+4=9;", 0.0, 0.25),
        ("2+3=5+4=9", 0.0, 0.25),
        ("2+3=6+4=10;0", 0.0, 0.0),
        ("2+3=5+4=9;9;9", 0.0, 0.25),
        ("", 0.0, 0.0),
    ],
)
def test_class_alone_is_rewarded_and_the_working_is_measured(said: str, trained: float, held_out: float) -> None:
    found = totals.reward_func([PROMPT + said] * 2, [PROMPT] * 2, ["9", HELD_OUT])
    assert found["rewards"].tolist() == found["scores"].tolist() == [trained, held_out]


def test_share_of_right_workings_comes_back_from_the_mean_score() -> None:
    scores = [1.0, 0.75, 0.25, 0.0, 1.0]
    assert totals.working_right(3 / 5, sum(scores) / 5) == pytest.approx(3 / 5)
    assert totals.working_right(1.0, 0.75) == pytest.approx(0.0)


# -- plan -------------------------------------------------------------------------------------------------------------

KIND = KINDS["totals-10"]
CONDITIONS = Conditions("totals-10", KIND.budget, KIND.rates, KIND.prompts, KIND.answers)


def test_plan_has_equal_updates_and_tokens() -> None:
    """Four updates of an epoch, at three rates and three seeds; what is done first compares most."""
    cells = plan(CONDITIONS, KIND.methods, 3)
    assert len(cells) == len(set(cells)) == 9 * len(KIND.methods)
    for name in KIND.methods:
        flags = run_flags(name, CONDITIONS)
        drawn = flags["rollout.batch_size"] * flags["rollout.n_samples_per_prompt"]
        assert drawn == 4 * flags["train.batch_size"]
        assert prompts_per_step(name) * rollouts_per_prompt(name) == pytest.approx(128, rel=0.1)
    assert {cell.rate for cell in cells[: len(cells) // 3]} == {2e-5}, "whole rates first"
    assert CONDITIONS.kind.counted == "tokens"


def parsed(method: str) -> Any:
    folder, subject = Path("/nowhere"), SUBJECTS["totals-10"]
    flags = flags_of_any_run(subject.recipe, folder, folder, folder) | subject.flags | run_flags(method, CONDITIONS)
    return parse(words(flags), check_without_files)


@pytest.mark.parametrize("epochs", [1, 2])
def test_lambda_measures_its_factor_and_its_control_does_not(epochs: int) -> None:
    assert parsed(f"lambda-1/{epochs}").ada.measures_factor
    assert not parsed(f"n1/{epochs}").ada.measures_factor


def test_names_of_run_folders_are_distinct() -> None:
    cells = plan(CONDITIONS, KIND.methods, 3)
    names = {cell.name for cell in cells}
    assert len(names) == len(cells) and not any("/" in name for name in names)


def test_command_line_has_the_reward_and_its_threshold() -> None:
    args = parsed("n8/1")
    assert args.ada.positive_above == 0.5 < totals.RIGHT
    assert args.reward.remote_url == [totals.__file__]
    assert args.rollout.max_new_tokens == 48


@pytest.mark.parametrize("method", ["wrong-8/1", "weighted-8/2"])
def test_what_no_flag_says_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="no flag says this"):
        check_on_real_stack([method])
