"""Where the answer stands in a response to a mathematical problem. All takes time linear in the text, of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from openrlhf_ada.reward.mathematics import prose as math_prose
from openrlhf_ada.reward.mathematics.notation import closing, undressed
from openrlhf_ada.reward.mathematics.numbers import CHINESE
from openrlhf_ada.reward.mathematics.tables import pattern

TAIL = 2_000
"""Characters at the end of a response in which the answer is looked for if there is no box."""

LONGEST = 2_000
"""Characters. A longer text counts as no answer."""

SHORT = 200
"""Characters of what is read as one sentence."""

MOST_BOXES = 64

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?:\s*\[[^\]\n]{1,9}\])*(?:\s*\{|\s*(?=-?[0-9]))")
_UNBRACED = re.compile(r"-?[0-9][0-9.,]*[0-9]|-?[0-9]")
_PERCENT = re.compile(r"[\s$]*(?:\\?%|\b(?:percent|pct)\b)")
_NOISE = pattern("text", "noise")
_ITEM = pattern("text", "item")
_NO_ITEM = re.compile(r"\b(?:is|are|was|not|so|then|thus|we|get|if|when|but|hence|no)\b")
TAGGED = re.compile(r"<answer>((?:(?!<answer>|</answer>).)*)</answer>", re.DOTALL)
_FENCES = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"), ("`", "`"))
_OPENINGS = tuple(opening for opening, _ in _FENCES)
_DISPLAY = re.compile(r"\$\$([^$]+)\$\$|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL)
_END_MARK = re.compile(
    r"\s*(?:\$?\\(?:blacksquare|square|qed)\$?|[\u220e\u25a0\u25a1]|(?![" + CHINESE + r"])[^\x00-\u2fff])+\s*$"
)
_FINAL = re.compile(r"\bfinal answer(?: is|:)[\s:*]*", re.IGNORECASE)
_SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=\$\$)|(?<=\\\]))\s+(?=[A-Z*$\\])|\n")
_NUMBER_IS_SAID = re.compile(r"(?:\$|\\\))\s*(?:is|are|equals)\s+([^$\\]+)$")
_TELLING = re.compile(r"[0-9]|\$|\*\*|\\\(")
_SEVERAL = re.compile(r", |[a-z] (?:and )?[0-9]")
_CLAUSE_END = re.compile(r"[.;,!?](?=\s|$)|\n")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """`text` is the answer itself, or (`in_prose`) begins with it or holds it."""

    text: str
    in_prose: bool = False


def find_answers(response: str) -> list[FoundAnswer]:
    """Readings of the response's answer, the likeliest first: the last boxes; without a box what stands between
    `<answer>` tags or is announced; else the last formula or bold text of the last line, or the end of the text.
    Empty where there is nothing but white space, what is said not to be the answer, or a box that does not end."""
    return [FoundAnswer(undressed(one.text), one.in_prose) for one in _readings(final_part(response))]


def _readings(text: str) -> list[FoundAnswer]:
    tagged = [part for part in TAGGED.findall(text[-2 * TAIL :]) if part.strip()]
    text = tagged[-1] if tagged else text
    found = last_boxes(text)
    if found and (said := _said_after_boxes(text)) is not None:
        return _readings_of(clause_of(said))
    if _ends_in_a_box(text):
        return []
    if len(found) == 1 and (said := math_prose.after_announcement(plain := undressed(found[0]))):
        return [] if math_prose.is_denied(plain) else [FoundAnswer(clause_of(said))]
    if found:
        are_equations = len(found) > 1 and any("=" in box for box in found)
        return [FoundAnswer(", ".join(found)), *([FoundAnswer(found[-1])] if are_equations else [])]
    tail = math_prose.without_denied(_plain_type(text[-TAIL:].strip())).strip()
    said = math_prose.after_announcement(tail)
    if said is None and tagged and "\n" not in tail and len(tail) < SHORT:
        said = tail
    if said:
        return _readings_of(clause_of(said))
    return _unannounced(tail)


def _ends_in_a_box(text: str) -> bool:
    """Does the text end within its last box?"""
    _, found, rest = text.rpartition(r"\boxed")
    is_open = bool(found) and rest.lstrip().startswith("{") and rest.count("{") > rest.count("}")
    return is_open and closing(rest, rest.index("{") + 1, end=2 * LONGEST) is None


def _plain_type(text: str) -> str:
    """Without what only dresses it, and with `^` for powers: `**` is for bold text."""
    if "**" in text:
        text = math_prose.POWER_SIGN.sub(lambda m: m[1] or (f"^{{{m[2]}}}" if m[2] else "^"), text)
    return undressed(text) if "\\" in text else text


def _unannounced(tail: str) -> list[FoundAnswer]:
    """The formula at the end, or the last formula, bold text or number of the last sentence that has one."""
    displayed = list(_DISPLAY.finditer(tail))
    if displayed and not tail[displayed[-1].end() :].strip(" .\n"):
        return _readings_of(displayed[-1][0])
    sentences = [part for part in _SENTENCE.split(tail) if part.strip()]
    telling = [part for part in sentences if _TELLING.search(part)]
    sentence = math_prose.CHECK.sub("", math_prose.without_reason((telling or sentences)[-1])) if sentences else ""
    formula = _last_formula(sentence)
    if formula is not None:
        return _readings_of(formula)
    if formula := math_prose.only_formula(sentence):
        return [FoundAnswer(formula)]
    quantity = math_prose.last_quantity(sentence)
    if quantity and _SEVERAL.search(quantity):
        # Of a list, one item is not the answer.
        return [FoundAnswer(quantity)]
    readings = [FoundAnswer(quantity)] if quantity else []
    return [*readings, FoundAnswer(sentence, in_prose=True)] if sentence else []


def final_part(response: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that does not end; everything where there is neither."""
    return response.rpartition("</think>")[2].partition("<think>")[0]


def _said_after_boxes(text: str) -> str | None:
    """What a response says after its last box to be the final answer: some box single steps, too."""
    found = list(_FINAL.finditer(text, _placed_boxes(text)[-1][2]))
    rest = text[found[-1].end() :].lstrip() if found else ""
    return rest if math_prose.leading_quantity(rest) or rest.startswith(("$", "\\")) else None


def boxes(text: str) -> list[str]:
    r"""Contents of closed `\boxed{...}` and `\fbox{...}`, outermost ones, in order of appearance; the last 64."""
    return [content for content, _, _ in _placed_boxes(text)]


def last_boxes(text: str) -> list[str]:
    r"""Contents of the last box, and of those that it is listed with: `\boxed{1}, \boxed{2}`, `\boxed{1} and
    \boxed{2}`, `\boxed{1} papers and \boxed{2} bins`. None where the text says that it is wrong."""
    placed = _placed_boxes(text)
    while placed and math_prose.is_denied("it " + _CLAUSE_END.split(text[placed[-1][2] :][:60])[0]):
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
    plain = " ".join(_NOISE.sub(" ", between).split())
    has_link = re.search(r"[,;]|\b(?:and|or)\b", plain) is not None
    return (
        bool(_ITEM.fullmatch(plain)) and not _NO_ITEM.search(plain) and (has_link or not re.search(r"[a-z]{2}", plain))
    )


def _placed_boxes(text: str) -> list[tuple[str, int, int]]:
    """(content, start, end) of each box."""
    found: list[tuple[str, int, int]] = []
    end = 0
    for start in list(_BOX.finditer(text))[-MOST_BOXES:]:
        if start.start() < end:
            continue
        unbraced = None if start[0].endswith("{") else _UNBRACED.match(text, start.end())
        closed = unbraced.end() if unbraced else closing(text, start.end(), end=start.end() + 2 * LONGEST)
        if closed is not None:
            content = text[start.end() : closed].strip()
            end = closed if unbraced else closed + 1
            sign = _PERCENT.match(text, end)
            found.append((content + (r"\%" if sign else ""), start.start(), end))
    return [(content, start, end) for content, start, end in found if content]


def clause_of(said: str) -> str:
    """The displayed formula that begins it, or its first sentence."""
    display = _DISPLAY.match(said)
    if display is not None:
        return display[0]
    clause = said.split("\n")[0]
    clause = re.sub(r"^((?:(?!\\[\[(]).)*)\\[\])]$", r"\1", clause)
    # A full stop ends it; one within a number or a word (p.m.) does not.
    clause = re.split(r"\.(?=\s+[A-Z]|\s*$)", clause, maxsplit=1)[0] if not clause.endswith(".m.") else clause
    return _END_MARK.sub("", re.sub(r"^[-\u2022]\s+", "", clause)).strip(" *_`\t")


def _readings_of(clause: str) -> list[FoundAnswer]:
    """The clause as a formula, the formulas in it, and what it says as prose."""
    restated = math_prose.RESTATED.search(clause)
    if restated and restated.start():
        return [replace(one, text=one.text + restated[0]) for one in _readings_of(clause[: restated.start()])]
    inner = unfenced(clause)
    if inner != clause:
        return [FoundAnswer(inner)] if inner else []
    formulas = math_prose.formulas(clause)
    starts_with_formula = bool(formulas) and math_prose.without_filler(clause).startswith(_OPENINGS)
    if starts_with_formula:
        readings = formulas[:1]
    else:
        last = [] if math_prose.begins_with_number(clause) else formulas[-1:]
        said = math_prose.possible_answers(clause)
        # Of a clause with formulas, math-verify would read the last one.
        readings = [*(reading for reading in said if not math_prose.formulas(reading)), *last]
    return [FoundAnswer(unfenced(reading)) for reading in dict.fromkeys(readings) if reading.strip()]


def _last_formula(sentence: str) -> str | None:
    """The last formulas of a sentence, or what is printed bold in it; a number that one of them "is"."""
    bold = list(_BOLD.finditer(sentence))
    if bold:
        return bold[-1][1].strip()
    inline = math_prose.formulas(sentence)
    if not inline:
        return None
    is_said = _NUMBER_IS_SAID.search(sentence)
    return is_said[1] if is_said and math_prose.leading_quantity(is_said[1]) else f"${inline[-1]}$"


def unfenced(text: str) -> str:
    """Without the dollar signs or brackets around all of it."""
    text = text.strip()
    for begin, end in _FENCES:
        inner = text[len(begin) : len(text) - len(end)]
        is_fenced = len(text) > len(begin) + len(end) and text.startswith(begin) and text.endswith(end)
        if is_fenced and begin not in inner and end not in inner:
            return inner.strip()
    return text
