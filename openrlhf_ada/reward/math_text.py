"""Where the answer stands in a response to a mathematical problem.

Everything here takes time linear in the text, since texts come from models: 1 MB of open brackets is one of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TAIL = 2_000
"""Characters at the end of a response in which the answer is looked for if there is no box."""

LONGEST = 2_000
"""Characters. A longer text counts as no answer."""

_BOX = re.compile(r"\\f?boxed\s*\{")
_PERCENT = re.compile(r"\s*\\?%")
_ANNOUNCED = re.compile(
    r"(?:\banswer\b(?:\s+(?:is|was|must\s+be|equals|would\s+be))?|\bthe\s+(?:correct\s+)?(?:option|choice)\s+is|####)"
    r"[\s:*=]*",
    re.IGNORECASE,
)
_FENCES = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))
_DISPLAY = re.compile(r"\$\$([^$]+)\$\$|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL)
_FORMULA = re.compile(r"\$([^$]+)\$|\*\*([^*]+)\*\*")


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """`text` is the answer itself, or prose that holds it."""

    text: str
    in_prose: bool = False


def find_answers(response: str) -> list[FoundAnswer]:
    """What may be the response's answer, the likeliest first: the last box, then all boxes of the last line together;
    without a box what is announced; else the last formula of the last line, or the end of the text. Empty where there
    is nothing but white space."""
    text = final_part(response)
    found = boxes(text)
    if found:
        last_line = boxes(text.rstrip()[-TAIL:].rpartition("\n")[2])
        return [FoundAnswer(found[-1]), *([FoundAnswer(",".join(last_line))] if len(last_line) > 1 else [])]
    tail = text[-TAIL:].strip()
    said = _announced(tail)
    if said is not None:
        return [FoundAnswer(said, in_prose="$" in said)]
    formula = _last_formula(tail)
    if formula is not None:
        return [FoundAnswer(formula)]
    return [FoundAnswer(tail, in_prose=True)] if tail else []


def final_part(response: str) -> str:
    """What follows the last `</think>`; everything where there is none."""
    return response.rpartition("</think>")[2]


def boxes(text: str) -> list[str]:
    r"""Contents of closed `\boxed{...}` and `\fbox{...}`, outermost ones, in order of appearance; the last 8."""
    found: list[str] = []
    end = 0
    for start in list(_BOX.finditer(text))[-64:]:
        if start.start() < end:
            continue
        closing = _closing(text, start.end())
        if closing is not None:
            sign = _PERCENT.match(text, closing + 1)
            found.append(text[start.end() : closing].strip() + (r"\%" if sign else ""))
            end = closing
    return found[-8:]


def _closing(text: str, start: int) -> int | None:
    """Position of the brace that closes the one before `start`."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + 2 * LONGEST):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return match.start()
    return None


def _announced(tail: str) -> str | None:
    """The rest of the sentence after the last "answer is", "answer:" or "####", or the formula below it."""
    found = list(_ANNOUNCED.finditer(tail))
    if not found:
        return None
    rest = tail[found[-1].end() :].strip()
    display = _DISPLAY.match(rest)
    if display is not None:
        return (display[1] or display[2]).strip()
    clause = rest.split("\n")[0]
    # A full stop ends it; one within a number or a word (p.m.) does not.
    clause = re.split(r"\.(?=\s+[A-Z]|\s*$)", clause, maxsplit=1)[0] if not clause.endswith(".m.") else clause
    return unfenced(clause.strip().strip("*").strip()) or None


def _last_formula(tail: str) -> str | None:
    """Displayed at the end; else the last formula, or what is printed bold, in the last line."""
    displayed = list(_DISPLAY.finditer(tail))
    if displayed and not tail[displayed[-1].end() :].strip(" .\n"):
        return (displayed[-1][1] or displayed[-1][2]).strip()
    inline = list(_FORMULA.finditer(tail.rpartition("\n")[2]))
    return (inline[-1][1] or inline[-1][2]).strip() if inline else None


def unfenced(text: str) -> str:
    """Without the dollar signs or brackets around all of it."""
    text = text.strip()
    for opening, closing in _FENCES:
        inner = text[len(opening) : len(text) - len(closing)]
        if (
            len(text) > len(opening) + len(closing)
            and text.startswith(opening)
            and text.endswith(closing)
            and opening not in inner
            and closing not in inner
        ):
            return inner.strip()
    return text
