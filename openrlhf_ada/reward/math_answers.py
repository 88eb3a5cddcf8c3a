r"""Grades answers to mathematical problems: letters and words as text, everything else with math-verify.

The answer is the last `\boxed{...}` after any thinking, else what follows "answer is", else what math-verify finds in
the last lines. A response without an answer is wrong. A label that does not equal itself is refused, since no answer
could be right. An exception means that there is no score.

It has no time limit: run it in a `GraderPool`, which has one. Numbers too large to compute (9^9^9^9) are recognised by
their notation.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import Grade, UnusableLabelError
from openrlhf_ada.reward.math_choices import choice_of_answer, choice_of_label
from openrlhf_ada.reward.math_notation import NUMBER_WORDS, simplified, words
from openrlhf_ada.reward.math_text import LONGEST, FoundAnswer, boxes, find_answers, unfenced
from openrlhf_ada.reward.math_units import units_conflict

# It warns at every call that its own time limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_TEXT_LABEL = re.compile(r"(?=.*[a-z]{3}|no$)[a-z][a-z' -]*[a-z]")
_BOUND = re.compile(
    r"^\s*(?:[<>≤≥]|\\(?:le|ge|leq|geq|lt|gt|ne|neq|neg|approx|sim)(?![a-z]))|"
    r"\b(?:at most|at least|(?:less|more|greater) than|maybe|perhaps|or)\b"
)
_CONGRUENCE = re.compile(r"\\equiv|\\[pb]?mod(?![a-z])")
_ARTICLE = re.compile(r"^(?:an?|the) ")
_HUGE = re.compile(
    r"\^\s*\{?\s*[0-9]{5,}|\^\s*\{?\s*[0-9]+\s*\^\s*\{?\s*(?:[0-9]{2,}|[0-9]\s*\^)|[0-9]{5,}\s*\}?\s*!|[0-9]!\s*!|[0-9]{1000}"
)
_RELATIVE = 1e-5
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,400})(?:\.[0-9]{1,400})?")
_AND = re.compile(r"(?:,\s*|\s+|\}\s*)\\?(?:text\s*\{\s*)?(?:and|or)\s*\}?\s+")


def grade(response: str, label: Any) -> Grade:
    """1.0 if the response's answer equals the label, or any of several labels; else 0.0.

    Raises:
        UnusableLabelError: a label is empty, neither text nor number, or does not equal itself.
    """
    labels = _labels(label)
    for reference in labels:
        if not _equals_itself(reference):
            raise UnusableLabelError(f"the label {reference[:200]!r} is nothing that math-verify can compare")
    answers = find_answers(response)
    if not answers:
        return Grade(0.0, "no answer")
    if len(answers[0].text) > LONGEST:
        return Grade(0.0, "answer too long")
    if any(equal(reference, answer) for reference in labels for answer in answers):
        return Grade(1.0)
    return Grade(0.0, "wrong answer")


def equal(label: str, answer: FoundAnswer) -> bool:
    """Is the answer, as it is written, the label?"""
    if len(answer.text) > LONGEST:
        return False
    plain_label, plain_answer = simplified(unfenced(label)), simplified(unfenced(answer.text))
    plain_answer = NUMBER_WORDS.get(words(plain_answer), plain_answer)
    if plain_label == plain_answer:
        return True
    chosen = choice_of_label(unfenced(label))
    if chosen is not None:
        return choice_of_answer(unfenced(answer.text)) == chosen
    said, expected = words(plain_answer), words(plain_label)
    if is_text(plain_label):
        return _ARTICLE.sub("", said) == _ARTICLE.sub("", expected)
    if _CONGRUENCE.search(plain_label):
        # math-verify reads these as their left sides.
        return _without_brackets(plain_label) == _without_brackets(plain_answer)
    numbers = _number(plain_label), _number(plain_answer)
    if None not in numbers:
        return numbers[0] == numbers[1]
    # In prose such words are about something else.
    if numbers[0] is not None and not answer.in_prose and _hedges(plain_answer):
        return False
    if _HUGE.search(plain_answer) and not _HUGE.search(plain_label):
        return False
    if units_conflict(plain_label, plain_answer):
        return False
    return _verify(plain_label, plain_answer, in_prose=answer.in_prose)


def _without_brackets(text: str) -> str:
    return re.sub(r"[\s{}()]|\\pmod|\\bmod|\\mod|mod", "", text)


def _hedges(answer: str) -> bool:
    """Is it a bound, a guess or a false equation, where the label is a number? math-verify takes the number in it."""
    sides = [_number(side.strip()) for side in answer.split("=")]
    return bool(_BOUND.search(answer)) or (len(sides) > 1 and None not in sides and len(set(sides)) > 1)


def is_text(label: str) -> bool:
    """Is the label a word or a name? As mathematics it would be a product of letters, and Evelyn equal Evleyn."""
    return bool(_TEXT_LABEL.fullmatch(words(label))) and not re.search(r"\\(?!text|mathrm|mathbf|mbox|emph)", label)


def _number(text: str) -> Decimal | None:
    """A number that is nothing but digits, as most answers are: math-verify would take a hundred times as long."""
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


# Rollouts of one prompt mostly give the same few answers.
@lru_cache(maxsize=16_384)
def _verify(label: str, answer: str, *, in_prose: bool) -> bool:
    from math_verify import parse, verify

    readings = [answer if in_prose else rf"\boxed{{{answer}}}"]
    joined = _AND.sub(", ", answer)
    if joined != answer:
        # A list, as mathematics writes it.
        readings.append(rf"\boxed{{{joined}}}")
    # Its own time limits use alarms, which only a main thread has.
    gold, options = list(_parse_label(label)), {"timeout_seconds": None, "allow_set_relation_comp": True}
    is_share = "%" in label or "%" in answer
    for reading in readings:
        parsed = parse(reading, parsing_timeout=0)
        if verify(gold, parsed, **options) and (is_share or _near(gold, parsed)):
            return True
    return False


def _near(gold: Sequence[Any], parsed: Sequence[Any]) -> bool:
    """math-verify compares numbers to six decimals, where all small ones are 0. Here exact numbers must be equal, and
    others relatively so; what are not numbers it has compared by itself."""
    expected, given = _numbers(gold), _numbers(parsed)
    return not expected or not given or any(_are_near(a, b) for a in expected for b in given)


def _numbers(expressions: Sequence[Any]) -> list[Any]:
    from sympy import Expr

    return [expression for expression in expressions if isinstance(expression, Expr) and expression.is_number]


def _are_near(a: Any, b: Any) -> bool:
    from sympy import Float

    if a.is_rational and b.is_rational and not a.has(Float) and not b.has(Float):
        return bool(a == b) or (a - b).equals(0) is True
    if not (a.is_finite and b.is_finite):
        return True
    size = max(abs(a.evalf(30)), abs(b.evalf(30)))
    return bool(abs((a - b).evalf(30)) <= _RELATIVE * size)


@lru_cache(maxsize=4096)
def _parse_label(label: str) -> tuple[Any, ...]:
    from math_verify import parse

    return tuple(parse(rf"\boxed{{{label}}}", parsing_timeout=0) or parse(label, parsing_timeout=0))


@lru_cache(maxsize=4096)
def _equals_itself(label: str) -> bool:
    from math_verify import verify

    plain = simplified(unfenced(label))
    if is_text(plain) or choice_of_label(unfenced(label)) is not None:
        return True
    gold = list(_parse_label(plain))
    # What it cannot parse it gives back as text, which equals itself whatever it is.
    understood = not all(isinstance(reading, str) for reading in gold)
    return understood and verify(gold, gold, timeout_seconds=None)


def _labels(label: Any) -> list[str]:
    given = label if isinstance(label, list | tuple) else [label]
    if not given or not all(isinstance(one, str | int | float) and str(one).strip() for one in given):
        raise UnusableLabelError(f"the label {str(label)[:200]!r} is neither text, a number nor a list of these")
    return [_unboxed(str(one)) for one in given]


def _unboxed(label: str) -> str:
    found = boxes(label)
    return found[-1] if found else label
