"""How often the 95 % intervals of `openrlhf-ada eval` hold the true value, on simulated problems; and the old way, a
percentile bootstrap over problems.

Problems have a right answer and three wrong ones, with chances from a Dirichlet distribution. The truth is the mean
over 200,000 problems. Pairs: all answers are the same but for a share of the problems. There the second model has
rates drawn anew (the true difference is 0), or is always right (it is 2/3 of the share).

    python benchmarks/eval_intervals.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from numpy.typing import NDArray

from openrlhf_ada.eval.intervals import score_interval
from openrlhf_ada.eval.measures import Answered, difference, per_problem

HERE = Path(__file__).parent
HARDNESS = {"middling": (1.0, 0.7, 0.5, 0.3), "hard": (0.2, 0.8, 0.6, 0.4), "easy": (4.0, 0.3, 0.2, 0.1)}
"""Parameters of the Dirichlet distribution; the first answer is right."""

PROBLEMS = (5, 10, 30, 100)
N, K = 8, 4
DIFFERING = (0.0, 0.002, 0.01, 0.05, 1.0)

Floats = NDArray[np.float64]


def answers(rng: np.random.Generator, rates: Floats, n: int) -> NDArray[np.int64]:
    """Of shape (P, n): which of the four answers."""
    return (rng.random((len(rates), n, 1)) > rates.cumsum(axis=1)[:, None, :-1]).sum(axis=2)


def values(drawn: NDArray[np.int64]) -> dict[str, Floats]:
    n = drawn.shape[1]
    found = [
        Answered(list(r == 0), [1] * n, [False] * n, list(r == 0), str(row), [f"a{a}" for a in r])
        for row, r in enumerate(drawn)
    ]
    table = per_problem(found, n, [K])
    return {name: table[name] for name in (f"avg@{n}", f"pass@{K}", f"maj@{N}")}


def truths(alpha: tuple[float, ...]) -> dict[str, float]:
    rng = np.random.default_rng(99)
    drawn = answers(rng, rng.dirichlet(alpha, 200_000), N)
    counts = np.stack([(drawn == a).sum(axis=1) for a in range(4)], axis=1)
    winners = counts == counts.max(axis=1, keepdims=True)
    return {
        f"avg@{N}": float(alpha[0] / sum(alpha)),
        f"pass@{K}": float((drawn[:, :K] == 0).any(axis=1).mean()),
        f"maj@{N}": float((winners[:, 0] / winners.sum(axis=1)).mean()),
    }


def coverage(times: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for hardness, alpha in HARDNESS.items():
        truth = truths(alpha)
        for problems in PROBLEMS:
            rng = np.random.default_rng(problems)
            held = {name: np.zeros(4) for name in truth}
            for _ in range(times):
                for name, drawn in values(answers(rng, rng.dirichlet(alpha, problems), N)).items():
                    held[name] += both(drawn, truth[name], lambda v: score_interval(v))
            rows += [
                {"hardness": hardness, "problems": problems, "measure": name} | shares(held[name], times)
                for name in held
            ]
            print(*(json.dumps(row) for row in rows[-3:]), sep="\n")
    return rows


def pairs(times: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for problems, share, n, gains in itertools.product((30, 500), DIFFERING, (1, 8), (False, True)):
        rng = np.random.default_rng(problems)
        held, truth = np.zeros(4), share * 2 / 3 if gains else 0.0
        for _ in range(times):
            first = rng.binomial(n, rng.beta(1, 2, problems)) / n
            there = np.ones(problems) if gains else rng.binomial(n, rng.beta(1, 2, problems)) / n
            other = np.where(rng.random(problems) < share, there, first)
            held += both(other - first, truth, lambda v: score_interval(v, -1.0, 1.0))
        case = {"problems": problems, "differing": share, "n": n, "gains": gains}
        rows.append(case | shares(held, times))
        print(json.dumps(rows[-1]))
    return rows


def both(drawn: Floats, truth: float, score: Callable[[Floats], tuple[float, float]]) -> Floats:
    """Held and width of the score interval, held and width of the bootstrap."""
    found: list[float] = []
    for low, high in (score(drawn), bootstrap_interval(drawn)):
        found += [float(low - 1e-9 <= truth <= high + 1e-9), high - low]
    return np.array(found)


def bootstrap_interval(values: Floats) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean."""
    picks = np.random.default_rng(0).integers(0, len(values), size=(2000, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def shares(held: Floats, times: int) -> dict[str, float]:
    names = ("score", "score_width", "bootstrap", "bootstrap_width")
    return {name: round(float(value), 4) for name, value in zip(names, held / times, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60 times instead of 400; the file is not written")
    quick = parser.parse_args().quick
    times = 60 if quick else 400
    of_means, of_pairs = coverage(times), pairs(times)
    zero = difference(np.zeros(500), np.zeros(500))
    summary = {
        "times": times,
        "score_least": min(row["score"] for row in of_means),
        "score_mean": round(float(np.mean([row["score"] for row in of_means])), 4),
        "bootstrap_least": min(row["bootstrap"] for row in of_means),
        "bootstrap_mean": round(float(np.mean([row["bootstrap"] for row in of_means])), 4),
        "pairs_score_least": min(row["score"] for row in of_pairs),
        "pairs_bootstrap_least": min(row["bootstrap"] for row in of_pairs),
        "itself_500_points": round(100 * zero.high, 2),
    }
    if not quick:
        content = {"means": of_means, "pairs": of_pairs, "summary": summary, "machine": machine()}
        (HERE / "results" / "eval_intervals.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
