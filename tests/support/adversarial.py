"""Responses that no grader was made for."""

from __future__ import annotations

import random
from collections.abc import Iterator

PIECES = (
    *(
        "\\boxed{",
        "}",
        "{",
        "$",
        "$$",
        "\\[",
        "\\]",
        "\\(",
        "\\)",
        "\\frac{",
        "\\sqrt{",
        "^{",
        "_{",
        "\\left(",
        "\\right)",
    ),
    *(
        "9^{9^{9^{9}}}",
        "10^{100000}",
        "99999!",
        "0",
        "1",
        "42",
        "-",
        "+",
        "=",
        ",",
        ";",
        ":",
        ".",
        "%",
        "\\%",
        "&",
        "\\\\",
    ),
    *(
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\text{",
        "\\mathrm{",
        "\\int_0^1 ",
        "\\sum_{n=1}^{\\infty}",
        "x",
        "y",
        "\\pi",
    ),
    *(
        "\\infty",
        "\\cup",
        "\\in",
        "\\{",
        "\\}",
        "(",
        ")",
        "[",
        "]",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "####",
    ),
    *(
        "The answer is ",
        "Answer:",
        "**",
        "\n",
        "\n\n",
        "```python\n",
        "```",
        "print(",
        "import os\n",
        "\x00",
        "\ud800",
        "\udfff",
    ),
    *(
        "\u202e",
        "\ufeff",
        "é",
        "𝟜𝟚",
        "٤٢",
        "½",
        "²",
        "√",
        "−",
        "∞",
        "nan",
        "inf",
        "1e999",
        "0x1F",
        "None",
        "[[0]]",
        "{}",
    ),
    *("\t", "\r", "\u2028", "__import__('os')", "'", '"', "lambda:0", "a" * 300, "7" * 900, " " * 500, "\\", "\\\\\\"),
)


def adversarial_texts(count: int, seed: int) -> Iterator[str]:
    """So many different texts, the same ones for the same seed; about one in a thousand has a million characters."""
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.random()
        if number % 1000 == 0:
            yield rng.choice(PIECES) * (1_000_000 // 8)
        elif kind < 0.6:
            yield "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
        elif kind < 0.8:
            # An answer in a box, as a model may end in.
            yield "So \\boxed{" + "".join(rng.choices(PIECES, k=rng.randint(1, 8))) + "}"
        elif kind < 0.9:
            opening, depth = rng.choice(PIECES), rng.randint(1, 200)
            yield opening * depth + "1" + rng.choice(PIECES) * depth
        else:
            yield "".join(chr(rng.choice((rng.randint(0, 127), rng.randint(0, 0x10FFFF)))) for _ in range(60))
