"""What a grader says of an answer, and what is recorded when it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SECONDS_VARIABLE = "OPENRLHF_ADA_SCORE_S"
"""Set in grading processes: seconds that one answer may take there."""
CODE_RULES_VARIABLE = "OPENRLHF_ADA_CODE_RULES"
"""Set in grading processes: `CodeRules` as JSON."""


class UnusableLabelError(ValueError):
    """No answer can be graded with this label, because no answer could be right."""


class NoScoreError(ValueError):
    """An answer has no score. It is neither counted as a rollout nor trained."""


class TooCostlyError(BaseException):
    """The processor time of an answer is used up. No `except Exception` of a library keeps it."""


@dataclass(frozen=True, slots=True)
class CodeRules:
    """What the flags say of programs. `imports`: modules that they may import besides the standard library. `partial`:
    the score is the share of tests that pass, and not 1 or 0."""

    imports: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Grade:
    """`score`: in [0, 1]. `cause`: why it is not 1, in a few words; the same words for the same kind of cause.
    `forgeable`: a program could have got this score without being right. `reward`: what is trained; None: the
    score."""

    score: float
    cause: str = ""
    forgeable: bool = False
    reward: float | None = None


_listeners: list[Callable[[float | None], object]] = []
_limiters: list[Callable[[], object]] = []
_preparations: list[Callable[[], object]] = []


def listen(tell: Callable[[float | None], object], limit: Callable[[], object] = lambda: None) -> None:
    """A grading process calls this once. `tell` gets None when the grader says `label_is_readable`, and the seconds
    when it says `may_take`; `limit` is called when it says `may_be_interrupted`."""
    _listeners[:], _limiters[:] = [tell], [limit]


def label_is_readable() -> None:
    """A grader may say, before it evaluates a response, that it has read the label. From then on a response that
    exceeds a limit of time, memory or recursion is a wrong answer: otherwise it would have no score, and a policy
    could escape a zero by answers that are costly to grade."""
    for tell in _listeners:
        tell(None)


def may_take(seconds: float) -> None:
    """A grader may say that the answer that it grades may take so many seconds in all instead of the usual limit: its
    label has many tests."""
    for tell in _listeners:
        tell(seconds)


def may_be_interrupted() -> None:
    """A grader may say, after `label_is_readable`, that TooCostlyError may interrupt it from now on, and that it may
    be asked once more: what takes long is graded aside, where no other answer waits, and is wrong in the end."""
    for limit in _limiters:
        limit()


def before_first_answer(action: Callable[[], object]) -> Callable[[], object]:
    """A grader's module may say, when it is imported, what it needs once, such as a sandbox. A grading process does it
    before it is ready, so that it takes no time of the first answer. If it fails, the grader cannot be used."""
    _preparations.append(action)
    return action


def prepare() -> None:
    """Do what the modules of graders have asked for."""
    for action in _preparations:
        action()


Grader = Callable[..., Grade]
"""(response, label, prompt="") -> Grade. An exception means that the answer has no score, which is no wrong answer."""


@dataclass(frozen=True, slots=True)
class TimedGrade:
    """A grade and the seconds that it took. `score` is None where there is none (never 0), and `cause` says why."""

    score: float | None
    cause: str
    seconds: float
    forgeable: bool = False
    reward: float | None = None
