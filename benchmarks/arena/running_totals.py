"""Prompts that need a working: sums of one-digit numbers whose totals are written out, then a short answer.

    prompt    7+4+9+2+6+3=
    answer    7+9=16+4=20+3=23+2=25+6=31;1

The answer after `;` is a class of the last total, and it alone is rewarded. Numbers may be added in any order, so many
workings are right. A training label is the class; a held-out label asks for the working too, which is measured only.

OpenRLHF loads this file by its path, on its own: nothing here may be a relative import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from openrlhf_ada.demo.artifacts import write_jsonl
from openrlhf_ada.reward.reward_function import response_of, strip_end_tokens

CLASSES = {4: "ABCD", 10: "0123456789"}
"""How the class of a total is said, by the number of classes: total modulo it."""

DIGITS = range(2, 10)
TERMS = range(6, 9)
LARGEST = range(4, 10)
"""A prompt draws its largest digit first: prompts differ in how hard they are."""

ASKS_FOR_WORKING = " with its working"
"""At the end of a held-out label."""

RIGHT, WORKING = 0.75, 0.25
"""A held-out answer's score: of a right class, and of a right working. Only the first makes it positive."""

HELD_OUT_SHARE = 0.2

_WORKING = re.compile(r"([0-9]+)((?:\+[0-9]+=[0-9]+)+)")


# -- prompts and answers ----------------------------------------------------------------------------------------------


def class_of(total: int, classes: int) -> str:
    return CLASSES[classes][total % classes]


def skill(digit: int) -> float:
    """How often the starting model is to add this digit rightly: from 1 (two) down to .5 (nine)."""
    return 1.0 - 0.5 * ((digit - DIGITS[0]) / (DIGITS[-1] - DIGITS[0])) ** 2


def errors(classes: int) -> range:
    """What a wrong total is off by, each as often: so its class is as right as a guess, whatever came before."""
    return range(1, classes + 1)


def drawn_terms(rng: Random) -> list[int]:
    largest = rng.choice(LARGEST)
    return [rng.choice(range(DIGITS[0], largest + 1)) for _ in range(rng.choice(TERMS))]


def answer(terms: list[int], classes: int, rng: Random, *, imperfect: bool) -> str:
    """Working and class, in an order of `rng`. `imperfect`: additions go wrong as `skill` and `errors` say, and what
    follows goes on from the wrong total."""
    first, *rest = rng.sample(terms, len(terms))
    text, total = str(first), first
    for digit in rest:
        total += digit
        if imperfect and rng.random() >= skill(digit):
            total += rng.choice(errors(classes))
        text += f"+{digit}={total}"
    return f"{text};{class_of(total, classes)}"


def write_prompts(folder: Path, classes: int, *, num_train: int, num_heldout: int, seed: int) -> None:
    """train.jsonl and heldout.jsonl. All classes are as often right, so a constant answer is right by luck as often as
    `classes` say. No held-out prompt has the numbers of a training prompt in another order."""
    for name, wanted, is_held_out in (("train", num_train, False), ("heldout", num_heldout, True)):
        found = _prompts(Random(f"{seed}/{name}"), classes, seed, is_held_out)
        asks = ASKS_FOR_WORKING if is_held_out else ""
        rows = [{"input": text, "label": label + asks} for (text, label), _ in zip(found, range(wanted), strict=False)]
        Random(f"{seed}/{name}/order").shuffle(rows)
        write_jsonl(folder / f"{name}.jsonl", rows)


def _prompts(rng: Random, classes: int, seed: int, is_held_out: bool) -> Iterator[tuple[str, str]]:
    """(prompt, label) without end, in turn of each class; no prompt twice."""
    seen: set[str] = set()
    while True:
        for label in CLASSES[classes]:
            while True:
                terms = drawn_terms(rng)
                text = f"{'+'.join(map(str, terms))}="
                if (
                    text not in seen
                    and class_of(sum(terms), classes) == label
                    and _is_held_out(terms, seed) == is_held_out
                ):
                    break
            seen.add(text)
            yield text, label


def _is_held_out(terms: list[int], seed: int) -> bool:
    return Random(f"{seed}/{sorted(terms)}").random() < HELD_OUT_SHARE


# -- reward -----------------------------------------------------------------------------------------------------------


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
    """1.0 for a right class, else 0.0; RIGHT and WORKING where the label asks for the working. Shapes (B,)."""
    import torch

    rows = zip(queries, prompts, labels, strict=True)
    scores = torch.tensor([score(prompt, response_of(query, prompt), label) for query, prompt, label in rows])
    return {"rewards": scores, "scores": scores, "extra_logs": {}}


def score(prompt: str, response: str, label: str) -> float:
    wanted, asks, _ = label.partition(ASKS_FOR_WORKING)
    working, _, said = strip_end_tokens(response).partition(";")
    right = said == wanted
    if not asks:
        return float(right)
    return RIGHT * right + WORKING * is_right_working(prompt, working)


def working_right(accuracy: float, mean_score: float) -> float:
    """Share of right workings, from the mean score of held-out answers."""
    return (mean_score - RIGHT * accuracy) / WORKING


def is_right_working(prompt: str, working: str) -> bool:
    """Does it add all numbers of the prompt, each once, and is every total right?"""
    found = _WORKING.fullmatch(working)
    if not found:
        return False
    terms = [int(found[1])]
    for digit, total in re.findall(r"\+([0-9]+)=([0-9]+)", found[2]):
        terms.append(int(digit))
        if sum(terms) != int(total):
            return False
    return sorted(terms) == sorted(map(int, prompt.removesuffix("=").split("+")))
