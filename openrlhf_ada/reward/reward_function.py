"""From a grader to the `reward_func` that OpenRLHF loads (`--reward.remote_url <file>.py`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import FULL_MARKS
from openrlhf_ada.reward.forms import asker, awaited, made, parameters_of
from openrlhf_ada.reward.grade import NoScoreError, TimedGrade
from openrlhf_ada.reward.pool import GraderPool, GradingLimits
from openrlhf_ada.reward.returned import as_rewards

GRADERS = {
    "arithmetic": "openrlhf_ada.reward.arithmetic:grade",
    "code": "openrlhf_ada.reward.programs:grade",
    "math": "openrlhf_ada.reward.mathematics:grade",
    "reasoning_gym": "openrlhf_ada.reward.reasoning_answers:grade",
}
NAMED = tuple(GRADERS)
"""Reward functions that come with the package, by the names that `--reward.remote_url` takes."""

RIGHT_OR_WRONG = ("arithmetic", "code", "math")
"""Those that give no partial credit (`code`: without --ada_code_partial)."""

MIXED = "mixed"
"""For labels that name their grader: see `mixed`."""

ARITHMETIC = Path(__file__).resolve().with_name("arithmetic.py")
"""Needs no process of its own."""
COMBINED = ARITHMETIC.with_name("combined.py")
"""Of all other graders, and of several rewards."""

_END = re.compile(
    r"(?:\s*(?:<\|[a-z_]{1,30}\|>|</s>|<eos>|<pad>|<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>))+\s*$"
)


def grader_of(name: str) -> str:
    """What a GraderPool loads for a name of NAMED, MIXED or FILE.py:NAME."""
    return f"openrlhf_ada.reward.{MIXED}:grade" if name == MIXED else GRADERS.get(name, name)


def name_of(reward: str) -> str:
    """ "arithmetic" for the path of its file, which OpenRLHF can load; anything else as it is."""
    return "arithmetic" if Path(reward).resolve() == ARITHMETIC else reward


def default_threshold(reward: str) -> float | None:
    """A training sample is positive if its score is greater: only full marks are a right answer, and a grader may give
    partial credit. None for rewards that are not ours, whose scale is not known here. `reward`: the first one of
    --reward.remote_url."""
    return FULL_MARKS if reward in (*NAMED, MIXED) else None


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def file_and_function(name: str) -> tuple[str, str] | None:
    """The two parts of FILE.py:NAME; None for anything else."""
    file, _, function = name.rpartition(":")
    return (file, function) if file.endswith(".py") and function.isidentifier() else None


def grades_labels(name: str) -> bool:
    """Is it a grader of (response, label): one of ours, FILE.py:NAME, or the one that a row names?"""
    return name in (*NAMED, MIXED) or file_and_function(name) is not None


def reward_files(names: Sequence[str]) -> list[str]:
    """What OpenRLHF's executor loads for these rewards, on this machine: one file, or URLs."""
    if all(map(is_url, names)):
        return list(names)
    if list(names) == ["arithmetic"]:
        return [str(ARITHMETIC)]
    return list(names) if len(names) == 1 and not grades_labels(names[0]) else [str(COMBINED)]


def response_of(query: str, prompt: str) -> str:
    """What follows the prompt, without special tokens at its end. Raises ValueError where the prompt was cut."""
    if not query.startswith(prompt):
        raise ValueError(
            f"the query does not start with its prompt: query {short(query)}, prompt {short(prompt)}. The prompt may "
            f"have been cut to fit (raise --data.max_len) or the tokenizer does not give back the text it was given."
        )
    return query[len(prompt) :]


def strip_end_tokens(response: str) -> str:
    """The response without special tokens at its end, which OpenRLHF leaves in the text."""
    # They are few and short. On the whole text, a pattern that ends in $ would be tried at every position.
    head, tail = response[:-200], response[-200:]
    return head + _END.sub("", tail)


def short(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")


FORMATS = {
    "boxed": re.compile(r".*?\\boxed\s*\{.*", re.DOTALL),
    "think": re.compile(r"\s*(?:<think>)?(?:(?!</?think>).)+</think>(?:(?!</?think>).)+", re.DOTALL),
    "answer": re.compile(r"(?:(?!</?answer>).)*<answer>(?:(?!</?answer>).)+</answer>\s*", re.DOTALL),
}
"""`boxed`: there is a box. `think`: thinking that ends, then an answer (chat templates may open it). `answer`: one
`<answer>...</answer>` at the end."""

LONGEST = 200_000
"""Characters: longer responses are in no format."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """`bonus` for a response in the format `format_name`, one of FORMATS, or "none"."""

    format_name: str = "none"
    bonus: float = 0.0

    def __call__(self, response: str) -> float:
        """The bonus of this response."""
        if self.format_name == "none" or len(response) > LONGEST:
            return 0.0
        return self.bonus if FORMATS[self.format_name].fullmatch(response) else 0.0


@dataclass(frozen=True, slots=True)
class Grading:
    """What the flags say of grading. `workers`: processes per engine, None for `pool.default_workers()`; `weights`: of
    several rewards, None for 1 each."""

    limits: GradingLimits = field(default_factory=GradingLimits)
    workers: int | None = None
    shaping: Shaping = field(default_factory=Shaping)
    weights: Sequence[float] | None = None


class PooledReward:
    """A reward function whose scores come from a process pool, which starts with the first call.

    Called as OpenRLHF calls one: `queries` are prompt + response as decoded text, all lists have length B. Returns
    "scores" (in [0, 1]) and "rewards" (scores plus shaping), float tensors of shape (B,); and "grades", which our
    engines log and OpenRLHF ignores. Raises NoScoreError, ValueError (see `response_of`), GraderError.
    """

    def __init__(self, grader: str) -> None:
        self.grader = grader
        self.grading = Grading()
        self._pool: GraderPool | None = None
        # OpenRLHF asks from several threads.
        self._lock = threading.Lock()

    def configure(self, grading: Grading) -> None:
        """Call this before the first answer is graded; raises RuntimeError later."""
        if self._pool is not None:
            raise RuntimeError("the reward function already grades, and cannot be configured any more")
        self.grading = grading

    def start(self) -> None:
        """Start the processes now, so that their imports do not delay the first grades."""
        with self._lock:
            self._pool = self._pool or GraderPool(self.grader, self.grading.limits, self.grading.workers)

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **kwargs: Any
    ) -> dict[str, Any]:
        import torch

        rows = list(zip(queries, prompts, labels, strict=True))
        responses = [strip_end_tokens(response_of(query, prompt)) for query, prompt, _ in rows]
        grades = [self.grade(text, row[2], row[1]) for text, row in zip(responses, rows, strict=True)]
        scores = [_score_of(grade) for grade in grades]
        given = [score if grade.reward is None else grade.reward for score, grade in zip(scores, grades, strict=True)]
        rewards = [reward + self.grading.shaping(text) for reward, text in zip(given, responses, strict=True)]
        return {
            "rewards": torch.tensor(rewards, dtype=torch.float32),
            "scores": torch.tensor(scores, dtype=torch.float32),
            "extra_logs": {},
            "grades": grades,
        }

    def grade(self, response: str, label: Any, prompt: str = "") -> TimedGrade:
        """The grade of one response."""
        self.start()
        assert self._pool is not None
        return self._pool.grade(response, label, prompt)

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


pooled = PooledReward
"""`reward_func = pooled("my_package.my_module:grade")` makes a file a reward file; `grade` is a `grade.Grader`. Also
`pooled("/data/my_grader.py:grade")`."""


def in_openrlhf_form(function: Any) -> Any:
    """A `reward_func` of any form (`forms`), as OpenRLHF calls one: with one answer. What it returns is a dict with
    'rewards'; it raises NoScoreError for what is none, and what the function raises. Ours stays as it is."""
    if isinstance(function, PooledReward):
        return function
    function = made(function)
    ask = None if "queries" in parameters_of(function) else asker(function)

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **kwargs: Any) -> Any:
        if ask is None:
            return as_rewards(awaited(function(queries, prompts, labels, **kwargs)))
        response = strip_end_tokens(response_of(queries[0], prompts[0]))
        return as_rewards(ask(response, labels[0], prompts[0]))

    return reward_func


def _score_of(grade: TimedGrade) -> float:
    if grade.score is None:
        raise NoScoreError(f"{grade.cause} (after {grade.seconds:.1f} s)")
    return grade.score
