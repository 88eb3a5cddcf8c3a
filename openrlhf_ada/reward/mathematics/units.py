r"""Units behind a number: one may be left out, but 5 cm is not 5 m, and 101 in base 2 is not 101 in base 3.

A unit is what stands behind the expression in `\text{...}`, or behind a number: a known symbol (`cm`, `km/h`), or
words (`12 red apples`). Other letters are factors (`3xy`, `\frac{1}{2}bh`), and so is a single letter right behind a
number (`5m`), unless the label names that unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from string import ascii_lowercase

from openrlhf_ada.reward.mathematics.notation import typeset_words
from openrlhf_ada.reward.mathematics.numbers import number
from openrlhf_ada.reward.mathematics.tables import pattern, table

_SAME = table("units", "same")
_NAMES = {word: unit for unit, words in _SAME.items() for word in words.split()}
_POWERS = table("units", "powers")
_RATES = table("units", "rates")
_LARGER = table("units", "larger")
_IN_SMALLEST = {unit: (smallest, size) for smallest, sizes in _LARGER.items() for unit, size in sizes.items()}
_SIGNS = table("units", "signs")

_TEXT = r"\\(text|textnormal|mbox|textrm|textbf|textit|emph|mathrm|operatorname|mathbf|rm)"
_FONTS = ("mathrm", "operatorname", "mathbf", "rm")
"""Of letters in formulas: `2\\mathrm{AB}`, `3\\mathbf{v}`."""
_EXPONENT = r"(?:\s*\^\s*\{?\s*(-?[0-9])\s*\}?)?"
_IN_TEXT = re.compile(
    rf"(?:\s|\\[ ,;:!])*{_TEXT}\s*\{{\s*~?\s*([A-Za-z./() -]{{1,60}}?(?:\^\s*\{{?[0-9]\}}?)?)[ .]*\}}"
    rf"{_EXPONENT}\s*\.?$"
)
_WORDS = re.compile(rf"(?<=[0-9}})!%])(-|\s*)~?([A-Za-z][A-Za-z./ '-]{{0,80}}?){_EXPONENT}\s*\.?$")
_NOUN = pattern("units", "noun")
_NUMBER = pattern("units", "number")
_PREFIXED = re.compile(r"[mkMGTcdnp]?(?:[gmsNJWVAKLlBTCF]|mol|Hz|Pa|eV|cal|bar|dB)")
_SHORT = ("of", "a", "an", "in", "on", "at", "per", "sq")
_FUNCTION = pattern("units", "function")
_AMOUNT = pattern("units", "amount")
_DEGREE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?(?:\s*([CF])|\s*\\?(?:text|mathrm)\s*\{\s*([CF])\s*\})?$")
_MONEY = re.compile(r"^([+-]?)\s*(?:\\\$|\$|([€£₹¥]))\s*(?=[0-9.])|(?<=[0-9])\s*(?:\\\$|\$|([€£₹¥]))$")
_PERCENT = re.compile(r"\s*\\?%$")
_BASE = re.compile(r"(?<=[0-9A-Fa-f])\s*_\s*\{?\s*(?:\\text\s*\{)?\s*([0-9]{1,2}|[a-z]{3,10})\s*\}*$")
_CONNECTIVE = pattern("units", "connective")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])(?!(?:e|i|sqrt|pi|sin|cos|tan|log|ln)(?![A-Za-z]))[A-Za-z]")

PERCENT = ("percent",)
LONGEST_AMOUNT = 100  # characters


@dataclass(frozen=True, slots=True)
class Unit:
    """`names`: those after the first are divided by. `is_certain`: could it be nothing but a unit?"""

    names: tuple[str, ...]
    power: int = 1
    is_certain: bool = True

    def agrees(self, other: Unit) -> bool:
        """The same unit; nouns may say more (apples, red apples)."""
        if (self.names, self.power) == (other.names, other.power):
            return True
        mine, theirs = (set(" ".join(unit.names).split()) for unit in (self, other))
        return self.power == other.power and not (mine | theirs) & set(_SAME) and bool(mine & theirs)

    def in_units_of(self, other: Unit) -> Fraction | None:
        """How many of the other one it is; None where it is of another kind."""
        if self.power != other.power or (self.power != 1 and len(self.names) > 1):
            return None
        mine, theirs = ([_IN_SMALLEST.get(name, (name, 1)) for name in unit.names] for unit in (self, other))
        if [name for name, _ in mine] != [name for name, _ in theirs]:
            return None
        first, *others = (Fraction(size, of) for (_, size), (_, of) in zip(mine, theirs, strict=True))
        return first**self.power / prod(others)


@dataclass(frozen=True, slots=True)
class Measured:
    """An expression and its unit, if it has one."""

    expression: str
    unit: Unit | None = None
    base: str | None = None

    @property
    def is_percentage(self) -> bool:
        return self.unit is not None and self.unit.names == PERCENT


def comparable(label: str, answer: str) -> tuple[Measured, Measured] | None:
    """Label and answer apart from their units; None where these differ."""
    expected, given = measured(label), measured(answer)
    if expected.unit and given.unit and not expected.unit.agrees(given.unit):
        factor = given.unit.in_units_of(expected.unit)
        if factor is None:
            return None
        value = number(given.expression)
        scaled = str(value.value * factor) if value else rf"({factor}) \cdot ({given.expression})"
        given = replace(given, expression=scaled, unit=expected.unit)
    if expected.base and given.base and expected.base != given.base:
        return None
    if _is_variable(expected, given) or _is_variable(given, expected):
        return Measured(label), Measured(answer)
    return expected, given


def _is_variable(one: Measured, other: Measured) -> bool:
    """Is the unit of one a letter that the other does not know as one, or has in its expression?"""
    if one.unit is None or other.unit is not None:
        return False
    name = "/".join(one.unit.names)
    is_in_other = len(name) == 1 and re.search(rf"(?<![\\A-Za-z]){name}(?![A-Za-z])", other.expression) is not None
    return not one.unit.is_certain or is_in_other


def measured(text: str) -> Measured:
    """Take the unit, or the base, from the end of an expression, or the currency from either end."""
    text = text.strip()
    match = _BASE.search(text)
    if match and text[: match.start()].replace(",", "").strip().isalnum() and not text[0].isalpha():
        return Measured(text[: match.start()], base=match[1])
    for find in (_percent, _in_text, _degree, _money, _words_behind):
        found = find(text)
        if found is not None:
            return found
    return Measured(text)


def amounts(text: str) -> tuple[int, dict[str, Fraction]] | None:
    """Of `1 hour 30 minutes` 2, {s: 5400}; of `3 boys, 4 girls` 2, {boy: 3, girl: 4}; None for no list of amounts."""
    text = typeset_words(text)
    if len(text) > LONGEST_AMOUNT:
        return None
    found: dict[str, Fraction] = {}
    matches = list(_AMOUNT.finditer(text))
    if "".join(match[0] for match in matches) != text or not all(_is_said(match[2]) for match in matches):
        return None
    for match in matches:
        value, name = number(match[1]), _name(match[2]) or _noun(match[2])
        if value is None:
            return None
        smallest, size = _IN_SMALLEST.get(name, (name, 1))
        found[smallest] = found.get(smallest, Fraction(0)) + value.value * size
    return (len(matches), found) if matches else None


def _percent(text: str) -> Measured | None:
    match = _PERCENT.search(text)
    return Measured(text[: match.start()], Unit(PERCENT)) if match and match.start() else None


def _in_text(text: str) -> Measured | None:
    match = _IN_TEXT.search(text)
    if match is None or not match.start() or _CONNECTIVE.search(match[2]) or text[match.start() - 1] in "+-*/^=,_(":
        return None
    if match[1] in _FONTS and not _is_said(match[2], _PREFIXED):
        return None
    return Measured(text[: match.start()].strip(), _named(match[2], match[3]))


def _degree(text: str) -> Measured | None:
    match = _DEGREE.search(text)
    if match is None or not match.start():
        return None
    scale = match[1] or match[2]
    return Measured(text[: match.start()], Unit((f"degree {scale}" if scale else "degree",)))


def _money(text: str) -> Measured | None:
    match = _MONEY.search(text)
    if match is None:
        return None
    sign = match[2] or match[3]
    rest = (match[1] or "") + text[: match.start()] + text[match.end() :]
    # "$5 million", "$5 per person"
    inner = measured(rest.strip())
    return Measured(inner.expression, Unit((_SIGNS[sign] if sign else "dollar",)))


def _words_behind(text: str) -> Measured | None:
    """A known symbol behind a number, or words with a space before them: 12 apples."""
    match = _WORDS.search(text)
    if match is None or not is_numeric(text[: match.start()]) or _CONNECTIVE.search(match[2]):
        return None
    gap, said = match[1], match[2]
    unit, is_letter = _named(said, match[3]), len(said) == 1
    if not (_is_said(said) if gap else set(unit.names) <= set(_SAME)) or (is_letter and gap == "-"):
        return None
    return Measured(text[: match.start()].strip(), replace(unit, is_certain=bool(gap) or not is_letter))


def _is_said(said: str, symbols: re.Pattern[str] | None = None) -> bool:
    """Are these units (by name, or one of the symbols) and nouns, and no letters that could be factors?"""
    words = re.findall("[A-Za-z]+", said)
    others = [word for word in words if _name(word) is None and not (symbols and symbols.fullmatch(word))]
    if any((len(word) < 3 and word not in _SHORT) or _FUNCTION.fullmatch(word) for word in others) or (
        words and _NUMBER.fullmatch(words[0].lower())
    ):
        return False
    is_product = " " in said and all(len(word) == 1 for word in words)
    return not is_product and (
        len(others) < len(words) or any(_NOUN.fullmatch(word) and word not in ascii_lowercase for word in others)
    )


def is_numeric(text: str) -> bool:
    """Has it digits, and no letter that could be a variable?"""
    return bool(re.search(r"[0-9]", text)) and not _VARIABLE.search(text)


def _named(said: str, exponent: str | None) -> Unit:
    said, _, inner = said.strip(" .-").replace("(", "").replace(")", "").partition("^")
    power = int(exponent or inner.strip("{} ") or 1)
    words = said.split()
    for word in (words[:1] + words[-1:]) if len(words) > 1 else []:
        if word.lower() in _POWERS:
            power = _POWERS[word.lower()]
            words.remove(word)
    parts = [part.strip() for part in re.split(r"/|\bper\b", " ".join(words)) if part.strip()]
    return Unit(tuple("/".join(_name(part) or _noun(part) for part in parts).split("/")), power)


def _name(word: str) -> str | None:
    """The known unit of this name."""
    if word in _RATES:
        return _RATES[word]
    for form in (word, word.lower() if len(word) > 2 else word):
        singular = form.removesuffix("s")
        if form in _NAMES or singular in _NAMES:
            return _NAMES.get(form) or _NAMES[singular]
    return None


def _noun(phrase: str) -> str:
    return " ".join(word.removesuffix("s") for word in phrase.lower().split())
