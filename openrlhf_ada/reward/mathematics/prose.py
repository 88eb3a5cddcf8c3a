"""What a sentence says that the answer is: "therefore 34, which is 2*17", "540 dollars", "$x=1$ or $x=2$".

A sentence is read by the same rules wherever it stands: after "the answer is", in bold, between `<answer>` tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from openrlhf_ada.reward.mathematics.numbers import NUMBER_WORDS, number_of_words
from openrlhf_ada.reward.mathematics.tables import pattern, table

_ANNOUNCED = pattern("prose", "announced")
_ANNOUNCES = table("prose", "announces")
_FILLER = pattern("prose", "filler")
_EXPLAINED = pattern("prose", "explained")
_REASONED = re.compile(r"\S,?\s(?:which|as|since|because|so|where|when|by|given|with|for|if|but)\s[^.]*=")
"""An equation that explains what stands before it."""
_TELLING = re.compile(r"[0-9$*]")
_WHY = re.compile(r",?\s(?:because|since|as)\s")
CHECK = re.compile(r"\s\([^()A-Za-z]*[^()A-Za-z\s][^()A-Za-z]*=[^()]*\)[\s.]*$")
"""An equation in brackets behind an answer: 42 (6*7=42)."""
RESTATED = pattern("prose", "restated")
"""The same once more: 42 (i.e. 42.0), 42 (= 6*7), 1/2 (or 0.5)."""
POWER_SIGN = pattern("prose", "power_sign")
_DENIED = pattern("prose", "denied")
_LEFT_OPEN = pattern("prose", "left_open")
_DENIES = table("prose", "denies")
_REASON = re.compile(r"\b(?:because|since)\b")
_NOT_BUT = re.compile(r"\W*not\b[^.]*?\bbut\s+(?:rather\s+)?", re.IGNORECASE)
_CLAUSE = re.compile(r"(?:[.;,!?](?=\s|$)|[\n\u3002\uff0c\uff1b\uff01\uff1f])+")
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|\$((?:\\\$|[^$])+)\$|\\\(((?:(?!\\\)).)+)\\\)|\\\[((?:(?!\\\]).)+)\\\]", re.DOTALL
)
_LINK = re.compile(r"[\s,;.:]*(?:\\?(?:text\s*\{)?\s*(?:and|or|nor|&)\s*\}?[\s:]*)?")
_QUANTITY = re.compile(
    r"([+-]?\s?(?:\\?\$|[€£₹¥])?\s?[+-]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:\s*/\s*[0-9]+|\s[0-9]+/[0-9]+)?"
    r"(?::[0-9]+)*(?:\s?\\?%|\s?[€£₹¥])?)(?![0-9A-Za-z^_\\({]|\.[0-9])"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|[\u0400-\u097f\u3040-\u9fff\uac00-\ud7af]{2}")
_NUMBER = re.compile(rf"(?<![A-Za-z0-9_.^\\{{])(?<![0-9]:){_QUANTITY.pattern}")
_PREDICATE = pattern("prose", "predicate")
_UNSURE = pattern("prose", "unsure")
_LIST_LINK = pattern("prose", "list_link")
_LARGER_PART = pattern("prose", "larger_part")
_LAST_LINK = re.compile(r"\band\b|\bor\s+[a-zA-Z](?:_\w)?\s*=")
_SPELT = re.compile(rf"\b(?:{NUMBER_WORDS})(?:(?:\s+and\s+|\s+|-)(?:{NUMBER_WORDS}))*\b", re.IGNORECASE)
TAIL_OF_NUMBER = 300
"""Characters at the end of a text in which its last number is looked for."""

_NOUN = pattern("prose", "noun")
_OTHERS = pattern("prose", "others")


def after_announcement(text: str) -> str | None:
    """What follows the last "answer is", "answer:" or "####"; None where nothing is announced."""
    lowered = text.lower()
    found = list(_ANNOUNCED.finditer(text)) if any(mark in lowered for mark in _ANNOUNCES) else []
    return text[found[-1].end() :].strip() if found else None


def without_denied(text: str) -> str:
    """Without clauses that say what the answer is not, or might be: "**42** is wrong", "Not 42.", "Is it 42?"."""
    lowered = text.lower()
    if not any(mark in lowered for mark in _DENIES):
        return text
    kept, start = "", 0
    for end in [*(match.end() for match in _CLAUSE.finditer(text)), len(text)]:
        clause, start = text[start:end], end
        kept += "\n" if is_denied(clause) or _LEFT_OPEN.search(clause.lower()) else clause
    return kept


def is_denied(clause: str) -> bool:
    """ "A because B is wrong" denies B only."""
    clause = clause.lower()
    said, _, reason = clause.partition(match[0]) if (match := _REASON.search(clause)) else (clause, "", "")
    return bool(_DENIED.search(said if reason and _ANNOUNCED.search(said) else clause))


def formulas(text: str) -> list[str]:
    """Groups of formulas between dollar signs: linked ones ("$1$ and $2$", "$1$, $2$") are one list."""
    groups: list[str] = []
    end = None
    for match in _FORMULA.finditer(text):
        content = next(group for group in match.groups() if group is not None).strip()
        linked = end is not None and match.start() - end < 40 and _LINK.fullmatch(text, end, match.start())
        if linked and text[end : match.start()].strip():
            groups[-1] += ", " + content
        else:
            groups.append(content)
        end = match.end()
    return groups


def without_reason(sentence: str) -> str:
    """ "It is 41 because 6*7 = 42": up to an equation that is the reason."""
    for match in _WHY.finditer(sentence):
        said, reason = sentence[: match.start()], sentence[match.end() :]
        if _TELLING.search(said) and "=" in reason and "=" not in said:
            return said
    return sentence


def possible_answers(clause: str) -> Iterator[str]:
    """What a clause may say, the likeliest first: all of it, unless an equation explains it; what begins it, up to its
    explanation; and the quantity there."""
    clause = CHECK.sub("", clause)
    if not _REASONED.search(clause):
        yield clause
    if clause.endswith("!"):
        yield clause.rstrip("!")
    # Without a word it is a formula.
    if _WORD.search(clause):
        yield from _answers_in(clause)


def _answers_in(clause: str) -> Iterator[str]:
    said = without_filler(clause)
    corrected = _NOT_BUT.match(said)
    if corrected:
        yield from _answers_in(said[corrected.end() :])
        return
    if not _REASONED.search(said):
        yield said
    explained = _EXPLAINED.search(said)
    if explained and explained.start():
        said = said[: explained.start()]
        yield said
    quantity = leading_quantity(said)
    if quantity is not None:
        yield quantity
        return
    predicate = _PREDICATE.search(said)
    if predicate is not None:
        yield from _answers_in(said[predicate.end() :])
    else:
        yield from only_quantity(said)


def without_filler(clause: str) -> str:
    while (match := _FILLER.match(clause)) is not None:
        clause = clause[match.end() :]
    return re.sub(r"^(?:an?|the)\s+(?=[0-9$])", "", clause).strip()


def leading_quantity(clause: str) -> str | None:
    """The number that begins it and the noun behind it, where neither another number nor an operator follows."""
    match = _QUANTITY.match(clause)
    if match is None or _OTHERS.match(clause[match.end() :]):
        return None
    noun = _NOUN.match(clause, match.end())
    return match[1].strip() + (noun[0] if noun else "")


def only_formula(sentence: str) -> str | None:
    """A sentence without a word: `So x < 2`."""
    said = without_filler(sentence)
    return None if _WORD.search(said) else said


def begins_with_number(clause: str) -> bool:
    return _QUANTITY.match(without_filler(clause)) is not None


def only_quantity(clause: str) -> list[str]:
    """The one number of a clause, with its noun; nothing where there are several, or none, or a bound of it."""
    found = list(_NUMBER.finditer(clause))
    if len(found) != 1 or _UNSURE.search(clause):
        return []
    quantity = leading_quantity(clause[found[0].start() :])
    return [quantity] if quantity is not None else []


def last_quantity(text: str) -> str | None:
    """The last number of a text, with its noun; all of a list that ends with it; a number in words."""
    text = text[-TAIL_OF_NUMBER:]
    found = list(_NUMBER.finditer(text))
    if not found:
        return _spelt_quantity(text)
    first = len(found) - 1
    while first and _LIST_LINK.fullmatch(text, found[first - 1].end(1), found[first].start(1)):
        first -= 1
    if first and _LARGER_PART.fullmatch(text, found[first - 1].end(1), found[first].start(1)):
        return text[found[first - 1].start() : found[first].start()] + (
            leading_quantity(text[found[first].start() :]) or ""
        )
    if first < len(found) - 1 and _LAST_LINK.search(text[found[-2].end(1) : found[-1].start(1)]):
        return ", ".join(number[1].strip() for number in found[first:])
    return leading_quantity(text[found[-1].start() :])


def _spelt_quantity(text: str) -> str | None:
    """The one number that is written in words: "there are twelve ways"."""
    found = [match[0] for match in _SPELT.finditer(text) if match[0].strip().lower() not in ("one", "and", "a")]
    numbers = {value for words in found if (value := number_of_words(words)) is not None}
    return str(numbers.pop()) if len(numbers) == 1 and not _UNSURE.search(text) else None
