"""Did adaptive sampling pay? Groups with signal, beside those of uniform sampling at equal rollouts.

Uniform sampling is not run: what it would have had is read from the same pools. "The first m samples of a prompt show
two outcomes" needs m samples that nobody selected. Samples have an index before they have a score, and pools that show
one outcome only usually go on to the cap. So the first m samples of every pool say what uniform sampling with m would
have seen: directly where a pool has m samples, and also where it ended earlier with two outcomes. A pool that ended
earlier with one outcome leaves it open; from its size on nothing is said. There is no model in this, and no stopping
bias. Pass rates from whole pools (K / N) would have one: `tests/unit/test_reporting_payoff.py` shows both.

Intervals: percentile bootstrap over prompts, all visits of a prompt together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.reporting.run_record import Run, total
from openrlhf_ada.reporting.visits import Visit

Floats = NDArray[np.float64]

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform sampling at the rollouts of the run: `per_prompt` for each of so many prompts.

    `share`: of prompts whose samples show two outcomes. `groups`: so many such prompts, from all rollouts. `cost`:
    rollouts per group with signal, None if there is none. `ratio`: groups with signal of the run over these.
    """

    per_prompt: float
    prompts: float
    share: Estimate
    groups: Estimate
    cost: float | None
    ratio: Estimate | None


@dataclass(frozen=True, slots=True)
class Payoff:
    """What a run paid, and got.

    `groups`: trained groups whose pool shows two outcomes. `rollouts`: all that were drawn, aborted ones included.
    `one_sided_visits`, `one_sided_rollouts`: pools whose scores are all equal. `more_prompts`: uniform sampling with n
    each, on as many prompts as the rollouts allow. `same_prompts`: as many each as the run drew per prompt. None where
    the pools leave it open. `curve`: uniform sampling with 2, 3, ... each, as far as the pools tell.
    """

    size: int
    visits: int
    rollouts: int
    groups: int
    cost: Estimate | None
    share: Estimate
    one_sided_visits: int
    one_sided_rollouts: int
    more_prompts: Uniform | None
    same_prompts: Uniform | None
    curve: tuple[Uniform, ...]

    @property
    def per_prompt(self) -> float:
        """Rollouts per visit of a prompt."""
        return self.rollouts / self.visits


def payoff(run: Run, visits: Sequence[Visit]) -> Payoff | None:
    """The figures of a run; None where there is nothing to compare: mode off, no pools, or one sample per prompt."""
    size = run.flag("rollout.n_samples_per_prompt")
    if not visits or not isinstance(size, int) or size < 2:
        return None
    sums = _PromptSums(visits, drawn=total(run.steps, "ada/drawn") or 0)
    largest, per_prompt = sums.largest_known(), sums.rollouts / len(visits)
    one_sided = [visit.drawn for visit in visits if not visit.shows_two_outcomes]
    return Payoff(
        size=size,
        visits=len(visits),
        rollouts=round(sums.rollouts),
        groups=round(sums.totals[1]),
        cost=sums.cost(),
        share=sums.share(),
        one_sided_visits=len(one_sided),
        one_sided_rollouts=sum(one_sided),
        more_prompts=sums.uniform(size) if size <= largest else None,
        same_prompts=sums.uniform(per_prompt) if per_prompt <= largest else None,
        curve=tuple(sums.uniform(m) for m in range(2, largest + 1)),
    )


class _PromptSums:
    """Sums by prompt, and the same sums for every resample of the prompts.

    A row of `by_prompt` is (visits, groups with signal, finished rollouts, trained visits) of one prompt; `weights`
    has shape (RESAMPLES, prompts).
    """

    def __init__(self, visits: Sequence[Visit], drawn: float) -> None:
        names = {name: number for number, name in enumerate(dict.fromkeys(visit.prompt_id for visit in visits))}
        self._visits = visits
        self._prompt = np.array([names[visit.prompt_id] for visit in visits])
        self._mixed_from = np.array([visit.mixed_from or np.inf for visit in visits])
        signal = [visit.is_trained and visit.shows_two_outcomes for visit in visits]
        columns = (np.ones(len(visits)), signal, [v.drawn for v in visits], [v.is_trained for v in visits])
        self.by_prompt = np.stack([self._per_prompt(np.asarray(c, dtype=float)) for c in columns], axis=1)
        self.totals = self.by_prompt.sum(axis=0)
        # Aborted rollouts are of no pool: every finished one bears its part of them.
        self._overhead = max(drawn / self.totals[2], 1.0)
        self._picks = np.random.default_rng(0).multinomial(len(names), np.ones(len(names)) / len(names), RESAMPLES)
        self._resampled = self._picks @ self.by_prompt

    @property
    def rollouts(self) -> float:
        return self._overhead * self.totals[2]

    def _per_prompt(self, of_visit: Floats) -> Floats:
        return np.bincount(self._prompt, weights=of_visit, minlength=self._prompt.max() + 1).astype(np.float64)

    def largest_known(self) -> int:
        """The largest m for which every pool tells whether its first m samples show two outcomes."""
        open_ended = [visit.drawn for visit in self._visits if visit.mixed_from is None]
        return min(open_ended) if open_ended else max(visit.drawn for visit in self._visits)

    def share(self) -> Estimate:
        """Trained groups with signal, of all trained groups."""
        with np.errstate(invalid="ignore"):
            return _estimate(self.totals[1] / max(self.totals[3], 1), self._resampled[:, 1] / self._resampled[:, 3])

    def cost(self) -> Estimate | None:
        """Rollouts per group with signal."""
        if not self.totals[1]:
            return None
        with np.errstate(divide="ignore"):
            many = self._overhead * self._resampled[:, 2] / self._resampled[:, 1]
        return _estimate(self.rollouts / self.totals[1], many)

    def uniform(self, m: float) -> Uniform:
        """With m rollouts per prompt; between whole numbers, some prompts get one more than the others."""
        below, part = int(m), m - int(m)
        mixed = (1 - part) * (self._mixed_from <= below) + part * (self._mixed_from <= below + 1)
        per_prompt = self._per_prompt(mixed)
        share, shares = per_prompt.sum() / self.totals[0], self._picks @ per_prompt / self._resampled[:, 0]
        # Every resample spends its own rollouts, on both sides.
        budgets = self._overhead * self._resampled[:, 2] / m
        prompts = self.rollouts / m
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = self._resampled[:, 1] / (budgets * shares)
        return Uniform(
            per_prompt=m,
            prompts=prompts,
            share=_estimate(share, shares),
            groups=_estimate(prompts * share, prompts * shares),
            cost=m / share if share else None,
            ratio=_estimate(self.totals[1] / (prompts * share), ratios) if share else None,
        )


def _estimate(value: float, resampled: Floats) -> Estimate:
    if np.isnan(resampled).all():
        # Nothing was trained: no resample has a group.
        return Estimate(float(value), float(value), float(value))
    # Without interpolation: resamples without a single group with signal have infinite ratios and costs.
    low, high = np.nanpercentile(resampled, [2.5, 97.5], method="inverted_cdf")
    return Estimate(float(value), float(low), float(high))


# -- in words: the closing lines of the demo and the head of the report -----------------------------------------------


def payoff_lines(paid: Payoff) -> list[tuple[str, str]]:
    """(what, sentence) pairs: what the run had, what uniform sampling would have had, and what follows."""
    designs = _known(paid)
    would = ", or ".join(
        f"{_with_interval(design.groups)} with {design.per_prompt:.4g} for each of {design.prompts:,.0f} prompts"
        for design in designs
    )
    costs = " or ".join("no group at all" if d.cost is None else f"{d.cost:.1f}" for d in designs)
    cost = "no group had a signal"
    if paid.cost is not None:
        cost = f"{paid.cost.value:.1f} rollouts per group with signal" + (
            f"; uniform sampling {costs}" if costs else ""
        )
    lines = [
        (
            "groups with signal",
            f"{paid.groups:,} ({paid.share.value:.0%} of the groups), from {paid.rollouts:,} rollouts, "
            f"{paid.per_prompt:.1f} per prompt",
        ),
        ("at equal rollouts", f"uniform sampling would have had {would or 'an unknown number: pools ended early'}"),
        ("cost of a group", cost),
    ]
    if paid.one_sided_visits:
        part = paid.one_sided_rollouts / max(paid.rollouts, 1)
        prompts = f"{paid.one_sided_visits:,} of {paid.visits:,} prompts whose answers had one score only"
        lines.append(("without signal", f"{part:.0%} of the rollouts went to {prompts}"))
    return [*lines, ("conclusion", conclusion(paid))]


def _known(paid: Payoff) -> list[Uniform]:
    """What uniform sampling can be told of; once, where the run drew n per prompt."""
    more, same = paid.more_prompts, paid.same_prompts
    if more and same and abs(same.per_prompt - more.per_prompt) < 0.05:
        same = None
    return [replace(d, per_prompt=round(d.per_prompt, 1)) for d in (more, same) if d is not None]


def _with_interval(figure: Estimate) -> str:
    return f"{figure.value:,.0f} ({figure.low:,.0f} to {figure.high:,.0f})"


def conclusion(paid: Payoff) -> str:
    """What may be said, by the 95 % intervals of the ratios to uniform sampling."""
    uniform, same = paid.more_prompts, paid.same_prompts
    if paid.cost is None:
        return "no group had a signal: the prompts are too hard or too easy for this model"
    if uniform is None:
        return f"the pools do not tell what uniform sampling with {paid.size} would have had"
    parts = [f"{_verdict(uniform)} than uniform sampling with {paid.size} at equal rollouts"]
    if same is not None and same.per_prompt > uniform.per_prompt + 0.05:
        parts.append(f"{_verdict(same)} than with {same.per_prompt:.1f} for each of the same prompts")
    if paid.share.low > uniform.share.high:
        parts.append(f"{paid.share.value:.0%} of its prompts had a signal, instead of {uniform.share.value:.0%}")
    return "; ".join(parts)


def _verdict(uniform: Uniform) -> str:
    if uniform.ratio is None or uniform.ratio.low > 1:
        return "more groups with signal"
    return "fewer groups with signal" if uniform.ratio.high < 1 else "neither more nor fewer groups with signal"
