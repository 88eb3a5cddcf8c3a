"""Where the answer stands in a response to a mathematical problem.

Everything here takes time linear in the text, since texts come from models: 1 MB of open brackets is one of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from openrlhf_ada.reward import math_prose

TAIL = 2_000
"""Characters at the end of a response in which the answer is looked for if there is no box."""

LONGEST = 2_000
"""Characters. A longer text counts as no answer."""

MOST_BOXES = 64

_BOX = re.compile(r"\\f?boxed\s*\{")
_PERCENT = re.compile(r"[\s$]*(?:\\?%|\b(?:percent|pct)\b)")
_BESIDE = re.compile(
    r"(?:[\s,;.$&\\()\[\]{}]|\\quad|\\qquad|\\text|\\textbf|\\mathrm)*(?:[A-Za-z]+\s*){0,2}(?P<link>,|;|\b(?:and|or)\b|)"
    r"(?:[\s,;$&\\()\[\]{}]|\\q?quad|\\text|\band\b|\bor\b)*(?:[a-z]_?\{?\w*\}?\s*=\s*)?"
)
_TAGGED = re.compile(r"<answer>((?:(?!<answer>|</answer>).)*)</answer>", re.DOTALL)
_FENCES = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))
_DISPLAY = re.compile(r"\$\$([^$]+)\$\$|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """`text` is the answer itself, or (`in_prose`) begins with it or holds it."""

    text: str
    in_prose: bool = False


def find_answers(response: str) -> list[FoundAnswer]:
    """Readings of the response's answer, the likeliest first: the last boxes; without a box what stands between
    `<answer>` tags or is announced; else the last formula or bold text of the last line, or the end of the text.
    Empty where there is nothing but white space, or what is said not to be the answer."""
    text = final_part(response)
    tagged = [part for part in _TAGGED.findall(text[-2 * TAIL :]) if part.strip()]
    text = tagged[-1] if tagged else text
    found = last_boxes(text)
    if found:
        return [FoundAnswer(", ".join(found)), *([FoundAnswer(found[-1])] if _are_equations(found) else [])]
    tail = math_prose.without_denied(text[-TAIL:].strip()).strip()
    said = math_prose.after_announcement(tail)
    if said is None and tagged and "\n" not in tail and len(tail) < 200:
        said = tail
    if said is not None and said:
        return _readings_of(_clause(said))
    formula = _last_formula(tail)
    if formula is not None:
        return _readings_of(formula)
    return [FoundAnswer(tail, in_prose=True)] if tail else []


def final_part(response: str) -> str:
    """What follows the last `</think>`; everything where there is none."""
    return response.rpartition("</think>")[2]


def _are_equations(found: list[str]) -> bool:
    return len(found) > 1 and any("=" in box for box in found)


def boxes(text: str) -> list[str]:
    r"""Contents of closed `\boxed{...}` and `\fbox{...}`, outermost ones, in order of appearance; the last 64."""
    return [content for content, _, _ in _placed_boxes(text)]


def last_boxes(text: str) -> list[str]:
    r"""Contents of the last box, and of those that it is listed with: `\boxed{1}, \boxed{2}`, `\boxed{1} and
    \boxed{2}`, `\boxed{1} papers and \boxed{2} bins`. None where the text says that it is wrong."""
    placed = _placed_boxes(text)
    while placed and math_prose.without_denied(rf"\boxed{{}} {text[placed[-1][2] :][:60]}").startswith("\n"):
        placed.pop()
    last = placed[-1:]
    for box in reversed(placed[:-1]):
        between = text[box[2] : last[0][1]]
        if len(between) > 60 or "\n\n" in between or not _lists(between) or box[0] == last[0][0]:
            break
        last.insert(0, box)
    return [content for content, _, _ in last]


def _lists(between: str) -> bool:
    """Does this stand between two items of a list?"""
    return bool(_BESIDE.fullmatch(between)) and (not re.search("[A-Za-z]{2}", between) or bool(_AND.search(between)))


_AND = re.compile(r"[,;]|\b(?:and|or)\b")


def _placed_boxes(text: str) -> list[tuple[str, int, int]]:
    """(content, start, end) of each box."""
    found: list[tuple[str, int, int]] = []
    end = 0
    for start in list(_BOX.finditer(text))[-MOST_BOXES:]:
        if start.start() < end:
            continue
        closing = _closing(text, start.end())
        if closing is not None:
            content = text[start.end() : closing].strip()
            end = closing + 1
            sign = _PERCENT.match(text, end)
            found.append((content + (r"\%" if sign else ""), start.start(), end))
    return [(content, start, end) for content, start, end in found if content]


def _closing(text: str, start: int) -> int | None:
    """Position of the brace that closes the one before `start`."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + 2 * LONGEST):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return match.start()
    return None


def _clause(said: str) -> str:
    """The displayed formula that begins it, or its first sentence."""
    display = _DISPLAY.match(said)
    if display is not None:
        return (display[1] or display[2]).strip()
    clause = said.split("\n")[0]
    # A full stop ends it; one within a number or a word (p.m.) does not.
    clause = re.split(r"\.(?=\s+[A-Z]|\s*$)", clause, maxsplit=1)[0] if not clause.endswith(".m.") else clause
    return clause.strip().strip("*").strip()


def _readings_of(clause: str) -> list[FoundAnswer]:
    """The clause as a formula, the formulas in it, and what it says as prose."""
    clause = unfenced(clause)
    readings = [FoundAnswer(clause)] if clause else []
    said = math_prose.without_filler(clause)
    formulas = math_prose.formulas(clause)
    if formulas and not math_prose.leading_quantity(said):
        readings += [FoundAnswer(formulas[0])] + ([FoundAnswer(formulas[-1])] if len(formulas) > 1 else [])
    else:
        readings += [FoundAnswer(reading, in_prose=True) for reading in math_prose.sayings(clause)]
    return readings


def _last_formula(tail: str) -> str | None:
    """Displayed at the end; else the last formulas, or what is printed bold, in the last line."""
    displayed = list(_DISPLAY.finditer(tail))
    if displayed and not tail[displayed[-1].end() :].strip(" .\n"):
        return (displayed[-1][1] or displayed[-1][2]).strip()
    line = tail.rpartition("\n")[2]
    bold = list(_BOLD.finditer(line))
    if bold:
        return bold[-1][1].strip()
    inline = math_prose.formulas(line)
    return inline[-1] if inline else None


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
