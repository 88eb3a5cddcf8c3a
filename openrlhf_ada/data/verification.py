"""Does a reference answer get score 1 from its own grader? If not, every right answer would count as wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openrlhf_ada.data.problems import Problem, deduplicated
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.reward.mathematics.answers import final_answer
from openrlhf_ada.reward.mixed import label_of
from openrlhf_ada.reward.pool import GraderPool, GradingLimits
from openrlhf_ada.reward.reasoning_answers import from_label
from openrlhf_ada.reward.reward_function import GRADERS, MIXED, NAMED, grader_of

NO_PROGRAM = "```python\npass\n```"
"""A label of tests names no program that passes them. Any program shows whether the tests can be run."""


def reference_response(reward: str, label: Any) -> str:
    """A response that must be right by this label; for `code` one that must get a score."""
    if reward == "code":
        return NO_PROGRAM
    if reward == "reasoning_gym":
        return f"<answer>{_reasoning_answer(label)}</answer>"
    first = label[0] if isinstance(label, list) and label else label
    return str(first) if reward == "arithmetic" else _boxed(final_answer(str(first)))


def _boxed(text: str) -> str:
    return text if "\\boxed" in text else rf"\boxed{{{text}}}"


class LabelChecks:
    """Checks labels in a pool of graders; a context manager. `reward`: one of GRADERS, or MIXED for problems that
    have a grader each."""

    def __init__(self, reward: str, limits: GradingLimits) -> None:
        self._reward = reward
        self._pool = GraderPool(grader_of(reward), limits)

    def __enter__(self) -> LabelChecks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.close()

    def same(self, problem: Problem, other: Problem) -> bool:
        """Is the answer of one problem right for the other?"""
        reward = self._reward_of(problem)
        if reward != self._reward_of(other) or not _has_reference_answer(reward, problem.label):
            return False
        return self._grade(reference_response(reward, problem.label), other).score == 1.0

    def unverified(self, problems: Sequence[Problem], on_progress: Callable[[], object]) -> dict[str, str]:
        """Ids of problems whose labels do not verify themselves, with the cause. `on_progress`: once per problem."""

        def check(problem: Problem) -> str:
            reward = self._reward_of(problem)
            # What a user's function takes for an answer is not known here.
            cause = ""
            if reward in GRADERS:
                grade = self._grade(reference_response(reward, problem.label), problem)
                cause = _cause(_has_reference_answer(reward, problem.label), grade)
            on_progress()
            return cause

        with ThreadPoolExecutor(2 * self._pool.num_workers) as threads:
            causes = list(threads.map(check, problems))
        return {problem.id: cause for problem, cause in zip(problems, causes, strict=True) if cause}

    def _reward_of(self, problem: Problem) -> str:
        return problem.reward or self._reward

    def _grade(self, response: str, problem: Problem) -> TimedGrade:
        is_mixed = self._reward == MIXED
        label = label_of(self._reward_of(problem), problem.label) if is_mixed else problem.label
        return self._pool.grade(response, label)


def contradicting(problems: Sequence[Problem], reward: str, limits: GradingLimits) -> list[Problem]:
    """Those that have the question of another one and another label, next to each other. Labels of our rewards that
    are the same answer do not contradict each other."""
    found = deduplicated(problems, lambda problem, other: False)[2]
    if not found or reward not in (*NAMED, MIXED):
        return found
    with LabelChecks(reward, limits) as checks:
        return deduplicated(found, checks.same)[2]


def about_contradicting(found: Sequence[Problem], total: int) -> list[str]:
    """What is said of them, of `total` rows."""
    if not found:
        return []
    first, other = found[:2]
    return [
        f"{len(found):,} of {total:,} rows contradict another row, with the same prompt and another label; the "
        f"first two: {first.source} {first.place} and {other.source} {other.place}. Correct the labels, or keep "
        f"one of the rows"
    ]


def _reasoning_answer(label: Any) -> Any:
    """None for tasks with many right answers, which name none: colourings, puzzles, sequences of moves."""
    return (from_label(label) if isinstance(label, str) else label)["answer"]


def _has_reference_answer(reward: str, label: Any) -> bool:
    """Does the label hold a right answer?"""
    if reward == "reasoning_gym":
        return _reasoning_answer(label) is not None
    return reward in GRADERS and reward != "code"


def _cause(is_verifiable: bool, grade: TimedGrade) -> str:
    if grade.score is None:
        return grade.cause
    return "" if not is_verifiable or grade.score == 1.0 else "the reference answer is not right by itself"
