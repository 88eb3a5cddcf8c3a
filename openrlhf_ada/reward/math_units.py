"""Units behind a number: one may be left out, but 5 cm is not 5 m, and 101 in base 2 is not 101 in base 3."""

from __future__ import annotations

import re

_SAME = {
    "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "dm": "dm", "m": "m meter metre",
    "km": "km kilometer kilometre", "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile",
    "mg": "mg milligram", "g": "g gram", "kg": "kg kilogram", "lb": "lb lbs pound", "oz": "oz ounce",
    "ms": "ms millisecond", "s": "s sec second", "min": "min minute", "h": "h hr hour", "day": "day", "week": "week",
    "month": "month", "year": "year yr", "am": "am a.m", "pm": "pm p.m", "dollar": "dollar", "cent": "cent",
    "l": "l L liter litre", "ml": "ml mL milliliter", "N": "N newton", "kN": "kN", "J": "J joule", "kJ": "kJ",
    "W": "W watt", "kW": "kW", "V": "V volt", "A": "A amp ampere", "Hz": "Hz hertz", "Pa": "Pa pascal",
    "K": "K kelvin",
    "degree": "degree deg", "unit": "unit", "percent": "percent",
}  # fmt: skip
_NAMES = {word: unit for unit, words in _SAME.items() for word in words.split()}
_POWERS = {"square": 2, "sq": 2, "cubic": 3}

_UNIT = re.compile(
    r"[0-9}!)]\s*~?\s*"
    r"(?:\\(?:text|mathrm|mbox|operatorname|textrm)\s*\{\s*~?\s*([A-Za-z./ ]{1,40}?)[ .]*\}|([A-Za-z./ ]{1,40}?))"
    r"\s*(?:\^\s*\{?\s*(-?[0-9])\s*\}?)?\s*\.?$"
)
_BASE = re.compile(r"[0-9A-Fa-f]\s*_\s*\{?\s*(?:\\text\s*\{)?\s*([0-9]{1,2}|[a-z]+)\s*\}*$")

Unit = tuple[tuple[str, ...], int]
"""(names, of which those after the first are divided by; power)."""


def units_conflict(label: str, answer: str) -> bool:
    """Do both name a unit, or a base, and different ones?"""
    return any(
        expected is not None and given is not None and expected != given
        for expected, given in ((_unit(label), _unit(answer)), (_base(label), _base(answer)))
    )


def _unit(text: str) -> Unit | None:
    """None where there is none, or no known one: 5 apples may be 5 fruits."""
    match = _UNIT.search(text)
    if match is None:
        return None
    said = (match[1] or match[2] or "").strip()
    power = int(match[3]) if match[3] else 1
    first, _, rest = said.partition(" ")
    if first in _POWERS:
        power, said = _POWERS[first], rest
    said = "mi/h" if said == "mph" else said
    names = [_name(part.strip()) for part in re.split(r"/|\bper\b", said)]
    known = [name for name in names if name is not None]
    return (tuple(known), power) if known and len(known) == len(names) else None


def _name(word: str) -> str | None:
    for form in (word, word.lower() if len(word) > 3 else word):
        if form in _NAMES:
            return _NAMES[form]
        if form.endswith("s") and form[:-1] in _NAMES:
            return _NAMES[form[:-1]]
    return None


def _base(text: str) -> str | None:
    match = _BASE.search(text)
    return match[1] if match else None
