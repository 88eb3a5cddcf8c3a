r"""Formulas in plain text, as programs print them: `7*sin(pi*x/5) + 1`, `sqrt(2)`, `e^(-8*x)`, as LaTeX."""

from __future__ import annotations

import re

_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt"
_CALL = re.compile(rf"(?<![A-Za-z\\])({_FUNCTIONS})\s*(?=\()")
_CONSTANT = re.compile(r"(?<![A-Za-z\\])(pi|infinity|inf|theta|alpha|beta|lambda)(?![A-Za-z])")
_NAMES = {"infinity": "infty", "inf": "infty"}
_POWER = re.compile(r"\^\s*\(")
_NEGATIVE_POWER = re.compile(r"\^\s*(-\s*(?:[0-9]+|[a-z]))")
_OTHER_WORD = re.compile(
    rf"(?<![A-Za-z\\])(?!(?:{_FUNCTIONS}|pi|infinity|inf|theta|alpha|beta|lambda)(?![A-Za-z]))[A-Za-z]{{2,}}"
)
_MARKS = re.compile(rf"{_CALL.pattern}|{_CONSTANT.pattern}|{_POWER.pattern}|{_NEGATIVE_POWER.pattern}")
LONGEST = 500
"""Characters. Longer text stays as it is."""


def plain_formula(text: str) -> str:
    """The same as LaTeX; unchanged where there is nothing to change, or a word that is no part of a formula."""
    if len(text) > LONGEST or not _MARKS.search(text):
        return text
    text = _NEGATIVE_POWER.sub(r"^{\1}", text)
    text = _grouped(text, _POWER, "^")
    if _OTHER_WORD.search(re.sub(r"\\[A-Za-z]+", " ", text)):
        return text
    text = _grouped(text, re.compile(r"(?<![A-Za-z\\])sqrt\s*\("), r"\sqrt")
    text = _grouped(text, re.compile(r"(?<![A-Za-z\\])exp\s*\("), "e^")
    text = _CALL.sub(r"\\\1", text)
    return _CONSTANT.sub(lambda m: "\\" + _NAMES.get(m[1], m[1]) + " ", text)


def _grouped(text: str, opening: re.Pattern[str], command: str) -> str:
    """Braces in place of the brackets behind each `opening`, which becomes `command`. What does not close stays."""
    done = ""
    while (match := opening.search(text)) is not None:
        end = _closing(text, match.end())
        if end is None:
            break
        done += f"{text[: match.start()]}{command}{{{_grouped(text[match.end() : end], opening, command)}}}"
        text = text[end + 1 :]
    return done + text


def _closing(text: str, start: int) -> int | None:
    """Position of the bracket that closes the one before `start`."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if not depth:
            return position
    return None
