"""How answers to mathematical problems are written down: one notation for what is the same mathematics."""

from __future__ import annotations

import re
import unicodedata

_SIGNS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u2014": "-", "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
        "°": r"^\circ ", "Ω": r"\Omega ", "∅": r"\emptyset ", "θ": r"\theta ", "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "±": r"\pm ",
    }
)  # fmt: skip
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_ROOT = re.compile(r"√\s*\(?((?<=\()[^()]*(?=\))|[0-9]+|[a-z])\)?")
_SIMPLER = (
    (re.compile(r"\\mathrm\s*\{\s*([ei])\s*\}"), r"\1"),
    (re.compile(r"\\log_\{?e(?![a-z])\}?"), r"\\ln "),
    (re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle(?![a-z])|\\!|\\limits(?![a-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*([0-9])\s*([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\\$|^\$(?=[0-9])"), ""),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"(?<=[0-9])(?:\\[,;: ]|\{,\}|~)(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|~"), " "),
    (re.compile(r"\s+"), " "),
)
_EXPONENT = re.compile(r"(?<![\w.\\])([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})(?![\w.])")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar)\s*\{([0-9]+)\}")
_MIXED = re.compile(r"(?<![\w.}\\])([0-9]+)\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_LARGE = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*(?:\\(?:text|mathrm)\s*\{\s*)?(million|billion|thousand|trillion)\b\s*\}?"
)
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def simplified(text: str) -> str:
    """The same mathematics in a plainer notation: one sign for minus, no spacing commands, no thousands spaces
    nor dollars, `4.5e33`, mixed numbers, repeating decimals and millions as LaTeX that math-verify reads."""
    text = _RAISED.sub(lambda m: f"^{{{m[0].translate(_LOWERED)}}}", text.translate(_SIGNS))
    text = _ROOT.sub(r"\\sqrt{\1}", unicodedata.normalize("NFKC", text)).rstrip(" .,;:")
    for pattern, replacement in _SIMPLER:
        text = pattern.sub(replacement, text)
    text = _EXPONENT.sub(r"\1 \\cdot 10^{\2}", text)
    text = _REPEATING.sub(_fraction, text)
    text = _MIXED.sub(_improper, text)
    text = _LARGE.sub(lambda m: rf"{m[1]} \cdot 10^{{{_ZEROS[m[2]]}}}", text)
    return text.strip()


def _fraction(match: re.Match[str]) -> str:
    whole, fixed, repeating = match[1] or "0", match[2], match[3]
    top = int(whole + fixed + repeating) - int(whole + fixed)
    return rf"\frac{{{top}}}{{{'9' * len(repeating)}{'0' * len(fixed)}}}"


def _improper(match: re.Match[str]) -> str:
    whole, top, bottom = (int(part) for part in match.groups())
    return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}" if top < bottom else match[0]


_UP_TO_TWELVE = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {word: str(number) for number, word in enumerate(_UP_TO_TWELVE.split())}
_WORDING = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|textsf|operatorname|emph)\s*\{([^{}]*)\}")


def words(text: str) -> str:
    """What is left when all that is typography is taken away: lower case, single spaces, no brackets around it."""
    previous = None
    while previous != text:
        previous, text = text, _WORDING.sub(r" \1 ", text)
    text = re.sub(r"[$*_`{}\\]", " ", text)
    return re.sub(r"\s+", " ", text).strip(" .,;:!\"'").lower()
