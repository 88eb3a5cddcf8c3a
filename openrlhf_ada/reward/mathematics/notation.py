"""How answers to mathematical problems are written down: one notation for what is the same mathematics."""

from __future__ import annotations

import re
import unicodedata

from openrlhf_ada.reward.mathematics.plain_formulas import plain_formula

_SIGNS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u2014": "-", "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
        "°": r"^\circ ", "Ω": r"\Omega ", "∅": r"\emptyset ", "θ": r"\theta ", "±": r"\pm ", "≈": r"\approx ",
        "∈": r"\in ", "ℝ": r"\mathbb{R}", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    }
)  # fmt: skip
_SCRIPTS = ((re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+"), "^"), (re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+"), "_"))
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+|[a-z]))")
_SIMPLER = (
    (re.compile(r"\\(?:[bB]igg?[lrm]?|middle)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:leqq|leqslant)"), r"\\le "),
    (re.compile(r"\\(?:geqq|geqslant)"), r"\\ge "),
    (re.compile(r"\\langle(?![a-z])"), "("),
    (re.compile(r"\\rangle(?![a-z])"), ")"),
    (re.compile(r"\\(?:boldsymbol|bm|pmb)(?![a-z])\s*\{((?:[^{}]|\{[^{}]*\})*)\}"), r"\1"),
    (re.compile(r"\\[lc]?dots(?![a-z])"), r"\\ldots"),
    # 0.333... is a third.
    (re.compile(r"(\.[0-9]*?)([0-9])\2{2,}\s*(?:\\ldots|\.\.\.)$"), r"\1\\overline{\2}"),
    (re.compile(r"\\mathrm\s*\{\s*([ei])\s*\}"), r"\1"),
    (re.compile(r"\\log_\{?e(?![a-z])\}?"), r"\\ln "),
    # A comma that is set close to the next digits groups them.
    (re.compile(r"(?<=[0-9])(?:,\\!|\{,\})\s*(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle(?![a-z])|\\!|\\limits(?![a-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-z])"), " "),
    # math-verify knows the imaginary unit by the space before it.
    (re.compile(r"(?<=[0-9})])i(?![A-Za-z])"), " i"),
    (re.compile(r"(?<![A-Za-z\\])i(?=\()"), r"i \\cdot "),
    (re.compile(r"(?<!\\)\\$"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"^\s*\\(?:approx|sim|simeq|thickapprox)(?![a-z])"), ""),
    (re.compile(r"^\\text ?\{([^{}]*[0-9][^{}]*)\}$"), r"\1"),
    # A set by its condition, a matrix by its rows.
    (re.compile(r"^\\\{ ?([a-z])(?: ?\\in ?\\mathbb\{?R\}?)? ?(?:\\mid|\||:) ?(.*\1.*)\\\}$"), r"\2"),
    (re.compile(r"^\$([^$]+)\$\s*([A-Za-z][A-Za-z /]*)$"), r"\1 \\text{ \2}"),
)
_OPEN = re.compile(r"([\[\]])([^\[\],;\s][^\[\]]*[,;][^\[\]]+)([\[\]])")
_UNIT_VECTOR = re.compile(
    r"(?:\\(?:mathbf|boldsymbol|bm|hat|vec|overrightarrow)\s*\{?\s*){1,2}\\?([ijk])(?:math)?\s*\}{0,2}"
)
_EXPONENT = re.compile(r"(?<![\w.\\])([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})(?![\w.])")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar)\s*\{([0-9]+)\}")
_MIXED = re.compile(
    r"(?<![\w.}\\^])([0-9]+)\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|"
    r"(?<![\w.}\\^/])([0-9]+)(?: +and)? +([0-9]+) ?/ ?([0-9]+)(?![\w/.^])"
)
# Equations below each other.
_EQUATIONS = re.compile(
    r"^\\begin\s*\{(array|cases|aligned|gathered)\}(?:\s*\{[lcr|]*\})?(.*)\\end\s*\{\1\}$", re.DOTALL
)
_PLUS_MINUS = re.compile(r"\\pm(?![a-z])\s*")
_TRIGONOMETRY = re.compile(r"(?<!\\arc)\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\^\s*\{?\s*\\circ\s*\}?")
_ROWS = re.compile(r"^\[ ?\[([^\[\]]*(?:\] ?, ?\[[^\[\]]*)*)\] ?\]$")
_ORDINAL = re.compile(r"(?<=[0-9])(?:st|[nr]d|th)\b")
_LARGE = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*(?:\\(?:text|mathrm)\s*\{\s*)?(million|billion|thousand|trillion)\b\s*\}?"
)
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def simplified(text: str) -> str:
    """The same mathematics in a plainer notation: one sign for minus, no spacing commands, no thousands spaces,
    `4.5e33`, mixed numbers, repeating decimals and millions as LaTeX that math-verify reads."""
    text = _plain_characters(text).strip()
    text = text if text.endswith("...") else text.rstrip(" .,;:\u3002")
    text = _OPEN.sub(_in_round_brackets, _as_tuple(text))
    for pattern, replacement in _SIMPLER:
        text = pattern.sub(replacement, text)
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
    for pattern, sign in _SCRIPTS:
        text = pattern.sub(lambda m, sign=sign: f"{sign}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = "".join(_vulgar(character) for character in text.translate(_SIGNS))
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3]}}}", unicodedata.normalize("NFKC", text))
    return text.translate(_SIGNS)


def _vulgar(character: str) -> str:
    if not unicodedata.decomposition(character).startswith("<fraction>"):
        return character
    top, _, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


_COMMAND = re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])")
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
            closing = _closing_brace(text, position)
            if closing is None:
                break
            done, position = done + _inside(text[position:closing]), closing
    return done + text[position:]


def _inside(group: str) -> str:
    """A group `{...}`, its contents done in the same way."""
    opening = group.index("{") + 1
    return "{" + with_braces(group[opening:-1]) + "}"


def _closing_brace(text: str, position: int) -> int | None:
    """The end of the group that begins here, white space apart; None where none begins or it does not end."""
    start = re.compile(r"\s*\{").match(text, position)
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, position) if start else ():
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
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


_WORDING = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|textsf|operatorname|emph)\s*\{([^{}]*)\}"
)


def typeset_words(text: str) -> str:
    r"""`1\text{ hour}` as `1 hour`."""
    previous = None
    while previous != text:
        previous, text = text, _WORDING.sub(r" \1 ", text)
    return re.sub(r"\s+", " ", text).strip()


def words(text: str) -> str:
    """What is left when all that is typography is taken away: lower case, single spaces, no brackets around it."""
    text = _ORDINAL.sub("", re.sub(r"[$*_`{}\\]", " ", typeset_words(text)))
    return re.sub(r"\s+", " ", text).strip(" .,;:!\"'").lower()
