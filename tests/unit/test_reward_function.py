"""From a grader to OpenRLHF's reward_func: its form, shaping beside the score, and nothing for no score."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import poison_grader
import pytest
from adversarial import adversarial_texts

from openrlhf_ada.reward import reasoning_answers
from openrlhf_ada.reward.grade import UnusableLabelError
from openrlhf_ada.reward.pool import GradingLimits
from openrlhf_ada.reward.reasoning_answers import import_reasoning_gym, to_label
from openrlhf_ada.reward.reward_function import (
    ARITHMETIC,
    COMBINED,
    Grading,
    NoScoreError,
    PooledReward,
    Shaping,
    grader_of,
    pooled,
    strip_end_tokens,
)
from openrlhf_ada.reward.worker import load_file


@pytest.fixture
def poisoned() -> Iterator[PooledReward]:
    reward = pooled(f"{poison_grader.__file__}:grade")
    reward.configure(Grading(GradingLimits(0.5, 256), workers=1, shaping=Shaping("think", 0.25)))
    yield reward
    reward.close()


@pytest.mark.parametrize("path", [ARITHMETIC, COMBINED])
def test_openrlhf_can_load_the_reward_files(path: Path) -> None:
    assert callable(load_file(str(path)).reward_func)


@pytest.mark.slow
def test_mathematics_through_the_hosts_form() -> None:
    reward = pooled(grader_of("math"))
    result = reward(["Q: 1/2?A: \\boxed{0.5}<|im_end|>", "Q?A: \\boxed{3}"], ["Q: 1/2?", "Q?"], ["\\frac{1}{2}", "4"])
    reward.close()
    assert result["rewards"].tolist() == result["scores"].tolist() == [1.0, 0.0]
    assert [grade.cause for grade in result["grades"]] == ["", "wrong answer"]


def test_shaping_is_added_to_reward_not_score(poisoned: PooledReward) -> None:
    texts = ["<think>hm</think>4", "4"]
    result = poisoned([f"Q{text}" for text in texts], ["Q", "Q"], [texts[0], "5"])
    assert result["scores"].tolist() == [1.0, 0.0]
    assert result["rewards"].tolist() == [1.25, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(("poison", "cause"), [("spin", r"time limit \(0.5 s\)"), ("raise", "KeyError: 'x'")])
def test_without_a_score_there_is_no_reward_at_all(poisoned: PooledReward, poison: str, cause: str) -> None:
    with pytest.raises(NoScoreError, match=cause):
        poisoned([f"Q{poison}"], ["Q"], ["4"])


def test_a_prompt_that_was_cut_is_refused(poisoned: PooledReward) -> None:
    with pytest.raises(ValueError, match=r"does not start with its prompt.*--data\.max_len"):
        poisoned(["cut"], ["a prompt that was cut"], ["4"])


def test_it_is_configured_before_it_grades(poisoned: PooledReward) -> None:
    poisoned.start()
    with pytest.raises(RuntimeError, match="already grades"):
        poisoned.configure(Grading())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("7<|im_end|>", "7"),
        ("7<|eot_id|>\n<|endoftext|>", "7"),
        ("7</s>", "7"),
        ("<answer>7</answer>", "<answer>7</answer>"),
        ("a < b", "a < b"),
        ("", ""),
    ],
)
def test_trailing_special_tokens_are_not_read(text: str, kept: str) -> None:
    assert strip_end_tokens(text) == kept


@pytest.mark.parametrize(
    ("name", "text", "has"),
    [
        ("boxed", "so \\boxed{4}", True),
        ("boxed", "so 4", False),
        ("think", "<think>hm</think> 4", True),
        ("think", "hm</think> 4", True),
        ("think", "<think>hm 4", False),
        ("think", "<think>a</think>b<think>c</think>d", False),
        ("think", "<think>a</think>", False),
        ("answer", "hm <answer>4</answer>\n", True),
        ("answer", "<answer>4</answer> and more", False),
        ("answer", "<answer>3</answer><answer>4</answer>", False),
    ],
)
def test_formats(name: str, text: str, has: bool) -> None:
    assert Shaping(name, 0.5)(text) == 0.5 * has


def test_formats_take_linear_time() -> None:
    for text in adversarial_texts(300, seed=1):
        for name in ("boxed", "think", "answer"):
            Shaping(name, 0.5)(text)


# -- reasoning-gym ----------------------------------------------------------------------------------------------------


def entry(task: str, **options: Any) -> dict[str, Any]:
    return json.loads(json.dumps(import_reasoning_gym().create_dataset(task, size=1, seed=3, **options)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["chain_sum", "countdown", "spell_backward", "basic_arithmetic", "letter_counting"])
def test_reasoning_gym_verifiers_accept_wrapped_answers(task: str) -> None:
    label = entry(task)
    right = label["answer"]
    for response in (right, f"Hm.</think>{right}", f"So <answer>{right}</answer>", f"It is \\boxed{{{right}}}."):
        assert reasoning_answers.grade(response, label).score == 1.0
    assert reasoning_answers.grade(f"<answer>{right}</answer>", json.dumps(label)).score == 1.0
    assert reasoning_answers.grade("<answer>no</answer>", label).score < 0.5
    assert reasoning_answers.grade(" ", label).cause == "no answer"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["prime_factorization", "game_of_life", "boxnet"])
def test_unreadable_answer_is_wrong(task: str) -> None:
    label = entry(task)
    for junk in ("x", "[]", "1,2", "{}"):
        assert reasoning_answers.grade(f"<answer>{junk}</answer>", label).score < 0.5


@pytest.mark.slow
def test_label_round_trip_keeps_score() -> None:
    gym = import_reasoning_gym()
    # One is made of others, one needs a solver that is not installed.
    for task in sorted(gym.factory.DATASETS.keys() - {"composite", "zebra_puzzles"}):
        data = gym.create_dataset(task, size=1, seed=1)
        first = data[0]
        if first["answer"] is not None:
            said = data.score_answer(first["answer"], first)
            assert reasoning_answers.grade(f"<answer>{first['answer']}</answer>", to_label(first)).score == said, task


@pytest.mark.parametrize("label", ["4", "{}", 4, {"question": "", "answer": "", "metadata": {}}, None])
def test_labels_that_are_no_entries_are_refused(label: Any) -> None:
    with pytest.raises(UnusableLabelError, match="reasoning-gym"):
        reasoning_answers.grade("4", label)


@pytest.mark.slow
def test_a_task_that_is_not_there_is_named() -> None:
    label = {"question": "", "answer": "", "metadata": {"source_dataset": "no_such_task"}}
    with pytest.raises(UnusableLabelError, match="no task 'no_such_task'"):
        reasoning_answers.grade("4", label)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reasoning_gym", "code"])
def test_adversarial_texts_never_hang_a_reward(name: str) -> None:
    label: Any = entry("countdown") if name == "reasoning_gym" else {"inputs": ["1"], "outputs": ["2"]}
    reward = pooled(grader_of(name))
    reward.configure(Grading(GradingLimits(20.0, 1024), workers=2))
    with ThreadPoolExecutor(4) as threads:
        grades = list(threads.map(lambda text: reward.grade(text, label), adversarial_texts(10_000, seed=7)))
    reward.close()
    assert max(grade.seconds for grade in grades) < 20.5
    assert sum(grade.score is None for grade in grades) <= len(grades) / 100
