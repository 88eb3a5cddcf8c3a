"""Orderings that are published for language models, measured in the grid; PROTOCOL.md has the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from benchmarks.arena.folders import Result
from benchmarks.arena.grid import BUDGETS, STEPS, Cell, Trials, costs_by_world, result_at, tuned
from benchmarks.arena.sigmoid import Sigmoid, fitted
from benchmarks.arena.statistics import Interval, mean_interval
from benchmarks.arena.tasks import Floats

TASKS = ("ways", "ways-luck10", "known")
"""That resemble those of the sources."""

AGREE, DISAGREE, OPEN, NOT_RUN = "agree", "disagree", "open", "not run"

EARLY = 0.25


@dataclass(frozen=True, slots=True)
class Found:
    """`values`: what an ordering is measured as, in the published direction above 0, by world."""

    values: Sequence[Floats]

    @property
    def verdict(self) -> str:
        """Of several values all have to agree, and one that disagrees is enough to disagree."""
        bounds = [(i.low, i.high) for i in self.intervals if i.low is not None and i.high is not None]
        if len(bounds) < len(self.values):
            return OPEN
        if any(high < 0.0 for _, high in bounds):
            return DISAGREE
        return AGREE if all(low > 0.0 for low, _ in bounds) else OPEN

    @property
    def intervals(self) -> list[Interval]:
        return [mean_interval(values.tolist()) for values in self.values]


class Missing(LookupError):
    """A run that an ordering needs is not there."""


@dataclass(frozen=True, slots=True)
class View:
    """The runs of a grid on TASKS, worlds 0 to `seeds` - 1."""

    trials: Trials
    seeds: int

    def results(self, method: str, budget: int) -> list[Result]:
        """By task and world."""
        found = [result_at(self.trials, task, method, s, budget) for task in TASKS for s in range(self.seeds)]
        return [result for result in found if result is not None] if None not in found else _missing(method)

    def measure(self, method: str, budget: int, name: str) -> Floats:
        """Shape (tasks x worlds,)."""
        return np.array([result["measures"][str(budget)][name] for result in self.results(method, budget)])

    def gap(self, ours: str, theirs: str, budget: int, name: str = "right") -> Floats:
        return self.measure(ours, budget, name) - self.measure(theirs, budget, name)

    def early(self, method: str) -> Floats:
        """Right at a budget of EARLY."""
        curves = [(result["at"], result["accuracy"]) for result in self.results(method, BUDGETS[0])]
        return np.array([np.interp(EARLY, at, accuracy) for at, accuracy in curves])

    def at_equal_steps(self, ours: str, theirs: str, name: str = "right") -> Floats:
        """Difference of this measure after as many steps of as many prompts."""
        return self._after_steps(ours, name) - self._after_steps(theirs, name)

    def _after_steps(self, method: str, name: str) -> Floats:
        cells = [step_cell(self.trials, task, method, seed) for task in TASKS for seed in range(self.seeds)]
        found = [self.trials.by_cell[cell] for cell in cells if cell in self.trials.by_cell]
        if len(found) < len(cells):
            raise Missing(method)
        return np.array([result["measures"][str(STEPS)][name] for result in found])


def step_cells(trials: Trials, tasks: Sequence[str], methods: Sequence[str], seeds: int) -> list[Cell]:
    """World by world."""
    return [step_cell(trials, task, method, seed) for seed in range(seeds) for task in tasks for method in methods]


def step_cell(trials: Trials, task: str, method: str, seed: int) -> Cell:
    """At the rate of a budget of 4."""
    return Cell(task, method, tuned(trials, task, method, 4).rate, seed, 0, STEPS)


def _missing(method: str) -> list[Result]:
    raise Missing(method)


def _raft_first(view: View) -> list[Floats]:
    return [view.early("right-8/1") - view.early("grpo-8/1"), -view.gap("right-8/1", "grpo-8/1", 16)]


def _wrong_only(view: View) -> list[Floats]:
    ours = ("wrong-8/1", "grpo-8/1", 4)
    return [view.gap(*ours, "pass32"), view.gap(*ours) + 0.02]


def _chain(view: View, names: Sequence[str]) -> list[Floats]:
    return [view.at_equal_steps(ours, theirs) for ours, theirs in pairwise(names)]


def _hard_prompts(view: View) -> list[Floats]:
    pair = ("balance/1", "n4/1")
    return [view.at_equal_steps(*pair, "right_hard") - view.at_equal_steps(*pair, "right_rest")]


def _entropy_early(view: View) -> list[Floats]:
    """Shares of the first quarter of a budget of 4, above one half."""
    shares: list[list[float]] = []
    for result in view.results("grpo-8/1", 4):
        start, quarter, end = (result["measures"][at] for at in ("0", "1", "4"))
        shares.append([(quarter[of] - start[of]) / (end[of] - start[of]) - 0.5 for of in ("entropy", "right")])
    return list(np.array(shares).T)


def _best_n(view: View) -> list[Floats]:
    """Octaves by which the best n is larger at 16 than at 1."""
    octaves = (1, 2, 3, 4, 5)
    by_budget = [np.array([view.measure(f"n{2**k}/1", b, "right") for k in octaves]).argmax(axis=0) for b in (1, 16)]
    return [(by_budget[1] - by_budget[0]).astype(float)]


def _gvm(view: View) -> list[Floats]:
    for method in ("gvm/1", "right-8/1"):
        view.results(method, 4)
    by_task = [costs_by_world(view.trials, task, ("gvm/1", "right-8/1"), view.seeds, 4) for task in TASKS]
    return [np.concatenate([np.log(found["right-8/1"] / found["gvm/1"]) for found in by_task])]


def _pass_k_stays(view: View) -> list[Floats]:
    ends = view.results("grpo-8/1", 16)
    return [np.array([0.01 - (r["measures"]["16"]["pass32"] - r["measures"]["0"]["pass32"]) for r in ends])]


MAIN = ("n4/1", "n8/1", "grpo-8/1", "right-8/1", "n1/1", "balance/1", "est/1")


def _efficiency(view: View) -> list[Floats]:
    """By task: log F of the middles less that of the ends, F the variance of methods by that of their worlds."""
    by_method = {name: [_fit(result) for result in view.results(name, 16)] for name in MAIN}
    found: list[float] = []
    for task in range(len(TASKS)):
        worlds = slice(task * view.seeds, (task + 1) * view.seeds)
        fits = [by_method[name][worlds] for name in MAIN]
        middles = np.array([[math.log(fit.middle) for fit in of] for of in fits])
        ends = np.array([[fit.end for fit in of] for of in fits])
        found.append(math.log(_f_statistic(middles) / _f_statistic(ends)))
    return [np.array(found)]


def _fit(result: Result) -> Sigmoid:
    return fitted(result["at"], result["accuracy"])


def _f_statistic(values: Floats) -> float:
    """Of groups in rows; inf or nan where groups do not vary, which makes a verdict open."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(values.shape[1] * values.mean(axis=1).var(ddof=1) / values.var(axis=1, ddof=1).mean())


ORDERINGS: dict[int, tuple[str, Callable[[View], list[Floats]]]] = {
    1: ("RAFT first, GRPO later", _raft_first),
    2: ("right only loses pass@k", lambda v: [-v.gap("right-8/1", "n8/1", 4, "pass32")]),
    3: ("wrong only keeps up with GRPO over k", _wrong_only),
    4: ("negative feedback is needed", lambda v: [-v.gap("right-8/1", "n8/1", 16)]),
    5: ("with negatives better than rejection alone", lambda v: [-v.gap("right-8/1", "grpo-8/1", 4)]),
    6: ("`balance` > `pos` > GRPO n = 4", partial(_chain, names=("balance/1", "pos/1", "n4/1"))),
    7: ("n = 16 > 8 > 4", partial(_chain, names=("n16/1", "n8/1", "n4/1"))),
    8: ("`balance` gains more on hard prompts", _hard_prompts),
    9: ("one rollout with a baseline > GRPO", lambda v: [v.gap("n1/1", "grpo-8/1", 4)]),
    10: ("GVM faster than RAFT", _gvm),
    11: ("DAPO's refill helps over steps", lambda v: [v.at_equal_steps("dapo-8/1", "grpo-8/1")]),
    12: ("entropy falls early, with the gain", _entropy_early),
    13: ("pass@k does not rise over the start", _pass_k_stays),
    14: ("best n grows with compute", _best_n),
    15: ("efficiency differs more than the end", _efficiency),
}


AT_STEPS = ("balance/1", "pos/1", "n4/1", "n8/1", "n16/1", "dapo-8/1", "grpo-8/1")
"""Methods that are run at equal steps."""


def found(view: View) -> dict[int, Found | None]:
    """By number; None where a run is missing."""
    verdicts: dict[int, Found | None] = {}
    for number, (_, measure) in ORDERINGS.items():
        try:
            verdicts[number] = Found(measure(view))
        except LookupError:
            verdicts[number] = None
    return verdicts


def summary(verdicts: dict[int, Found | None]) -> dict[str, list[int]]:
    """Numbers of orderings by verdict."""
    of = {number: NOT_RUN if one is None else one.verdict for number, one in verdicts.items()}
    return {verdict: [n for n in of if of[n] == verdict] for verdict in (AGREE, DISAGREE, OPEN, NOT_RUN)}
