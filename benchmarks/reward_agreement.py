"""How often do `math` and plain math-verify agree with people on which answers are right, suite by suite?

    python benchmarks/reward_agreement.py [--sources FOLDER] [--show]

`--sources`: also the suites of other graders, see benchmarks/grader_suites.py. `--show` prints every case in which
`math` differs from the suite's author. The last line is one JSON object; with --sources, results go to
benchmarks/results/reward_agreement.json and the table of docs/rewards.md is written anew. `n` counts cases, `ours` and
`math_verify` are shares that agree; `false_accepts` count wrong answers that were called right, over all suites
together, equal cases once.
"""

from __future__ import annotations

import argparse
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grader_suites import Case, outside_suites, own_suites
from machine import machine

from openrlhf_ada.reward.grade import Grade
from openrlhf_ada.reward.pool import GraderPool, GradingLimits

RESULT = Path(__file__).parent / "results" / "reward_agreement.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "rewards.md"
BEGIN, END = "<!-- Written by benchmarks/reward_agreement.py. -->", "<!-- Until here. -->"
OURS = "openrlhf_ada.reward.mathematics:grade"
THEIRS = f"{__file__}:math_verify_grade"
LIMITS = GradingLimits(seconds=10.0)


def math_verify_grade(response: str, label: Any) -> Grade:
    """math-verify with its defaults; the label in a box, as its users write it, unless it is marked as a formula."""
    from math_verify import parse, verify

    logging.disable(logging.ERROR)
    answer = parse(response, parsing_timeout=0)
    golds = [parse(_marked(one), parsing_timeout=0) for one in (label if isinstance(label, list) else [label])]
    return Grade(float(any(verify(gold, answer, timeout_seconds=None) for gold in golds)))


def _marked(label: str) -> str:
    return label if any(mark in label for mark in ("$", "\\boxed", "\\(", "\\[")) else rf"\boxed{{{label}}}"


def accepted(grader: str, cases: list[Case]) -> dict[Case, bool]:
    """What has no score is not accepted."""
    with GraderPool(grader, LIMITS, 2) as pool, ThreadPoolExecutor(4) as threads:
        grades = threads.map(lambda case: pool.grade(case.response, case.label), cases)
        return {case: grade.score == 1.0 for case, grade in zip(cases, grades, strict=True)}


def agreement(cases: list[Case], verdicts: dict[Case, bool]) -> float:
    return round(sum(verdicts[case] == case.right for case in cases) / len(cases), 4)


def false_accepts(cases: list[Case], verdicts: dict[Case, bool]) -> int:
    return sum(verdicts[case] and not case.right for case in cases)


def show(name: str, cases: list[Case], ours: dict[Case, bool], theirs: dict[Case, bool]) -> None:
    for case in cases:
        if ours[case] != case.right:
            also = "" if theirs[case] != case.right else " (math-verify agrees)"
            print(f"{name}: {'rejected' if case.right else 'ACCEPTED'}{also}", repr(case.label), repr(case.response))


def table(record: dict[str, Any]) -> str:
    """That of docs/rewards.md, with the files of one project in one row."""
    projects: dict[str, list[dict[str, Any]]] = {}
    for name, suite in record["suites"].items():
        projects.setdefault(name.partition("/")[0], []).append(suite)
    lines = ["| Suite | cases | math-verify alone | `math` |", "|---|---|---|---|"]
    for name, suites in (*projects.items(), ("all, equal cases once", [record])):
        cases = sum(suite["n"] for suite in suites)
        shares = [sum(suite[key] * suite["n"] for suite in suites) / cases for key in ("math_verify", "ours")]
        lines.append(f"| {name} | {cases:,} | {shares[0]:.1%} | {shares[1]:.1%} |")
    lines.append(f"| wrong answers accepted | | {record['false_accepts_math_verify']} | {record['false_accepts']} |")
    return "\n".join(lines)


def write(record: dict[str, Any]) -> None:
    """The results, and the table of the document."""
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=Path, help="folder with the test files of other graders")
    parser.add_argument("--show", action="store_true", help="print the cases that differ")
    args = parser.parse_args()
    suites = own_suites() | (outside_suites(args.sources) if args.sources else {})
    union = list(dict.fromkeys(case for cases in suites.values() for case in cases))
    ours, theirs = accepted(OURS, union), accepted(THEIRS, union)
    record: dict[str, Any] = {
        "suites": {
            name: {"n": len(cases), "ours": agreement(cases, ours), "math_verify": agreement(cases, theirs)}
            for name, cases in suites.items()
        },
        "n": len(union),
        "ours": agreement(union, ours),
        "math_verify": agreement(union, theirs),
        "false_accepts": false_accepts(union, ours),
        "false_accepts_math_verify": false_accepts(union, theirs),
    }
    if args.show:
        for name, cases in suites.items():
            show(name, cases, ours, theirs)
    if args.sources:
        write({"machine": machine(), **record})
    print(json.dumps(record))


if __name__ == "__main__":
    main()
