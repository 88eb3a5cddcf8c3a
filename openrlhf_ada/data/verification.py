"""Does a reference answer pass its own grader? One that does not makes every right answer a wrong one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openrlhf_ada.data.problems import Problem
from openrlhf_ada.reward.pool import GraderPool, Limits
from openrlhf_ada.reward.reward_function import GRADERS
from openrlhf_ada.reward.verdict import Verdict

NO_PROGRAM = "```python\npass\n```"
"""Tests do not tell a program that passes them; but whether they can be run is known from any."""


def own_answer(reward: str, label: Any) -> str:
    """A response that must be right by this label; for `code` one that must have a verdict."""
    if reward == "code":
        return NO_PROGRAM
    if reward == "reasoning_gym":
        entry = json.loads(label) if isinstance(label, str) else label
        return f"<answer>{entry['answer']}</answer>"
    first = label[0] if isinstance(label, list) and label else label
    return str(first) if reward == "arithmetic" else _boxed(str(first))


def _boxed(text: str) -> str:
    return text if "\\boxed" in text else rf"\boxed{{{text}}}"


def unverified(
    problems: Sequence[Problem], reward: str, limits: Limits, on_progress: Callable[[], object]
) -> dict[str, str]:
    """Ids of the problems whose labels do not verify themselves, with the cause. `on_progress`: once per problem."""
    with GraderPool(GRADERS[reward], limits) as pool, ThreadPoolExecutor(2 * pool.num_workers) as threads:

        def check(problem: Problem) -> str:
            verdict = pool.verdict(own_answer(reward, problem.label), problem.label)
            on_progress()
            return _complaint(reward, verdict)

        causes = list(threads.map(check, problems))
    return {problem.id: cause for problem, cause in zip(problems, causes, strict=True) if cause}


def _complaint(reward: str, verdict: Verdict) -> str:
    if verdict.score is None:
        return verdict.cause
    return "" if reward == "code" or verdict.score == 1.0 else "the reference answer is not right by itself"
