"""The answer in a response, as text, and which answers are the same. For records and for votes (maj@n), not for
grading."""

from __future__ import annotations

import re

from openrlhf_ada.reward.arithmetic import parse_answer
from openrlhf_ada.reward.mathematics.choices import choice_of_answer
from openrlhf_ada.reward.mathematics.notation import simplified
from openrlhf_ada.reward.mathematics.numbers import number
from openrlhf_ada.reward.mathematics.text import boxes, final_part, find_answers, unfenced
from openrlhf_ada.reward.mathematics.units import measured
from openrlhf_ada.reward.programs.answers import find_program
from openrlhf_ada.reward.reasoning_answers import find_answer

VOTING = ("arithmetic", "math", "reasoning_gym")
"""Rewards whose answers can be compared with each other. Programs cannot."""

_SENTENCE = re.compile(
    r"\\boxed|\b(?:we|you|it|he|she|they|the|this|that|is|are|was|be|have|has|do|cannot|so|then|to|of|let|need|know)\b",
    re.IGNORECASE,
)

_EMPTY_BOX = re.compile(r"\\\w+\{\s*\}\W*")

_VERDICT = re.compile(r"(yes|no|true|false)\s*[,.;:!]", re.IGNORECASE)


def extracted(reward: str, response: str, *, truncated: bool = False) -> str | None:
    """The final answer in a response; "" where it has none, as where it only talks, or is `truncated` before a box or
    tag. None with a reward that is not ours, which may read it in its own way."""
    is_marked = "</answer>" in response or bool(boxes(final_part(response)))
    if truncated and not is_marked and reward in ("math", "reasoning_gym"):
        return ""
    match reward:
        case "math":
            return _mathematical(response)
        case "reasoning_gym":
            answer = find_answer(response)
            return answer if is_marked or not _SENTENCE.search(answer) else ""
        case "arithmetic":
            answer = parse_answer(response)
            return "" if answer is None else str(answer)
        case "code":
            return find_program(response) or ""
        case _:
            return None


def _mathematical(response: str) -> str:
    readings = find_answers(response)
    # A number is the plainest of several readings; a sentence is the last resort, if it says no more than an answer.
    said = [r.text for r in readings if not (r.in_prose or _EMPTY_BOX.fullmatch(r.text))] or [
        _said(r.text) for r in readings
    ]
    numbers = [text for text in said if number(measured(simplified(text)).expression) is not None]
    return next(iter((*numbers, *said)), "")


def _said(sentence: str) -> str:
    """The sentence where it is an answer or begins with one; "" where it only talks."""
    verdict = _VERDICT.match(sentence)
    is_answer = choice_of_answer(sentence, in_prose=True) is not None or not _SENTENCE.search(sentence)
    return verdict[1] if verdict else sentence if is_answer else ""


def answer_name(reward: str, answer: str) -> str:
    """Equal for answers that are the same: in mathematics up to notation and units, numbers by value. "" is none."""
    if reward != "math" or not answer:
        return answer
    choice = choice_of_answer(unfenced(answer))
    if choice is not None:
        return ", ".join(sorted(choice))
    plain = simplified(unfenced(answer))
    quantity = measured(plain)
    value = number(quantity.expression)
    return plain if value is None else f"{value.value}{' %' if quantity.is_percentage else ''}"
