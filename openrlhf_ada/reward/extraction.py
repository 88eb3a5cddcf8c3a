"""The answer in a response, as text, and which answers are the same. For records and for votes (maj@k), not for
grading."""

from __future__ import annotations

from openrlhf_ada.reward.arithmetic import parse_answer
from openrlhf_ada.reward.code_answers import find_program
from openrlhf_ada.reward.math_choices import choice_of_answer
from openrlhf_ada.reward.math_notation import simplified
from openrlhf_ada.reward.math_numbers import number
from openrlhf_ada.reward.math_text import find_answers, unfenced
from openrlhf_ada.reward.math_units import measured
from openrlhf_ada.reward.reasoning_answers import find_answer

VOTING = ("arithmetic", "math", "reasoning_gym")
"""Rewards whose answers can be compared with each other. Programs cannot."""


def extracted(reward: str, response: str) -> str | None:
    """The answer in a response; "" where it has none. None with a reward that is not ours, which may read it in its
    own way."""
    match reward:
        case "math":
            return _mathematical(response)
        case "reasoning_gym":
            return find_answer(response)
        case "arithmetic":
            answer = parse_answer(response)
            return "" if answer is None else str(answer)
        case "code":
            return find_program(response) or ""
        case _:
            return None


def _mathematical(response: str) -> str:
    readings = find_answers(response)
    # A number is the plainest of several readings; a sentence is the last resort.
    readings = [r for r in readings if not r.in_prose] or readings
    numbers = [r for r in readings if number(measured(simplified(r.text)).expression) is not None]
    return next((r.text for r in (*numbers, *readings)), "")


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
