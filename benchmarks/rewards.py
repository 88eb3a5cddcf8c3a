"""How fast answers are graded, in the process pool that training uses, by us and by plain math-verify in turns.

A stream as in training: every problem gets 8 answers, right and wrong ones, each at the end of a long chain of
thought; problems and answers are those of tests/data. `distinct`: no answer comes twice. math-verify (with its
defaults, as in reward_agreement.py) grades the same stream in the same pool, right after us; `ratios` are of such
neighbours.

    python benchmarks/rewards.py               twelve minutes; results in benchmarks/results/rewards.json
    python benchmarks/rewards.py --busy        beside other work: a third of the mathematics; only ratios are kept
    python benchmarks/rewards.py --quick       two turns, nothing is kept
    python benchmarks/rewards.py --hostile     only what hostile answers cost: the processor time of 1,000 of them, and
                                               of good answers beside four, as a share of alone; nothing is kept

The tables of docs/rewards.md are written anew from the results. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from machine import machine

from openrlhf_ada.reward.grade import Grade
from openrlhf_ada.reward.mathematics import grade as math_grade
from openrlhf_ada.reward.pool import TOO_COSTLY, GraderPool, GradingLimits
from openrlhf_ada.reward.programs import answers as code_answers
from openrlhf_ada.reward.programs import template as sandbox_template

HERE = Path(__file__).parent
RESULT = HERE / "results" / "rewards.json"
DOCUMENT = HERE.parent / "docs" / "rewards.md"
BEGIN, END = "<!-- Written by benchmarks/rewards.py. -->", "<!-- Until here. -->"
DATA = HERE.parent / "tests" / "data"
THOUGHT = "We check the remaining case, which gives $x^2 + 3x - 4 = 0$, so that one of the roots is 1. " * 40
ANSWERS = 8
WARM_UP = 20

THEIRS = f"{HERE / 'reward_agreement.py'}:math_verify_grade"
BESIDE = ", math-verify"
MATH = "openrlhf_ada.reward.mathematics:grade"
CODE = "openrlhf_ada.reward.programs:grade"
PROGRAM = "```python\nprint(sum(map(int, input().split())))\n```"
FUNCTION = "```python\ndef add(a, b):\n    return a + b\n```"
PAIRS = [(1, 2), (3, 4), (5, 6)]
PROGRAMS: dict[str, tuple[str, Any]] = {
    "programs of 3 tests": (
        PROGRAM,
        {"inputs": [f"{a} {b}" for a, b in PAIRS], "outputs": [str(a + b) for a, b in PAIRS]},
    ),
    "calls, 3 tests": (FUNCTION, {"fn_name": "add", "inputs": PAIRS, "outputs": [a + b for a, b in PAIRS]}),
    "asserts, 3 tests": (FUNCTION, {"tests": [f"assert add({a}, {b}) == {a + b}" for a, b in PAIRS]}),
    "asserts, 200 tests": (FUNCTION, {"tests": [f"assert add({a}, 1) == {a + 1}" for a in range(200)]}),
    "programs of 200 tests": (
        PROGRAM,
        {"inputs": [f"{a} 1" for a in range(200)], "outputs": [str(a + 1) for a in range(200)]},
    ),
}
"""Right programs, so that every test runs."""


def pairs() -> list[dict[str, Any]]:
    files = ("math_pairs.jsonl", "math_pairs_heldout.jsonl")
    return [json.loads(line) for name in files for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def training_stream(seed: int) -> list[tuple[str, Any]]:
    """8 answers per label: with chance 1/2 one that was given to it, else one that was given to another."""
    rng = random.Random(seed)
    rows = pairs()
    stream: list[tuple[str, Any]] = []
    for row in rng.sample(rows, len(rows)):
        others = [rng.choice(rows)["response"] for _ in range(2)]
        stream += [(THOUGHT + rng.choice([row["response"], *others]), row["label"]) for _ in range(ANSWERS)]
    return stream


def distinct_stream(seed: int) -> list[tuple[str, Any]]:
    """Every answer is a formula of its own, so that nothing is remembered."""
    rng = random.Random(seed)
    return [
        (f"{THOUGHT}\\boxed{{\\frac{{{rng.randint(1, 999)}x+{i}}}{{{rng.randint(2, 99)}}}}}", "\\frac{3x+1}{7}")
        for i in range(600)
    ]


STREAMS: dict[str, Callable[[int], list[tuple[str, Any]]]] = {
    "training": training_stream,
    "distinct": distinct_stream,
    "integers": lambda seed: [(f"{THOUGHT}\\boxed{{{i}}}", str(i % 9)) for i in range(2000)],
}
PAIR, PER_CPU_S = "training, 2 processes", ", per second of processor time"
TEXTS = {
    "training": "8 answers per problem, right and wrong, all kinds of answers",
    PAIR: "the same with two processes on two cores, with their caller",
    "integers": "integers",
    "distinct": "formulas, none of which comes twice",
}
PROGRAM_TEXTS = (
    ("programs with stdin", "programs of 3 tests", "programs of 200 tests"),
    ("calls of a function", "calls, 3 tests", ""),
    ("asserts", "asserts, 3 tests", "asserts, 200 tests"),
)


def _nested(opening: str, inner: str, closing: str, depth: int) -> str:
    return opening * depth + inner + closing * depth


def _functions(rng: random.Random) -> tuple[str, str]:
    names = (r"\sin(", r"\tan(", r"\ln(", r"\sqrt{1+", r"\sqrt[3]{2-", "e^{", r"\left|1-", r"\lfloor 1.5")
    opening = rng.choice(names)
    closings = {"|": r"\right|", "5": r"\rfloor", "(": ")", "[": ")"}
    return opening, next((end for sign, end in closings.items() if sign in opening[-2:] or sign in opening[:7]), "}")


def _sum_of(rng: random.Random, size: int, between: str, *terms: str) -> str:
    return between.join(rng.choice(terms).replace("K", str(k)) for k in range(2, size + 2))


_FACTORS = ("(x+K)", "(x^{K}+1)", "(x+y+K)", r"(1+\sqrt{K})", r"(2+\sin(Kx))", "(x+K)^{20}")
_TERMS = (r"\frac{1}{x+K}", r"\sqrt{x+K}", r"\sqrt[K]{2}", r"\cos(\frac{\pi}{K})", r"\frac{x}{y^{K}+1}")
_OPERATORS = (
    r"\sum_{k=1}^{N} \frac{1}{k}",
    r"\sum_{k=0}^{N} \binom{N}{k}x^k",
    r"\prod_{k=1}^{N} (x+k)",
    r"\int_0^1 \frac{\sin(x^{N})}{x+\ln x} dx",
    r"\lim_{x \to 0} \frac{\sin^{N} x}{x^{N}}",
    r"\frac{d}{dx} (x+1)^{N}",
    r"9^{N} \bmod 13",
)
_BASES = ("9", "x", "(x+1)", "(x+y+z)", r"(1+\sqrt{2})", "(a+b+c+d+e)", "1.0001", r"(\sin x+\cos x)", "(1+i)")
HOSTILE: dict[str, Callable[[random.Random, int], str]] = {
    "towers": lambda rng, n: _nested(rng.choice(_BASES) + "^{", rng.choice("9xn"), "}", n % 9 + 1),
    "functions": lambda rng, n: (lambda f: _nested(f[0], rng.choice("x2"), f[1], n % 60))(_functions(rng)),
    "powers": lambda rng, n: rf"{rng.choice(_BASES)}^{{{n ** rng.randint(1, 4)}}}{rng.choice(('', '-1', '=y'))}",
    "digits": lambda rng, n: rng.choice(("D", r"\sqrt{D}", r"\frac{1}{D}", "D!", "x^{D}", "0.D", r"\ln(D)")).replace(
        "D", "".join(rng.choices("123456789", k=n))
    ),
    "factorials": lambda rng, n: rng.choice((_nested("(", str(n), "!)", n % 4), rf"\binom{{{n**3}}}{{{n**2}}}")),
    "products": lambda rng, n: _sum_of(rng, n % 60, "", *_FACTORS),
    "sums": lambda rng, n: _sum_of(rng, n % 60, "+", *_TERMS),
    "fractions": lambda rng, n: _nested(rng.choice("1x") + r"+\frac{x}{", "2", "}", n % 150),
    "matrices": lambda rng, n: (
        r"\begin{pmatrix}"
        + r"\\".join(_sum_of(rng, n % 9 + 1, "&", "1", "x^2", r"\sqrt{K}", "x+y") for _ in range(n % 9 + 1))
        + r"\end{pmatrix}"
        + rng.choice(("", "^{2}", "^{50}", "^{-1}"))
    ),
    "sets": lambda rng, n: r"\{" + _sum_of(rng, n % 400, ",", "K", "x^K", *_TERMS, *_FACTORS) + r"\}",
    "unions": lambda rng, n: _sum_of(rng, n % 99, r"\cup", "(K,K.5)", "[K,K.9]"),
    "decimals": lambda rng, n: f"0.{'7' * n}{rng.choice(('', '^{5000}', 'x', '^{0.123}', '^{x}', 'e9999'))}",
    "unicode": lambda rng, n: rng.choice(("x\u00b2", "\u221a", "\u00bd", "\u0669", "\u2211")) * (n % 300),
    "operators": lambda rng, n: rng.choice(_OPERATORS).replace("N", str(n)),
    "letters": lambda rng, n: "".join(rng.choices("abcdfghxyz", k=n)),
    "brackets": lambda rng, n: _nested(
        *rng.choice((("(", "x", ")"), ("{", "1", "}"), ("[", "2", "]"), ("-", "1", ""))), n
    ),
}
"""By kind: an answer for a size from 2 to 2,000."""
HOSTILE_LABELS = ("42", r"\frac{3}{7}", "x^2+2x+1", r"\{1, 2, 3\}")
BESIDE_GOOD = (
    "(x+1)^{5000}",
    "(x+y+z)^{300}",
    _nested(r"\sin(", "x", ")", 9),
    _nested(r"\lfloor 1.5", "x", r"\rfloor", 9),
)


def timed_grade(response: str, label: Any) -> Grade:
    """Its cause is the processor time that the grade took."""
    start = time.process_time()
    try:
        score = math_grade(response, label).score
    except (MemoryError, RecursionError):
        score = 0.0
    return Grade(score, str(time.process_time() - start))


def cost_of_hostile_answers(seed: int, count: int = 1000) -> dict[str, Any]:
    """Shares within a second and a quarter of processor time, each answer against one of the labels."""
    rng = random.Random(seed)
    kinds = [list(HOSTILE)[at % len(HOSTILE)] for at in range(count)]
    answers = [HOSTILE[kind](rng, int(2 * 1000 ** rng.random())) for kind in kinds]
    rows = [(rf"\boxed{{{answer}}}", rng.choice(HOSTILE_LABELS)) for answer in answers]
    with GraderPool(f"{__file__}:timed_grade", GradingLimits(), 2) as pool, ThreadPoolExecutor(8) as threads:
        causes = [grade.cause for grade in threads.map(lambda row: pool.grade(*row), rows)]
    # One that is too costly has used up its two shares of the limit, which are a second together.
    seconds = [1.0 if cause == TOO_COSTLY else float(cause) if cause[0].isdigit() else 10.0 for cause in causes]
    slow = {kind: sum(s >= 1 for k, s in zip(kinds, seconds, strict=True) if k == kind) for kind in HOSTILE}
    return {
        "within_1_s": sum(s <= 1 for s in seconds) / count,
        "within_0.25_s": sum(s <= 0.25 for s in seconds) / count,
        "cut": {kind: number for kind, number in slow.items() if number},
    }


def good_beside_hostile() -> float:
    """Seconds that 1,000 good answers take beside four hostile ones, as a share of alone."""
    good = [(rf"\boxed{{\frac{{{i % 97}x+{i}}}{{{i % 89 + 2}}}}}", r"\frac{3x+1}{7}") for i in range(1000)]
    seconds: list[float] = []
    for hostile in ((), BESIDE_GOOD):
        with GraderPool(MATH, GradingLimits(), 2) as pool, ThreadPoolExecutor(12) as threads:
            list(threads.map(lambda row: pool.grade(*row), training_stream(0)[:WARM_UP]))
            start = time.perf_counter()
            waiting = [threads.submit(pool.grade, rf"\boxed{{{answer}}}", "42") for answer in hostile]
            list(threads.map(lambda row: pool.grade(*row), good))
            seconds.append(time.perf_counter() - start)
            for answer in waiting:
                answer.result()
    return seconds[1] / seconds[0]


def scores_per_s(stream: list[tuple[str, Any]], workers: int, grader: str = MATH) -> float:
    """After a short warm-up, in which graders and their parsers are loaded."""
    with GraderPool(grader, GradingLimits(), workers) as pool, ThreadPoolExecutor(2 * workers) as threads:
        list(threads.map(lambda row: pool.grade(*row), stream[: WARM_UP * workers]))
        start = time.perf_counter()
        grades = list(threads.map(lambda row: pool.grade(*row), stream))
        seconds = time.perf_counter() - start
    assert grader == THEIRS or all(grade.score is not None for grade in grades)
    assert grader != CODE or all(grade.score == 1.0 for grade in grades)
    return len(stream) / seconds


def programs_per_cpu_s(row: tuple[str, Any], count: int) -> float:
    """Verdicts per second of processor time of all processes that take part: other work on the machine matters less.

    Without bubblewrap, which does not pass on the time of what it runs.
    """
    with mock.patch.object(sandbox_template, "bubblewrap", lambda: None):
        code_answers.grade(*row)  # what is started only once
        sandbox_template.close_templates()
        spent = [_cpu_seconds()]
        for answers in (1, count + 1):
            grades = [code_answers.grade(*row) for _ in range(answers)]
            assert all(grade.score == 1.0 for grade in grades)
            sandbox_template.close_templates()  # the time of a process counts once it has ended
            spent.append(_cpu_seconds())
    return count / (spent[2] - spent[1] - (spent[1] - spent[0]))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def cases(*, busy: bool) -> dict[str, Callable[[int], float]]:
    """By name: scores per second, for a seed. `busy`: of the first third of each stream, and without programs."""

    def rate(stream: list[tuple[str, Any]], workers: int, grader: str = MATH) -> float:
        return scores_per_s(stream[: len(stream) // 3] if busy else stream, workers, grader)

    found: dict[str, Callable[[int], float]] = {PAIR: lambda seed: rate(training_stream(seed), 2)}
    for name, stream in STREAMS.items():
        found[name] = lambda seed, stream=stream: rate(stream(seed), 1)
        found[name + BESIDE] = lambda seed, stream=stream: rate(stream(seed), 1, THEIRS)
    for name, row in () if busy else PROGRAMS.items():
        count = 6 if "200" in name else 60
        found[name] = lambda seed, row=row, count=count: scores_per_s([row] * count, 1, CODE)
        found[name + PER_CPU_S] = lambda seed, row=row, count=count: programs_per_cpu_s(row, count)
    return found


BUSY = "beside other work, on the first third of each stream"


def kept(record: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run beside other work: ratios, and of earlier runs what is not of mathematics."""
    rates = {name: rate for name, rate in old["verdicts_per_s"].items() if name not in cases(busy=True)}
    return old | {"verdicts_per_s": rates, "ratios": record["ratios"], "ratios_measured": BUSY}


def tables(record: dict[str, Any]) -> str:
    """Those of docs/rewards.md."""
    rates = {name: statistics.median(values) for name, values in record["verdicts_per_s"].items()}

    def shown(name: str) -> str:
        return "\u2013" if name not in rates else f"{rates[name]:,.1f}" if rates[name] < 20 else f"{rates[name]:,.0f}"

    lines = ["| | scores per second | math-verify | ratio |", "|---|---|---|---|"]
    for name, text in TEXTS.items():
        ratio = f"{statistics.median(record['ratios'][name]):.1f}" if name in record["ratios"] else "\u2013"
        lines.append(f"| {text} | {shown(name)} | {shown(name + BESIDE)} | {ratio} |")
    lines += ["", "Programs, per second of processor time of all processes that take part:", ""]
    lines += ["| | three tests | 200 tests |", "|---|---|---|"]
    for text, three, many in PROGRAM_TEXTS:
        lines.append(f"| {text} | {shown(three + PER_CPU_S)} | {shown(many + PER_CPU_S)} |")
    return "\n".join(lines)


def write(record: dict[str, Any]) -> None:
    """The results, and the tables of the document."""
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{tables(record)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two turns; nothing is kept")
    parser.add_argument("--hostile", action="store_true", help="only what hostile answers cost; nothing is kept")
    parser.add_argument("--busy", action="store_true", help="mathematics only; its ratios are kept, in three turns")
    args = parser.parse_args()
    if args.hostile:
        beside = statistics.median(good_beside_hostile() for _ in range(3))
        print(json.dumps(cost_of_hostile_answers(0) | {"good_beside_hostile": beside}))
        return
    turns = 2 if args.quick else 3 if args.busy else 5
    record: dict[str, Any] = {"machine": machine(), "turns": turns}
    measured = cases(busy=args.busy)
    found: dict[str, list[float]] = {name: [] for name in measured}
    for seed in range(turns):
        for name, measure in measured.items():
            found[name].append(measure(seed))
            print(f"{name}: {found[name][-1]:.1f}", file=sys.stderr, flush=True)
    record["verdicts_per_s"] = found
    record["ratios"] = {
        name: [ours / theirs for ours, theirs in zip(found[name], found[name + BESIDE], strict=True)]
        for name in STREAMS
    }
    if not args.quick:
        write(kept(record, json.loads(RESULT.read_text())) if args.busy else record)
    print(json.dumps(record, indent=2))
    medians = {name: statistics.median(values) for name, values in found.items()}
    keys = {"math_verdicts_per_s": medians["training"], "programs_per_s": medians.get("programs of 3 tests")}
    ratios = {name: statistics.median(values) for name, values in record["ratios"].items()}
    print(json.dumps(keys | medians | {"ratios": ratios}))


if __name__ == "__main__":
    main()
