"""Labels, read by their own graders before anything is sampled: which cannot be read,
which contradict each other, and which are not right by themselves.

Every answer to a prompt whose label cannot be read would stay without a score, so such rows are left out. Functions of
users are not asked: what they take for an answer is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openrlhf_ada.data.problems import Problem, deduplicated
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.reward.mathematics.answers import final_answer
from openrlhf_ada.reward.mixed import label_of, named_label
from openrlhf_ada.reward.pool import GraderPool, GradingLimits
from openrlhf_ada.reward.reasoning_answers import from_label
from openrlhf_ada.reward.reward_function import GRADERS, MIXED, NAMED, grader_of


def read_labels(labels: Sequence[Any], reward: str, limits: GradingLimits) -> dict[int, str]:
    """Let `reward` read the labels, each different one once. Returns the positions of those that it cannot read, each
    with the cause.

    `reward`: one of GRADERS, or MIXED for labels that name theirs.
    """
    positions: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        named = named_label(label) if reward == MIXED else None
        if named is None or named[0] in GRADERS:
            positions.setdefault(json.dumps(label), []).append(position)
    if not positions:
        return {}
    with GraderPool(grader_of(reward), limits) as pool, ThreadPoolExecutor(2 * pool.num_workers) as threads:
        # An empty response is a wrong answer to every label that can be read.
        grades = list(threads.map(lambda label: pool.grade("", json.loads(label)), positions))
    found = zip(grades, positions.values(), strict=True)
    return {position: grade.cause for grade, same in found if grade.score is None for position in same}


class LabelChecks(GraderPool):
    """`reward`: one of GRADERS, or MIXED for problems that have a grader each."""

    def __init__(self, reward: str, limits: GradingLimits) -> None:
        super().__init__(grader_of(reward), limits)
        self._reward = reward

    def same(self, problem: Problem, other: Problem) -> bool:
        """Is the answer of one problem right for the other?"""
        reward = problem.reward or self._reward
        response = reference_response(reward, problem.label)
        if response is None or reward != (other.reward or self._reward):
            return False
        return self._graded(response, other).score == 1.0

    def unverified(self, problems: Sequence[Problem], on_progress: Callable[[], object]) -> dict[str, str]:
        """Ids of problems whose labels do not verify themselves, with the cause: every right answer would count as
        wrong. `on_progress`: once per problem."""

        def check(problem: Problem) -> str:
            cause, reward = "", problem.reward or self._reward
            if reward in GRADERS:
                response = reference_response(reward, problem.label)
                grade = self._graded(response or "", problem)
                if grade.score is None:
                    cause = grade.cause
                elif response is not None and grade.score < 1.0:
                    cause = "the reference answer is not right by itself"
            on_progress()
            return cause

        with ThreadPoolExecutor(2 * self.num_workers) as threads:
            causes = list(threads.map(check, problems))
        return {problem.id: cause for problem, cause in zip(problems, causes, strict=True) if cause}

    def _graded(self, response: str, problem: Problem) -> TimedGrade:
        is_mixed = self._reward == MIXED
        return self.grade(response, label_of(problem.reward or MIXED, problem.label) if is_mixed else problem.label)


def reference_response(reward: str, label: Any) -> str | None:
    """A response that must be right by this label. None where the label names none: tests of programs, tasks with many
    right answers, rewards that are not ours."""
    if reward == "reasoning_gym":
        answer = (from_label(label) if isinstance(label, str) else label)["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"
    first = str(label[0] if isinstance(label, list) and label else label)
    match reward:
        case "arithmetic":
            return first
        case "math":
            text = final_answer(first)
            return text if "\\boxed" in text else rf"\boxed{{{text}}}"
        case _:
            return None


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
        f"{len(found):,} of {total:,} rows contradict another row, with the same prompt and another label, such as "
        f"{first.source} {first.place} and {other.source} {other.place}. Correct the labels, or keep one of the rows"
    ]
