"""What the trials of the grid say. What has not been run is not shown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.arena import grid, orderings
from benchmarks.arena.markdown import markdown
from benchmarks.arena.sigmoid import fitted
from benchmarks.arena.statistics import SEEDS_FOR_INTERVAL, mean_interval
from benchmarks.arena.tasks import TASKS, Floats

UNIFORM_N = ("n2", "n4", "n8", "n16", "n32")

SHARES = (0.8, 0.9, 0.95)

EQUAL = 0.02
"""Curves that differ by less have not crossed."""


@dataclass(frozen=True)
class Compared:
    """The methods that are complete on a task up to a budget, on `seeds` worlds."""

    trials: grid.Trials
    task: str
    budget: int

    @cached_property
    def seeds(self) -> int:
        """Worlds, from 0 on, on which all uniform sampling that bounds pass@8 was run."""
        return min(map(self._worlds, grid.UNIFORM))

    @cached_property
    def methods(self) -> list[str]:
        known = dict.fromkeys(cell.method for cell in sorted(self.trials.by_cell) if cell.task == self.task)
        return [name for name in known if self.seeds and self._worlds(name) >= self.seeds]

    def _worlds(self, method: str) -> int:
        try:
            found = 0
            while grid.result_at(self.trials, self.task, method, found, self.budget) is not None:
                found += 1
            return found
        except LookupError:
            return 0

    def measure(self, method: str, name: str) -> Floats:
        """By world."""
        return np.array([result["measures"][str(self.budget)][name] for result in self.results(method)])

    def results(self, method: str) -> list[grid.Result]:
        found = (grid.result_at(self.trials, self.task, method, seed, self.budget) for seed in range(self.seeds))
        return [result for result in found if result is not None]

    def curve(self, method: str) -> Floats:
        """Mean share of right answers at each point up to the budget."""
        curves = [np.array(r["accuracy"])[np.array(r["at"]) <= self.budget] for r in self.results(method)]
        return np.mean(curves, axis=0)

    def costs(self, share: float) -> dict[str, Floats]:
        """To this share of the best method's gain, by world."""
        return grid.costs_by_world(self.trials, self.task, self.methods, self.seeds, self.budget, share)

    @cached_property
    def beside_best(self) -> dict[str, float]:
        """Cost to 90 % of the best gain over that of the cheapest method: geometric means over worlds."""
        logs = {name: float(np.log(values).mean()) for name, values in self.costs(0.9).items()}
        return {name: math.exp(value - min(logs.values())) for name, value in logs.items()}

    @cached_property
    def missed(self) -> dict[str, int]:
        """Worlds on which 90 % of the best gain was not reached, whose cost is the budget."""
        return {name: int((values >= self.budget).sum()) for name, values in self.costs(0.9).items()}

    @cached_property
    def beside_uniform(self) -> dict[str, float]:
        """The same over the cheapest uniform sampling of two rollouts or more."""
        uniform = [name for name in self.methods if name.partition("/")[0] in UNIFORM_N]
        cheapest = min(self.beside_best[name] for name in uniform)
        return {name: value / cheapest for name, value in self.beside_best.items()}

    @cached_property
    def behind(self) -> dict[str, float]:
        """Right answers of the most accurate method less those of each, mean over worlds."""
        right = {name: float(self.measure(name, "right").mean()) for name in self.methods}
        return {name: max(right.values()) - value for name, value in right.items()}

    @cached_property
    def pass8_lead(self) -> dict[str, float]:
        """Over the better of grid.UNIFORM, mean over worlds."""
        best = max(float(self.measure(name, "pass8").mean()) for name in grid.UNIFORM)
        return {name: float(self.measure(name, "pass8").mean()) - best for name in self.methods}


def compared(trials: grid.Trials, budget: int) -> list[Compared]:
    """By task, in the order of TASKS; those with enough worlds for an interval."""
    found = (Compared(trials, task, budget) for task in TASKS)
    return [one for one in found if one.seeds >= SEEDS_FOR_INTERVAL]


# -- the page ---------------------------------------------------------------------------------------------------------


def render(trials: grid.Trials) -> str:
    sections = [
        "# Methods on tasks with luck and many right ways",
        "`make arena-docs` writes this page from `results/grid.jsonl.gz`. What is compared, and how: [the "
        "protocol](PROTOCOL.md). NAME/1 and NAME/2: one and two epochs over a step. All measures of every "
        "method: `results/grid.csv`. Runs that are not complete are not here.",
    ]
    for budget in grid.BUDGETS:
        if found := compared(trials, budget):
            worlds = ", ".join(f"{one.seeds} of `{one.task}`" for one in found)
            of = f"Methods that were run on all these tasks; worlds: {worlds}."
            sections += [f"## A budget of {budget}", *(_at_summed(found, of) if budget == SUMMED else _at(found, of))]
    sections += ["## The published orderings", *_orderings(trials), *_crossings(trials), *_fits(trials)]
    return "\n\n".join(sections) + "\n"


def _at(found: Sequence[Compared], of: str) -> list[str]:
    return [
        "Right / pass@8, in %; by how many points a method is *behind* the most accurate one, at its worst; by how "
        f"many its *pass@8* is above the better of `n4/1` and `n8/1`, at its worst. {of}",
        _accuracy(found),
    ]


def _at_summed(found: Sequence[Compared], of: str) -> list[str]:
    return [
        "[Accuracies](../../docs/arena.md#accuracy-for-the-same-time). Below: cost to 90 % of the best gain, beside "
        "the cheapest method of the task; at its worst; the median beside the cheapest uniform sampling of several "
        f"rollouts. +: not reached on some worlds, where the budget counts. {of}",
        _costs(found),
    ]


SUMMED = 4
"""The budget of docs/arena.md's table."""


PAIRS = (
    ("n8-wrong-once/2", "n8/2"),
    ("n1-wrong-once/2", "n1/2"),
    ("lambda-1-wrong-once/2", "lambda-1/2"),
    ("n1/1", "n8/1"),
    ("lambda-1/1", "n1/1"),
    ("right-1/2", "lambda-1-wrong-once/2"),
    ("balance/1", "n8/1"),
    ("n8-wrong-once/2", "n8/1"),
    ("lambda-1-wrong-once/2", "n8/1"),
)
"""Methods that differ by one thing, and what the two that we name are beside uniform sampling."""


def summary(trials: grid.Trials) -> str:
    """Accuracies of the methods that were run on every task, and what differs between pairs of them."""
    found = compared(trials, SUMMED)
    body = [
        [f"`{ours}` - `{theirs}`", *(_gap([one], ours, theirs) for one in found), _gap(found, ours, theirs)]
        for ours, theirs in PAIRS
        if any({ours, theirs} <= {*one.methods} for one in found)
    ]
    pairs = markdown(["difference", *(f"`{one.task}`" for one in found), "all"], body)
    return (
        f"{_accuracy(found)}\n\nDifferences of both, bold where the 95 % interval over worlds leaves out 0:\n\n{pairs}"
    )


def _gap(found: Sequence[Compared], ours: str, theirs: str) -> str:
    """In points, of right and of pass@8, paired by world; on the tasks where both were run."""
    found, texts = [one for one in found if {ours, theirs} <= {*one.methods}], list[str]()
    for of in ("right", "pass8") if found else ():
        gaps = np.concatenate([one.measure(ours, of) - one.measure(theirs, of) for one in found])
        interval = mean_interval((100 * gaps).tolist())
        sure = interval.low is not None and interval.high is not None and interval.low * interval.high > 0
        texts.append(f"**{interval.mean:+.1f}**" if sure else f"{interval.mean:+.1f}")
    return " / ".join(texts)


def _everywhere(found: Sequence[Compared]) -> list[str]:
    """Methods of every task, the least behind at its worst first."""
    names = [name for name in found[0].methods if all(name in one.methods for one in found)]
    return sorted(names, key=lambda name: max(one.behind[name] for one in found))


def _by_task(
    found: Sequence[Compared], cell: Callable[[Compared, str], str], last: Mapping[str, Callable[[str], str]]
) -> str:
    """A row for each method, a column for each task, and the `last` ones, by head."""
    body = [
        [f"`{name}`", *(cell(one, name) for one in found), *(of(name) for of in last.values())]
        for name in _everywhere(found)
    ]
    return markdown(["method", *(f"`{one.task}`" for one in found), *last], body)


def _accuracy(found: Sequence[Compared]) -> str:
    return _by_task(
        found,
        lambda one, name: " / ".join(f"{100 * one.measure(name, of).mean():.1f}" for of in ("right", "pass8")),
        {
            "behind": lambda name: f"{100 * max(one.behind[name] for one in found):.1f}",
            "pass@8": lambda name: f"{100 * min(one.pass8_lead[name] for one in found):+.1f}",
        },
    )


def _costs(found: Sequence[Compared]) -> str:
    return _by_task(
        found,
        lambda one, name: f"{one.beside_best[name]:.2f}{'+' if one.missed[name] else ''}",
        {
            "worst": lambda name: f"{max(one.beside_best[name] for one in found):.2f}",
            "of uniform": lambda name: f"{np.median([one.beside_uniform[name] for one in found]):.2f}",
        },
    )


def _orderings(trials: grid.Trials) -> list[str]:
    seeds = min(Compared(trials, task, SUMMED).seeds for task in orderings.TASKS)
    if seeds < SEEDS_FOR_INTERVAL:
        return ["Not run yet."]
    verdicts = orderings.found(orderings.View(trials, seeds))
    body = [
        [str(number), orderings.ORDERINGS[number][0], *_verdict(verdicts[number])] for number in orderings.ORDERINGS
    ]
    tasks = ", ".join(f"`{name}`" for name in orderings.TASKS)
    return [
        f"On {tasks}, {seeds} worlds each; positive is the published direction.",
        markdown(["#", "ordering", "arena", "measured"], body),
    ]


def _verdict(one: orderings.Found | None) -> list[str]:
    if one is None:
        return [orderings.NOT_RUN, ""]
    return [one.verdict, "; ".join(interval.text("+.3f") for interval in one.intervals)]


def _crossings(trials: grid.Trials) -> list[str]:
    """Who is ahead of the method that is the most accurate at the end, and where."""
    lines: list[str] = []
    for task in TASKS:
        found = [Compared(trials, task, budget) for budget in grid.BUDGETS]
        longest = next((one for one in reversed(found) if len(one.methods) > 1), None)
        if longest is not None:
            lines += [f"- `{task}`: {text}" for text in _crossings_of(longest)]
    return ["## Where curves cross", *(["\n".join(lines)] if lines else ["Nowhere, by more than 2 points."])]


def _crossings_of(one: Compared) -> list[str]:
    curves = {name: one.curve(name) for name in one.methods}
    at, best = one.results(one.methods[0])[0]["at"], min(one.behind, key=lambda name: one.behind[name])
    texts: list[str] = []
    for name, curve in curves.items():
        behind, ahead = np.flatnonzero(curves[best] < curve - EQUAL), np.flatnonzero(curves[best] > curve + EQUAL)
        if len(behind) and len(ahead) and ahead[-1] > behind[0]:
            texts.append(f"`{name}` leads at {at[int(behind[0])]:.2g}, `{best}` at {at[int(ahead[-1])]:.2g}")
    return texts


def _fits(trials: grid.Trials) -> list[str]:
    """How well a sigmoid through the first half of a run says its end."""
    errors: list[float] = []
    for task in TASKS:
        one = Compared(trials, task, 4)
        for result in (result for name in one.methods for result in one.results(name)):
            half = sum(at <= 2.0 for at in result["at"])
            if half >= 5:
                known = fitted(result["at"][:half], result["accuracy"][:half])
                errors.append(abs(float(known.at(4.0)) - result["measures"]["4"]["right"]))
    if not errors:
        return []
    return [
        "## What a fit says",
        f"A sigmoid through the first half of a budget of 4 misses the end by {100 * float(np.median(errors)):.1f} "
        f"points in the median, and by {100 * float(np.quantile(errors, 0.9)):.1f} at the ninth decile "
        f"({len(errors)} runs).",
    ]


# -- all measures -----------------------------------------------------------------------------------------------------


def details(trials: grid.Trials) -> str:
    """CSV: means over worlds, half-widths of 95 % intervals of right and pass@8, costs to shares of the best gain."""
    text = io.StringIO()
    measures = ("right", "working", "luck", "pass8", "pass32", "entropy", "tokens", "right_hard", "right_rest")
    costs, shares = ("updates", "rollouts", "tokens", "seconds-7b"), [f"cost to {share:.0%}" for share in SHARES]
    rows = csv.writer(text, lineterminator="\n")
    spent = [f"{name} spent" for name in costs]
    rows.writerow(
        [
            "task",
            "budget",
            "method",
            "rate",
            "keeps pass8",
            "worlds",
            *measures,
            "right +-",
            "pass8 +-",
            *spent,
            *shares,
        ]
    )
    for budget in grid.BUDGETS:
        for one in compared(trials, budget):
            to_share = [one.costs(share) for share in SHARES]
            for name in one.methods:
                setting = grid.tuned(trials, one.task, name, budget)
                values = [f"{one.measure(name, of).mean():.4f}" for of in measures]
                halves = [_half_width(one.measure(name, of)) for of in ("right", "pass8")]
                used = [f"{np.mean([_spent(r, budget, cost) for r in one.results(name)]):.0f}" for cost in costs]
                reached = [f"{math.exp(float(np.log(found[name]).mean())):.3f}" for found in to_share]
                head = [one.task, budget, name, setting.rate, int(setting.keeps_pass8), one.seeds]
                rows.writerow([*head, *values, *halves, *used, *reached])
    return text.getvalue()


def _half_width(values: Floats) -> str:
    interval = mean_interval(values.tolist())
    return "" if interval.high is None else f"{interval.high - interval.mean:.4f}"


def _spent(result: grid.Result, budget: int, cost: str) -> float:
    at = [abs(point - budget) < 1e-6 for point in result["at"]].index(True)
    return float(result["spent"][cost][at])
