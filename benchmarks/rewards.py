"""How fast answers are graded, in the process pool that training uses, by us and by plain math-verify in turns.

A stream as in training: every problem gets 8 answers, right and wrong ones, each at the end of a long chain of
thought; problems and answers are those of tests/data. `distinct`: no answer comes twice. math-verify (with its
defaults, as in reward_agreement.py) grades the same stream in the same pool, right after us; `ratios` are of such
neighbours.

    python benchmarks/rewards.py [--quick]     last line: one JSON object; results in benchmarks/results/rewards.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from machine import machine

from openrlhf_ada.reward import code_answers, sandbox_template
from openrlhf_ada.reward.pool import GraderPool, GradingLimits

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data"
THOUGHT = "We check the remaining case, which gives $x^2 + 3x - 4 = 0$, so that one of the roots is 1. " * 40
ANSWERS = 8
WARM_UP = 20

THEIRS = f"{HERE / 'reward_agreement.py'}:math_verify_grade"
BESIDE = ", math-verify"
MATH = "openrlhf_ada.reward.math_answers:grade"
CODE = "openrlhf_ada.reward.code_answers:grade"
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    turns = 2 if args.quick else 5
    record: dict[str, Any] = {"machine": machine(), "turns": turns}
    streams = {
        "training": training_stream,
        "distinct": distinct_stream,
        "integers": lambda seed: [(f"{THOUGHT}\\boxed{{{i}}}", str(i % 9)) for i in range(2000)],
    }
    cases = {"training, 2 processes": lambda seed: scores_per_s(training_stream(seed), 2)}
    for name, stream in streams.items():
        cases[name] = lambda seed, stream=stream: scores_per_s(stream(seed), 1)
        cases[name + BESIDE] = lambda seed, stream=stream: scores_per_s(stream(seed), 1, THEIRS)
    for name, row in PROGRAMS.items():
        count = 6 if "200" in name else 60
        cases[name] = lambda seed, row=row, count=count: scores_per_s([row] * count, 1, CODE)
        cases[f"{name}, per second of processor time"] = lambda seed, row=row, count=count: programs_per_cpu_s(
            row, count
        )
    found: dict[str, list[float]] = {name: [] for name in cases}
    for seed in range(turns):
        for name, measure in cases.items():
            found[name].append(measure(seed))
    record["verdicts_per_s"] = found
    record["ratios"] = {
        name: [ours / theirs for ours, theirs in zip(found[name], found[name + BESIDE], strict=True)]
        for name in streams
    }
    medians = {name: statistics.median(values) for name, values in found.items()}
    if not args.quick:
        (HERE / "results" / "rewards.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    keys = {"math_verdicts_per_s": medians["training"], "programs_per_s": medians["programs of 3 tests"]}
    ratios = {name: statistics.median(values) for name, values in record["ratios"].items()}
    print(json.dumps(keys | medians | {"ratios": ratios}))


if __name__ == "__main__":
    main()
