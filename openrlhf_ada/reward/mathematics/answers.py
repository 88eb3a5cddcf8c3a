r"""Grades answers to mathematical problems: letters and words as text, numbers exactly, all else with math-verify.

The answer is the last `\boxed{...}` after any thinking, else what follows "answer is", else what the last lines say. A
label that does not equal itself is refused, since no answer could be right. There is no time limit: run it in a
`GraderPool`. Once the label is known to be readable, an answer that cannot be evaluated is a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import (
    Grade,
    TooCostlyError,
    UnusableLabelError,
    before_first_answer,
    label_is_readable,
    may_be_interrupted,
)
from openrlhf_ada.reward.mathematics.choices import choice_of_answer, choice_of_label
from openrlhf_ada.reward.mathematics.expressions import equal_expressions, forget, is_readable
from openrlhf_ada.reward.mathematics.notation import simplified, undressed, words
from openrlhf_ada.reward.mathematics.numbers import (
    Number,
    date_of,
    number,
    number_of_words,
    same_time,
    time_of_day,
    with_decimal_point,
)
from openrlhf_ada.reward.mathematics.prose import CHECK, RESTATED, after_announcement
from openrlhf_ada.reward.mathematics.relations import (
    as_interval,
    as_tuple,
    has_order,
    in_order,
    is_range,
    is_solved,
    named_values,
    turned,
    with_constants_of,
    without_name,
    without_qualifier,
    without_same_name,
)
from openrlhf_ada.reward.mathematics.tables import pattern
from openrlhf_ada.reward.mathematics.text import LONGEST, FoundAnswer, clause_of, find_answers, last_boxes, unfenced
from openrlhf_ada.reward.mathematics.units import Measured, amounts, comparable, measured

_TEXT_LABEL = pattern("answers", "text_label")
_NAMED = pattern("answers", "named")
_DOTS = re.compile(r"\s*(?:\\ldots|\.\.\.)$")
_CONGRUENCE = re.compile(r"\\equiv|\\[pb]?mod(?![a-z])")
_VERDICT = re.compile(r"(yes|no|true|false)\s*[,.;:!]")
_TUPLE = re.compile(r"[(\[][^()\[\]]+,[^()\[\]]+[)\]]")
_NO_SOLUTION = "no solution"
_SAME_WORDING = {"dne": "does not exist"} | dict.fromkeys(
    ("no solutions", "no real solution", "no real solutions", "emptyset", "empty set", "varnothing"), _NO_SOLUTION
)
_ARTICLE = re.compile(r"^(?:an?|the) ")
_VALUED = pattern("answers", "valued")
_HUGE = pattern("answers", "huge")


def grade(response: str, label: Any) -> Grade:
    """1.0 if the response's answer equals the label, or any of several labels; else 0.0. Raises UnusableLabelError if
    a label is empty, neither text nor number, or does not equal itself."""
    labels = readable_labels(label)
    label_is_readable()
    answers = find_answers(response)
    if not answers:
        return Grade(0.0, "no answer")
    if len(answers[0].text) > LONGEST:
        return Grade(0.0, "answer too long")
    try:
        may_be_interrupted()
        right = any(equal(reference, answer) for reference in labels for answer in answers)
    except TooCostlyError:
        forget()
        raise
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - the label has just been evaluated by the same code, so the answer is at fault
        return Grade(0.0, "answer that cannot be evaluated")
    return Grade(1.0) if right else Grade(0.0, "wrong answer")


# Rollouts of one prompt mostly give the same few answers.
@lru_cache(maxsize=16_384)
def equal(label: str, answer: FoundAnswer) -> bool:
    """Is the answer, as it is written, the label?"""
    if len(answer.text) > LONGEST:
        return False
    if (restated := RESTATED.search(answer.text)) and restated.start():
        said = answer.text[: restated.start()], restated[1]
        return all(equal(label, replace(answer, text=one)) for one in said)
    text = CHECK.sub("", answer.text)
    plain_label, plain_answer = _plain(label), _plain(text)
    if plain_label == plain_answer or _wording(plain_label) == _wording(plain_answer) == _NO_SOLUTION:
        return True
    chosen = choice_of_label(unfenced(label))
    if chosen is not None:
        return choice_of_answer(unfenced(text), in_prose=answer.in_prose) == chosen
    dates = date_of(words(plain_label)), date_of(words(plain_answer))
    if any(dates):
        return dates[0] == dates[1]
    if is_text(plain_label):
        said = _wording(plain_answer)
        if answer.in_prose and (verdict := _VERDICT.match(said)):
            said = verdict[1]
        return said == _wording(plain_label)
    if (same := _same_amount(plain_label, plain_answer)) is not None:
        return same
    if with_decimal_point(plain_label) == with_decimal_point(plain_answer):
        return True
    return _equal_formulas(plain_label, plain_answer, in_prose=answer.in_prose)


def _same_amount(label: str, answer: str) -> bool | None:
    """Of times of the day, sums of amounts and congruences; None for what is none of these."""
    if _CONGRUENCE.search(label):
        # math-verify reads these as their left sides.
        return _without_brackets(label) == _without_brackets(answer)
    times = time_of_day(words(label)), time_of_day(words(answer))
    if times[0] is not None and times[1] is not None:
        return same_time(times[0], times[1])
    expected, given = amounts(label), amounts(answer)
    if expected and given and (expected[1] == given[1] or expected[0] + given[0] > 2):
        return expected[1] == given[1]
    return None


def _equal_formulas(label: str, answer: str, *, in_prose: bool) -> bool:
    if in_prose:
        return equal_expressions(measured(label).expression, answer, in_prose=True)
    if has_order(answer) and not has_order(label) and not (is_range(label) and is_solved(answer)):
        return False
    if _goes_on(label, answer) or _goes_on(answer, label):
        return False
    pairs = (
        comparable(*pair)
        for given in (answer, *with_constants_of(label, answer))
        for pair in _named_alike(label, given) or _readings(*without_same_name(label, given))
    )
    return any(pair is not None and _equal_measured(*pair) for pair in pairs)


def _goes_on(one: str, other: str) -> bool:
    r"""Does only one of them go on, as `42\ldots`, and not as a decimal that has no end, such as 1/7?"""
    match = _DOTS.search(one)
    if match is None or _DOTS.search(other):
        return False
    begun = number(one[: match.start()])
    return begun is None or not begun.is_decimal or begun == number(other)


def _named_alike(label: str, answer: str) -> list[tuple[str, str]] | None:
    """Values with names, such as x = 2, y = 1, and a tuple, or the same names in another order, as two tuples."""
    expected, given = named_values(label), named_values(answer)
    if expected is not None and given is not None:
        return [(in_order(expected, expected), in_order(given, expected))] if expected.keys() == given.keys() else []
    if expected is not None and _TUPLE.fullmatch(answer):
        return [(in_order(expected, expected), f"({answer[1:-1]})")]
    if given is not None and _TUPLE.fullmatch(label):
        return [(f"({label[1:-1]})", in_order(given, sorted(given)))]
    return None


def _readings(label: str, answer: str) -> Iterator[tuple[str, str]]:
    """Label and answer as they are, and without what only one of them says besides: a name, a range of n."""
    yield label, answer
    for change in (_without_qualifiers, _without_other_name, _in_radians, _as_intervals, _as_tuples):
        changed = change(label, answer)
        if changed != (label, answer):
            yield changed
            label, answer = changed


def _without_qualifiers(label: str, answer: str) -> tuple[str, str]:
    return without_qualifier(label), without_qualifier(answer)


def _without_other_name(label: str, answer: str) -> tuple[str, str]:
    if ("=" in label) == ("=" in answer):
        return label, answer
    return without_name(label), without_name(answer)


def _in_radians(label: str, answer: str) -> tuple[str, str]:
    """Degrees as radians where the other one has a pi."""

    def radians(text: str, other: str) -> str:
        part = measured(text)
        is_angle = part.unit is not None and part.unit.names == ("degree",) and r"\pi" in other and r"\pi" not in text
        return rf"\frac{{({part.expression})\pi}}{{180}}" if is_angle else text

    return radians(label, answer), radians(answer, label)


def _as_intervals(label: str, answer: str) -> tuple[str, str]:
    if has_order(label) == has_order(answer):
        return label, answer
    return as_interval(label) or label, as_interval(answer) or answer


def _as_tuples(label: str, answer: str) -> tuple[str, str]:
    if label[:1] + label[-1:] == "()" and (given := as_tuple(answer)):
        return label, given
    expected = as_tuple(label) if answer[:1] + answer[-1:] in ("()", "[]") else None
    return (expected, f"({answer[1:-1]})") if expected else (label, answer)


def _wording(text: str) -> str:
    plain = _ARTICLE.sub("", words(text))
    plain = plain[1:-1].strip() if plain.startswith("(") and plain.endswith(")") else plain
    return _SAME_WORDING.get(plain, plain)


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    """In one notation; a number in words as digits."""
    plain = turned(simplified(unfenced(text)))
    spelt = number_of_words(words(plain))
    return plain if spelt is None else str(spelt)


def _equal_measured(label: Measured, answer: Measured) -> bool:
    names = _name(label.expression), _name(answer.expression)
    if None not in names and names[0] != names[1]:
        return False
    if _VALUED.search(answer.expression):
        answer = replace(answer, expression=answer.expression.rpartition("=")[2])
    expected, given = (number(_NAMED.sub("", part.expression)) for part in (label, answer))
    hundredth = label.is_percentage != answer.is_percentage
    if expected is not None and given is not None:
        return expected.equals(given) or (
            hundredth and _of_hundred(label, expected).equals(_of_hundred(answer, given))
        )
    if expected is not None and _is_false_equation(answer.expression):
        return False
    if _HUGE.search(answer.expression) and not _HUGE.search(label.expression):
        return False
    if equal_expressions(label.expression, answer.expression):
        return True
    return hundredth and equal_expressions(_as_share(label), _as_share(answer))


def _name(expression: str) -> str | None:
    """What is said to have a number for its value: `x = 5`, `|AB| = 5`, `f(2) = 5`; None where nothing is."""
    match = _NAMED.match(expression)
    if match is None or number(expression[match.end() :]) is None:
        return None
    return re.sub(r"[\s|{}=]|\\angle", "", match[0])


def _of_hundred(part: Measured, value: Number) -> Number:
    return Number(value.value / 100, value.is_decimal) if part.is_percentage else value


def _as_share(part: Measured) -> str:
    return rf"\frac{{{part.expression}}}{{100}}" if part.is_percentage else part.expression


def _without_brackets(text: str) -> str:
    return re.sub(r"[\s{}()]|\\pmod|\\bmod|\\mod|mod", "", text)


def _is_false_equation(answer: str) -> bool:
    """`5 = 7`, of which math-verify takes the last side."""
    sides: list[Fraction] = [side.value for part in answer.split("=") if (side := number(part)) is not None]
    return len(sides) == answer.count("=") + 1 and len(set(sides)) > 1


def is_text(label: str) -> bool:
    """Is the label a word or a name? As mathematics it would be a product of letters, and Evelyn equal Evleyn."""
    return bool(_TEXT_LABEL.fullmatch(words(label))) and not re.search(
        r"\\(?!text|textbf|mathrm|mathbf|mbox|emph)", label
    )


@before_first_answer
def _load_what_formulas_need() -> None:
    """The first formula of a process loads parsers and simplifiers: a second or more on a busy machine."""
    grade(r"\boxed{(x+1)^2}", "x^2+2x+1")


def readable_labels(label: Any) -> list[str]:
    """The label or labels as text. Raises UnusableLabelError where one of them cannot be read."""
    given = label if isinstance(label, list | tuple) else [label]
    if not given or not all(isinstance(one, str | int | float) and str(one).strip() for one in given):
        raise UnusableLabelError(f"the label {str(label)[:200]!r} is neither text, a number nor a list of these")
    references = [final_answer(str(one)) for one in given]
    for reference in references:
        if not _equals_itself(reference):
            raise UnusableLabelError(f"the label {reference[:200]!r} is nothing that math-verify can compare")
    return references


def final_answer(label: str) -> str:
    """The answer of a label that is a whole solution: its box, or what is announced (`#### 42`, `**Answer:** 42`)."""
    label = undressed(label.replace("<answer>", "\n").replace("</answer>", "\n"))
    said = clause_of(after_announcement(label) or "")
    return ", ".join(last_boxes(label)) or said or label


@lru_cache(maxsize=4096)
def _equals_itself(label: str) -> bool:
    plain = _plain(label)
    is_a_time = time_of_day(words(plain)) or date_of(words(plain))
    if is_text(plain) or is_a_time or choice_of_label(unfenced(label)) or _CONGRUENCE.search(plain):
        return True
    inner = measured(without_qualifier(plain)).expression
    return number(_NAMED.sub("", inner)) is not None or is_readable(inner)
