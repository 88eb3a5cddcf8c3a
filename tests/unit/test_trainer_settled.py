"""Training calls positive what an evaluation calls right, unless the user says something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import FULL_MARKS
from openrlhf_ada.reward.reward_function import ARITHMETIC
from openrlhf_ada.trainer.settled import threshold_notes

Flags = dict[str, str | None]

REWARD, THRESHOLD, MODE = "--reward.remote_url", "--ada_positive_threshold", "--ada_mode"
SEQ = {MODE: "seq"}


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text("def reward_func(queries, prompts, labels): ...\ndef grade(response, label): ...\n")
    return str(path)


@pytest.mark.parametrize("reward", ["math", "arithmetic", "code", "reasoning_gym", "mixed"])
@pytest.mark.parametrize("mode", ["off", "seq"])
def test_full_marks_are_positive(argv_with: Callable[[Flags], list[str]], reward: str, mode: str) -> None:
    """A game_of_life board with one wrong cell of a hundred has the score 0.99."""
    args = parse(argv_with({MODE: mode, REWARD: reward}))
    assert args.ada.positive_threshold == args.ada.positive_threshold == FULL_MARKS
    assert args.ada.positive_above == FULL_MARKS > 0.99
    assert not threshold_notes(args)


def test_what_the_user_says_stays(argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse(argv_with({**SEQ, REWARD: "reasoning_gym", THRESHOLD: "0.6"}))
    assert args.ada.positive_above == 0.6
    (note,) = threshold_notes(args)
    assert note.startswith("--ada_positive_threshold is 0.6: reasoning_gym gives partial credit")


@pytest.mark.parametrize("flags", [{REWARD: "math"}, {REWARD: "code"}])
def test_scores_of_0_and_1_need_no_note(argv_with: Callable[[Flags], list[str]], flags: Flags) -> None:
    args = parse(argv_with({**SEQ, **flags, THRESHOLD: "0.6"}))
    assert not threshold_notes(args)


def test_partial_credit_for_programs_is_positive_for_all_tests_only(
    argv_with: Callable[[Flags], list[str]],
) -> None:
    args = parse([*argv_with({**SEQ, REWARD: "code"}), "--ada_code_partial"])
    assert args.ada.positive_above == FULL_MARKS and not threshold_notes(args)


def test_rewards_of_the_user_keep_half_and_are_told(argv_with: Callable[[Flags], list[str]], own: str) -> None:
    for reward in (own, f"{own}:grade", "http://localhost:1/get_reward"):
        args = parse(argv_with({**SEQ, REWARD: reward}))
        assert args.ada.positive_threshold is None and args.ada.positive_above == 0.5
        (note,) = threshold_notes(args)
        assert reward in note and "above 0.5" in note and "0.999999" in note
    args = parse(argv_with({**SEQ, REWARD: own, THRESHOLD: "0.7"}))
    assert not threshold_notes(args)


def test_the_file_of_a_named_reward_is_that_reward(
    argv_with: Callable[[Flags], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The demo names it so; another file of that name is the user's."""
    args = parse(argv_with({**SEQ, REWARD: str(ARITHMETIC)}))
    assert args.ada.positive_threshold == FULL_MARKS and not threshold_notes(args)
    other = tmp_path_factory.mktemp("other") / "arithmetic.py"
    other.write_text("def reward_func(queries, prompts, labels): ...\n")
    args = parse(argv_with({**SEQ, REWARD: str(other)}))
    assert args.ada.positive_threshold is None and threshold_notes(args)


def test_the_first_of_several_rewards_decides(argv_with: Callable[[Flags], list[str]], own: str) -> None:
    flags = {**SEQ, REWARD: f"math,{own}:grade", "--ada_reward_weights": "1,0.2"}
    assert parse(argv_with(flags)).ada.positive_threshold == FULL_MARKS
    flags[REWARD] = f"{own}:grade,math"
    assert parse(argv_with(flags)).ada.positive_threshold is None


def test_a_method_keeps_its_threshold(argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse([*argv_with({MODE: None, REWARD: "math"}), "--ada_method", "reinforce-ada-balance"])
    assert args.ada.positive_threshold == 0.7
