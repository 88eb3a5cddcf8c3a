"""Numbers as they are written: compared here exactly, a hundred times as fast as by a computer algebra system."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from openrlhf_ada.reward.mathematics.tables import pattern, table

RELATIVE = 1e-5
"""How far, in shares of its size, a decimal may be from a number that is no decimal."""

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]{1,400})(?:\.[0-9]{0,400})?|\.[0-9]{1,400}"
_PLAIN = re.compile(rf"[+-]?(?:{_DIGITS})")
_POWER = re.compile(
    rf"([+-]?(?:{_DIGITS}))\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{\s*([+-]?[0-9]{{1,3}})\s*\}}|([0-9]))"
)
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,400})"
_SLASH = re.compile(rf"([+-]?{_INTEGER})\s*/\s*({_INTEGER})")
_FRACTION = re.compile(rf"([+-]?)\s*\\frac\s*\{{\s*(-?{_INTEGER})\s*\}}\s*\{{\s*({_INTEGER})\s*\}}")
_OF_PROGRAMS = re.compile(r"0(?:[xX][0-9A-Fa-f]{1,100}|[bB][01]{1,400}|[oO][0-7]{1,100})")
_COMMA_FOR_POINT = re.compile(r"([+-]?)(0,[0-9]+|[0-9]+,(?:[0-9]{2}|[0-9]{4,}))")


@dataclass(frozen=True, slots=True)
class Number:
    """`is_decimal`: written with a decimal point, which may mean that it is rounded. `places`: digits behind it;
    `digits`: all that count, without zeros in front."""

    value: Fraction
    is_decimal: bool = False
    places: int = 0
    digits: int = 0

    def equals(self, other: Number) -> bool:
        """Exactly, or nearly where one is a decimal and the other a fraction such as 1/3."""
        if self.value == other.value:
            return True
        if self.is_decimal == other.is_decimal:
            return False
        if self.is_rounding_of(other):
            return True
        decimal, exact = (self, other) if self.is_decimal else (other, self)
        is_finite_decimal = exact.value.denominator in (1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100)
        return not is_finite_decimal and abs(decimal.value - exact.value) <= RELATIVE * abs(exact.value)

    def is_rounding_of(self, exact: Number) -> bool:
        """Is this a decimal of at least two places and four digits, to which the other one is rounded?"""
        if not self.is_decimal or exact.is_decimal or self.places < 2 or self.digits < 4:
            return False
        return abs(exact.value - self.value) * 2 * 10**self.places <= 1


def number(text: str) -> Number | None:
    """The value of what is only a number: digits, a decimal, a fraction of integers, or a power of ten."""
    text = text.strip()
    if _OF_PROGRAMS.fullmatch(text):
        return Number(Fraction(int(text, 0)))
    match = _PLAIN.fullmatch(text)
    if match:
        return _plain(text)
    match = _SLASH.fullmatch(text)
    if match:
        return _ratio(match[1], match[2])
    match = _FRACTION.fullmatch(text)
    if match:
        ratio = _ratio(match[2], match[3])
        return Number(-ratio.value) if ratio and match[1] == "-" else ratio
    match = _POWER.fullmatch(text)
    if match:
        return Number(_plain(match[1]).value * Fraction(10) ** int(match[2] or match[3]), "." in match[1])
    return None


def _plain(text: str) -> Number:
    digits = text.replace(",", "").replace(" ", "")
    value = Fraction(digits + "0" if digits.endswith(".") else digits)
    significant = digits.replace(".", "").lstrip("+-0")
    return Number(value, "." in digits.rstrip("."), len(digits.partition(".")[2]), len(significant))


def _ratio(top: str, bottom: str) -> Number | None:
    below = int(bottom.replace(",", ""))
    return Number(Fraction(int(top.replace(",", "")), below)) if below else None


def with_decimal_point(text: str) -> str:
    """1,22 as 1.22, as much of the world writes it. Not 1,222, which is a thousand, nor 1,2, which are two numbers."""
    return text.replace(",", ".") if _COMMA_FOR_POINT.fullmatch(text) else text


_ONES, _TENS = table("numbers", "ones"), table("numbers", "tens")
_SMALL = {word: value for value, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_LARGE = table("numbers", "large")
_CHINESE, _CHINESE_UNITS = table("numbers", "chinese"), table("numbers", "chinese_units")
CHINESE = "".join([*_CHINESE, *_CHINESE_UNITS])
NUMBER_WORDS = "|".join([*_SMALL, *_LARGE])


def number_of_words(text: str) -> int | None:
    """`thirty-four`, `one hundred and five`, `二十三`; None for all other words."""
    if text and not text.strip(CHINESE):
        return _chinese(text)
    total, part, last = 0, 0, ""
    for word in re.sub(r"^an? (?=hundred|thousand|million|billion)", "one ", text.lower()).replace("-", " ").split():
        if word in _SMALL:
            # "one two" is no number, "twenty one" is.
            if last in _ONES or (last in _TENS and not 0 < _SMALL[word] < 10):
                return None
            part += _SMALL[word]
        elif word in _LARGE and part:
            part, total = (part * 100, total) if word == "hundred" else (0, total + part * _LARGE[word])
        elif word != "and" or last not in _LARGE:
            return None
        last = word
    return total + part if last and last != "and" else None


def _chinese(text: str) -> int:
    total, part, digit = 0, 0, 0
    for sign in text:
        unit = _CHINESE_UNITS.get(sign)
        if unit is None:
            digit = _CHINESE[sign]
        elif unit < 10_000:
            part, digit = part + (digit or 1) * unit, 0
        else:
            total, part, digit = (part + digit) * unit, 0, 0
    return total + part + digit


_TIME = re.compile(r"([0-9]{1,2})\s*:\s*([0-9]{2})(?::00)?(?:\s*([ap])\.?\s*m\.?)?", re.IGNORECASE)
_HOUR = re.compile(r"([0-9]{1,2})()\s*([ap])\.?\s*m\.?", re.IGNORECASE)


def time_of_day(text: str) -> tuple[int, int, str] | None:
    """Hour, minute, and the half of the day: "a" or "p", empty where it is not said."""
    match = _TIME.fullmatch(text) or _HOUR.fullmatch(text)
    if match is None or int(match[1]) > 24 or int(match[2] or 0) > 59:
        return None
    return int(match[1]), int(match[2] or 0), (match[3] or "").lower()


_YEAR_FIRST = re.compile(r"([0-9]{4})[-/年]([0-9]{1,2})[-/月]([0-9]{1,2})日?")
_YEAR_LAST = re.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})")
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTH = pattern("numbers", "month")


def date_of(text: str) -> tuple[str, int, str] | None:
    """Year, month and day; what is not said is empty. 3/4/2024 is in March."""
    if match := _YEAR_FIRST.fullmatch(text):
        return match[1], int(match[2]), match[3].lstrip("0")
    if match := _YEAR_LAST.fullmatch(text):
        month, day = match.group(2, 1) if int(match[1]) > 12 else match.group(1, 2)
        return match[3], int(month), day.lstrip("0")
    if match := _MONTH.fullmatch(text):
        day, year = match[1] or match[3] or "", match[4] or ""
        return (year, _MONTHS.index(match[2][:3]) // 3 + 1, day.lstrip("0")) if day or year else None
    return None


def same_time(one: tuple[int, int, str], other: tuple[int, int, str]) -> bool:
    """1:30 PM is 13:30, and 1:30 where the half of the day is left out."""
    hours = {hour % 12 + 12 * (half == "p") if half else hour for hour, _, half in (one, other)}
    is_half_left_out = bool(one[2]) != bool(other[2])
    return one[1] == other[1] and (len(hours) == 1 or (is_half_left_out and one[0] == other[0]))
