"""How answers to mathematical problems are written down: one notation for what is the same mathematics."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

from openrlhf_ada.reward.mathematics.tables import pattern, table

_SIGNS = str.maketrans(table("notation", "signs"))
_SCRIPTS = ((re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+"), "^"), (re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+"), "_"))
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+|[a-z]))")
_DRESS = [(re.compile(found), instead) for found, instead in table("notation", "dress")]
_DRESSED = re.compile("|".join(found.pattern for found, _ in _DRESS))
_SIMPLER = [(re.compile(found), instead) for found, instead in table("notation", "simpler")]
_OPEN = re.compile(r"([\[\]])([^\[\],;\s][^\[\]]*[,;][^\[\]]+)([\[\]])")
_UNIT_VECTOR = pattern("notation", "unit_vector")
_EXPONENT = re.compile(r"(?<![\w.\\])([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})(?![\w.])")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar)\s*\{([0-9]+)\}")
_MIXED = pattern("notation", "mixed")
_EQUATIONS = pattern("notation", "equations")
_PLUS_MINUS = re.compile(r"\\pm(?![a-z])\s*")
_TRIGONOMETRY = re.compile(r"(?<!\\arc)\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\^\s*\{?\s*\\circ\s*\}?")
_ROWS = re.compile(r"^\[ ?\[([^\[\]]*(?:\] ?, ?\[[^\[\]]*)*)\] ?\]$")
_ORDINAL = re.compile(r"(?<=[0-9])(?:st|[nr]d|th)\b")
_LARGE = pattern("notation", "large")
_ZEROS = table("notation", "zeros")


def simplified(text: str) -> str:
    """The same mathematics in a plainer notation: one sign for minus, no spacing commands, no thousands spaces,
    `4.5e33`, mixed numbers, repeating decimals and millions as LaTeX that math-verify reads."""
    text = _plain_characters(text).strip()
    text = text if text.endswith("...") else text.rstrip(" .,;:\u3002")
    text = _OPEN.sub(_in_round_brackets, _as_tuple(text))
    for found, instead in _SIMPLER:
        text = found.sub(instead, text)
    text = _ROWS.sub(_matrix, with_braces(plain_formula(text)))
    text = _both_signs(text)
    text = _EQUATIONS.sub(_in_a_row, text)
    if _TRIGONOMETRY.search(text):
        text = _DEGREES.sub(r"\\frac{\1\\pi}{180}", text)
    text = _EXPONENT.sub(r"\1 \\cdot 10^{\2}", text)
    text = _REPEATING.sub(_fraction, text)
    text = _MIXED.sub(_improper, text)
    text = _LARGE.sub(lambda m: rf"{m[1]} \cdot 10^{{{_ZEROS[m[2]]}}}", text)
    return text.strip()


def undressed(text: str) -> str:
    r"""Without colours, fonts, sizes, lines and frames, a sign before it (`=`, `\therefore`) and a tick behind it."""
    if text.isalnum() or not _DRESSED.search(text):
        return text.strip()
    for found, instead in _DRESS:
        text = found.sub(instead, text).strip()
    while text.startswith("{") and closing(text, 1) == len(text) - 1 and "," not in text:
        text = text[1:-1].strip()
    return text


def _as_tuple(text: str) -> str:
    r"""`3\mathbf{i}+4\mathbf{j}` as `(3, 4)`."""
    name, equals, sum_ = text.rpartition("=")
    *parts, rest = _UNIT_VECTOR.split(sum_)
    factors = {letter: factor.strip() for factor, letter in zip(parts[::2], parts[1::2], strict=True)}
    if (
        rest.strip()
        or not 2 <= len(factors) == len(parts) // 2
        or any(f.count("{") != f.count("}") for f in parts[::2])
    ):
        return text
    if any(not factor.startswith(("+", "-")) for factor in list(factors.values())[1:]):
        return text
    ones = {"": "1", "+": "1", "-": "-1"}
    values = (factors.get(letter, "0") for letter in ("ijk" if "k" in factors else "ij"))
    return f"{name}{equals}({', '.join(ones.get(value, value.lstrip('+')) for value in values)})"


def _in_round_brackets(match: re.Match[str]) -> str:
    """`]0,1[` as `(0,1)`."""
    return f"{match[1].replace(']', '(')}{match[2]}{match[3].replace('[', ')')}"


def _plain_characters(text: str) -> str:
    """Without characters that stand for LaTeX."""
    if text.isascii():
        return text
    for script, sign in _SCRIPTS:
        text = script.sub(lambda m, sign=sign: f"{sign}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = "".join(_vulgar(character) for character in text.translate(_SIGNS))
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3]}}}", unicodedata.normalize("NFKC", text))
    return text.translate(_SIGNS)


def _vulgar(character: str) -> str:
    if not unicodedata.decomposition(character).startswith("<fraction>"):
        return character
    top, _, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


_COMMAND = re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])")
_OPENING = re.compile(r"\s*\{")
_TOKEN = re.compile(r"\s*(\\[A-Za-z]+|[0-9A-Za-z])")


def with_braces(text: str) -> str:
    r"""Braces around arguments that have none, as TeX reads them: `\frac \pi4` is `\frac{\pi}{4}`."""
    done, position = "", 0
    for match in _COMMAND.finditer(text):
        if match.start() < position:
            # Within an argument that has been read.
            continue
        done += text[position : match.end()]
        position = match.end()
        for _ in range(1 if match[1] == "sqrt" else 2):
            token = _TOKEN.match(text, position)
            if token is not None and not _COMMAND.match(token[1]):
                done, position = f"{done}{{{token[1]}}}", token.end()
                continue
            opening = _OPENING.match(text, position)
            end = closing(text, opening.end()) if opening else None
            if opening is None or end is None:
                break
            done, position = f"{done}{{{with_braces(text[opening.end() : end])}}}", end + 1
    return done + text[position:]


def closing(text: str, start: int, brackets: str = "{}", end: int = sys.maxsize) -> int | None:
    """Position of the bracket that closes the one before `start`, if it comes before `end`."""
    depth = 1
    for match in re.compile(rf"\\.|[{brackets}]", re.DOTALL).finditer(text, start, end):
        depth += {brackets[0]: 1, brackets[1]: -1}.get(match[0], 0)
        if not depth:
            return match.start()
    return None


def _both_signs(text: str) -> str:
    r"""Both values of `\frac{-b \pm c}{2a}`. math-verify knows the sign outside of braces."""
    match = _PLUS_MINUS.search(text)
    if (
        match is None
        or text.count(r"\pm") != 1
        or text[: match.start()].count("{") == text[: match.start()].count("}")
    ):
        return text
    return ", ".join(f"{text[: match.start()]}{sign}{text[match.end() :]}" for sign in "+-")


def _in_a_row(match: re.Match[str]) -> str:
    rows = [row.replace("&", "").strip(" ,") for row in match[2].split(r"\\") if row.strip()]
    return ", ".join(rows) if all(row.count("=") == 1 for row in rows) else match[0]


def _matrix(match: re.Match[str]) -> str:
    rows = re.split(r"\] ?, ?\[", match[1])
    return r"\begin{pmatrix} " + r" \\ ".join(row.replace(",", "&") for row in rows) + r" \end{pmatrix}"


def _fraction(match: re.Match[str]) -> str:
    whole, fixed, repeating = match[1] or "0", match[2], match[3]
    top = int(whole + fixed + repeating) - int(whole + fixed)
    return rf"\frac{{{top}}}{{{'9' * len(repeating)}{'0' * len(fixed)}}}"


def _improper(match: re.Match[str]) -> str:
    whole, top, bottom = (int(part) for part in match.groups() if part is not None)
    return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}" if top < bottom else match[0]


_WORDING = pattern("notation", "wording")


def typeset_words(text: str) -> str:
    r"""`1\text{ hour}` as `1 hour`."""
    previous = None
    while previous != text:
        previous, text = text, _WORDING.sub(r" \1 ", text)
    return re.sub(r"\s+", " ", text).strip()


@lru_cache(maxsize=4096)
def words(text: str) -> str:
    """What is left when all that is typography is taken away: lower case, single spaces, no brackets around it."""
    text = _ORDINAL.sub("", re.sub(r"[$*_`{}\\]", " ", typeset_words(text)))
    return re.sub(r"\s+", " ", text).strip(" .,;:!\"'").lower()


# Formulas in plain text, as programs print them: `7*sin(pi*x/5) + 1`, `sqrt(2)`, `e^(-8*x)`.

_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt"
_CALL = re.compile(rf"(?<![A-Za-z\\])({_FUNCTIONS})\s*(?=\()")
_CONSTANT = re.compile(r"(?<![A-Za-z\\])(pi|infinity|inf|theta|alpha|beta|lambda)(?![A-Za-z])")
_CONSTANTS = {"infinity": "infty", "inf": "infty"}
_RAISED = re.compile(r"\^\s*\(")
_NEGATIVE_POWER = re.compile(r"\^\s*(-\s*(?:[0-9]+|[a-z]))")
_OTHER_WORD = re.compile(
    rf"(?<![A-Za-z\\])(?!(?:{_FUNCTIONS}|pi|infinity|inf|theta|alpha|beta|lambda)(?![A-Za-z]))[A-Za-z]{{2,}}"
)
_MARKS = re.compile(rf"{_CALL.pattern}|{_CONSTANT.pattern}|{_RAISED.pattern}|{_NEGATIVE_POWER.pattern}")
LONGEST_PLAIN = 500
"""Characters. Longer text stays as it is."""


def plain_formula(text: str) -> str:
    """The same as LaTeX; unchanged where there is nothing to change, or a word that is no part of a formula."""
    if len(text) > LONGEST_PLAIN or not _MARKS.search(text):
        return text
    text = _NEGATIVE_POWER.sub(r"^{\1}", text)
    text = _grouped(text, _RAISED, "^")
    if _OTHER_WORD.search(re.sub(r"\\[A-Za-z]+", " ", text)):
        return text
    text = _grouped(text, re.compile(r"(?<![A-Za-z\\])sqrt\s*\("), r"\sqrt")
    text = _grouped(text, re.compile(r"(?<![A-Za-z\\])exp\s*\("), "e^")
    text = _CALL.sub(r"\\\1", text)
    return _CONSTANT.sub(lambda m: "\\" + _CONSTANTS.get(m[1], m[1]) + " ", text)


def _grouped(text: str, opening: re.Pattern[str], command: str) -> str:
    """Braces in place of the brackets behind each `opening`, which becomes `command`. What does not close stays."""
    done = ""
    while (match := opening.search(text)) is not None:
        end = closing(text, match.end(), "()")
        if end is None:
            break
        done += f"{text[: match.start()]}{command}{{{_grouped(text[match.end() : end], opening, command)}}}"
        text = text[end + 1 :]
    return done + text
