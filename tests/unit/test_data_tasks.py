"""Every task of reasoning-gym gives problems that its grader can grade, or one clear error."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.problems import Source, load_problems
from openrlhf_ada.reward.reasoning_answers import SOLVER, from_label, grade, import_reasoning_gym


def has_solver() -> bool:
    """A stub takes its place where it is not."""
    import_reasoning_gym()
    return getattr(sys.modules[SOLVER], "__spec__", None) is not None if SOLVER in sys.modules else False


REFUSED = {
    "composite": r"reasoning_gym:composite: .*AssertionError",
    "zebra_puzzles": r"reasoning_gym:zebra_puzzles: .*pip install pycosat",
    "chain_sums": r"reasoning-gym has no task 'chain_sums': did you mean reasoning_gym:chain_sum\?",
    "": r"reasoning-gym has no task '': name one of its \d+ tasks",
}


@pytest.mark.slow
@pytest.mark.parametrize("task", REFUSED)
def test_tasks_that_make_no_problems_are_one_error(task: str) -> None:
    if task == "zebra_puzzles" and has_solver():
        pytest.skip(f"{SOLVER} is installed")
    with pytest.raises(DataError, match=REFUSED[task]) as error:
        load_problems(Source("s", f"reasoning_gym:{task}", size=2))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_generator_that_fails_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gym = import_reasoning_gym()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("max_terms must be >= min_terms\nand more")

    monkeypatch.setattr(gym, "create_dataset", fail)
    message = r"^reasoning_gym:chain_sum: reasoning-gym cannot make 2 problems .*max_terms must be >= min_terms\): try"
    with pytest.raises(DataError, match=message):
        load_problems(Source("s", "reasoning_gym:chain_sum", size=2))


@pytest.mark.slow
def test_every_task_is_graded_or_refused() -> None:
    import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    found: dict[str, str] = {}
    for task in sorted(DATASETS):
        try:
            problems = load_problems(Source("s", f"reasoning_gym:{task}", size=2))
        except DataError as error:
            found[task] = str(error)
            continue
        for problem in problems:
            answer = from_label(problem.label)["answer"]
            if answer is not None and grade(f"<answer>{answer}</answer>", problem.label).score < 1.0:
                found[task] = "its own answer is not right"
            assert 0.0 <= grade("<answer>no answer to this</answer>", problem.label).score <= 1.0
    assert found.keys() == {"composite"} | (set() if has_solver() else {"zebra_puzzles"}), found
    assert len(DATASETS) > 100
