"""Multiple choice: when is a label a letter to choose, and which letters does an answer choose?"""

from __future__ import annotations

import re
import unicodedata

from openrlhf_ada.reward.mathematics.notation import typeset_words
from openrlhf_ada.reward.mathematics.tables import pattern

_ALONE = re.compile(r"[(\[]?\s*([A-J])\s*[)\].:]?|[(\[]?\s*([a-j])\s*[)\]]")
_WITH_CONTENT = pattern("choices", "with_content")
_SEVERAL = re.compile(r"[(\[]?[A-J][)\]]?(?:\s*(?:,|and|&)\s*(?:and\s+)?[(\[]?[A-J][)\]]?)+")
_CHOSEN = re.compile(r"(?:(?:the\s+)?(?:option|choice|answer)\s*)?[(\[]?\s*([A-Ja-j])\s*[)\].:]?", re.IGNORECASE)
_IN_PROSE = pattern("choices", "in_prose")
_AT_END = pattern("choices", "at_end")
_BRACKETED = re.compile(r"\(([A-J])\)")
_NOT_THIS = re.compile(r"(?:\bnot|n['\u2019]t|\([A-J]\)\s*(?:,|and|or|,\s*(?:and|or)))\s*$")
_ANOTHER = re.compile(r"\s*\(?(?:,|or|and|/)\s*[(\[]?[A-J]\b")


def choice_of_label(label: str) -> frozenset[str] | None:
    """The letters, in upper case; None where the label is none. A lower-case letter is mathematics unless in brackets:
    `e`, `a`; so is everything with a letter in it, such as `a = 5` or `A \\cup B`."""
    plain = _plain(label)
    if re.fullmatch(r"[A-J]{2,6}", plain) and list(plain) == sorted(set(plain)):
        # "ACD"
        return frozenset(plain)
    if _SEVERAL.fullmatch(plain):
        return frozenset(re.findall(r"[A-J]", plain.replace("and", "")))
    match = _ALONE.fullmatch(plain) or _WITH_CONTENT.fullmatch(plain)
    return frozenset((match[1] or match[2]).upper()) if match else None


def choice_of_answer(answer: str, *, in_prose: bool = False) -> frozenset[str] | None:
    """The letters that an answer to such a question chooses; None where it does not choose clearly. In prose it may
    choose with its last words: "so I think it's B"."""
    plain = _plain(answer)
    known = choice_of_label(plain)
    if known is not None:
        return known
    match = _CHOSEN.fullmatch(plain)
    if match is None:
        match = _IN_PROSE.match(plain)
        if match and _ANOTHER.match(plain, match.end()):
            return None
    if match is None and in_prose:
        match = _AT_END.search(plain) or _last_in_brackets(plain)
    return frozenset(next(filter(None, match.groups())).upper()) if match else None


def _last_in_brackets(text: str) -> re.Match[str] | None:
    """`Therefore (D)`, `not (A), rather (C)`; None where it is one of several, or denied."""
    found = list(_BRACKETED.finditer(text))
    if not found:
        return None
    before = text[: found[-1].start()]
    return None if _NOT_THIS.search(before) or _ANOTHER.match(text, found[-1].end()) else found[-1]


def _plain(text: str) -> str:
    """Without dollars, bold and `\\text`; all other commands stay."""
    text = typeset_words(unicodedata.normalize("NFKC", text).replace("\\ ", " "))
    return re.sub(r"\s+", " ", re.sub(r"[$*~]", " ", text)).strip().rstrip(".").strip()
