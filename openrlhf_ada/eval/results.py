"""Results of one or several models on several benchmarks, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from openrlhf_ada.eval.measures import Answered, Estimate, Floats, difference, estimate, per_problem, pooled

AVERAGE = "average"
"""All benchmarks together, weighted by their numbers of problems, as in the published tables."""

NO_SHARES = ("tokens", "surprise")


@dataclass
class ModelResults:
    """`values`: by benchmark and measure, per problem (see `measures.per_problem`); `problems`: their ids, in order;
    `no_score`: answers without one, by benchmark. They are in no figure."""

    model: str
    values: dict[str, dict[str, Floats]] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    no_score: dict[str, int] = field(default_factory=dict)

    def add(self, benchmark: str, answered: Sequence[Answered], n: int, ks: Sequence[int], no_score: int) -> None:
        self.values[benchmark] = per_problem(answered, n, ks)
        self.problems[benchmark] = [problem.problem for problem in answered]
        self.no_score[benchmark] = no_score

    def tables(self) -> dict[str, dict[str, Floats]]:
        """By benchmark; with more than one also their average."""
        together = {AVERAGE: pooled(self.values)} if len(self.values) > 1 else {}
        return self.values | together

    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Measures that no problem has are left out."""
        return {
            benchmark: {
                name: estimate(values, share=name not in NO_SHARES)
                for name, values in table.items()
                if not np.isnan(values).all()
            }
            for benchmark, table in self.tables().items()
        }


def ks_up_to(n: int) -> list[int]:
    """1, 2, 4, ... and n."""
    return sorted({1 << power for power in range(int(math.log2(n)) + 1)} | {n})


def differences(first: ModelResults, other: ModelResults) -> dict[str, Estimate]:
    """By benchmark: avg@n of `other` minus that of `first`, over the problems that both have answers to."""
    found: dict[str, Estimate] = {}
    gains: list[Floats] = []
    for benchmark in first.values:
        name = avg_name(first.values[benchmark])
        ours = dict(zip(first.problems[benchmark], first.values[benchmark][name], strict=True))
        theirs = dict(
            zip(other.problems[benchmark], other.values[benchmark][avg_name(other.values[benchmark])], strict=True)
        )
        shared = [problem for problem in ours if problem in theirs]
        if shared:
            a, b = (np.array([table[problem] for problem in shared]) for table in (ours, theirs))
            found[benchmark] = difference(b, a)
            gains.append(b - a)
    if len(gains) > 1:
        together = np.concatenate(gains)
        found[AVERAGE] = difference(together, np.zeros_like(together))
    return found


def avg_name(table: Mapping[str, Any]) -> str:
    """ "avg@n" with the table's own n."""
    return next(name for name in table if name.startswith("avg@"))


def as_json(results: Sequence[ModelResults], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was estimated, with the settings it was sampled with."""
    models: list[dict[str, Any]] = []
    for result in results:
        figures = {
            benchmark: {name: asdict(value) for name, value in table.items()}
            for benchmark, table in result.estimates().items()
        }
        models.append({"model": result.model, "figures": figures, "no_score": result.no_score})
        if result is not results[0]:
            models[-1]["minus_first"] = {name: asdict(v) for name, v in differences(results[0], result).items()}
    return {"settings": dict(settings), "models": models}


def table_rows(results: Sequence[ModelResults], n: int, k: int, group: int) -> list[list[str]]:
    """Header and rows of the table that is shown: of each benchmark each model. `k`: of pass@k and maj@k; `group`: of
    all-equal groups."""
    header = ["benchmark", "model", "problems", f"avg@{n}", f"pass@{k}", f"maj@{k}", f"equal@{group}", "tokens"]
    rows = [[*header, "cut off", "entropy", "no score"]]
    for benchmark in results[0].tables():
        for result in results:
            table = result.estimates()[benchmark]
            average = table[avg_name(table)]
            rows.append(
                [
                    benchmark,
                    result.model,
                    str(average.num_problems),
                    format_estimate(average),
                    *(format_share(table.get(name)) for name in (f"pass@{k}", f"maj@{k}", f"all_equal@{group}")),
                    f"{table['tokens'].mean:.0f}",
                    format_share(table["truncated"]),
                    f"{table['surprise'].mean:.2f}" if "surprise" in table else "-",
                    str(sum(result.no_score.values()) if benchmark == AVERAGE else result.no_score[benchmark]),
                ]
            )
    return rows


def format_estimate(value: Estimate) -> str:
    return f"{100 * value.mean:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def format_share(value: Estimate | None) -> str:
    return "-" if value is None else f"{100 * value.mean:.1f}"


def difference_lines(results: Sequence[ModelResults]) -> list[str]:
    """One line per model and benchmark, against the first model."""
    return [
        f"{benchmark}: {result.model} - {results[0].model} = {100 * value.mean:+.1f} points "
        f"[{100 * value.low:+.1f}, {100 * value.high:+.1f}]"
        for result in results[1:]
        for benchmark, value in differences(results[0], result).items()
    ]
