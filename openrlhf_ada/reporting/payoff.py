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
from dataclasses import dataclass

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
    """Uniform sampling at the rollouts of the run: `per_prompt` for each of `prompts`.

    `share`: of prompts whose samples show two outcomes. `ratio`: groups with signal of the run over these.
    """

    per_prompt: float
    prompts: float
    share: Estimate
    ratio: Estimate | None


@dataclass(frozen=True, slots=True)
class Payoff:
    """What a run paid, and got.

    `groups`: trained groups whose pool shows two outcomes. `rollouts`: all that were drawn, aborted ones included.
    `unresolved_visits`, `unresolved_rollouts`: pools whose scores are all equal. `designs`: uniform sampling with n
    each, on as many prompts as the rollouts allow; and with as many each as the run drew per prompt, if that is not n.
    One that the pools leave open is missing. `curve`: uniform sampling with 2, 3, ... each, as far as the pools tell.
    """

    visits: int
    rollouts: int
    groups: int
    share: Estimate
    unresolved_visits: int
    unresolved_rollouts: int
    designs: tuple[Uniform, ...]
    curve: tuple[Uniform, ...]

    @property
    def per_prompt(self) -> float:
        """Rollouts per visit of a prompt."""
        return self.rollouts / self.visits

    @property
    def cost(self) -> float | None:
        """Rollouts per group with signal."""
        return self.rollouts / self.groups if self.groups else None


def payoff(run: Run, visits: Sequence[Visit]) -> Payoff | None:
    """The figures of a run; None where there is nothing to compare: mode off, no pools, or one sample per prompt."""
    size = run.flag("rollout.n_samples_per_prompt")
    if not visits or not isinstance(size, int) or size < 2:
        return None
    sums = _PromptSums(visits, drawn=total(run.steps, "ada/drawn") or 0)
    largest, per_prompt = sums.largest_known(), round(sums.rollouts / len(visits), 1)
    unresolved = [visit.drawn for visit in visits if not visit.shows_two_outcomes]
    return Payoff(
        visits=len(visits),
        rollouts=round(sums.rollouts),
        groups=round(sums.totals[1]),
        share=sums.share(),
        unresolved_visits=len(unresolved),
        unresolved_rollouts=sum(unresolved),
        designs=tuple(sums.uniform(m) for m in dict.fromkeys((size, per_prompt)) if m <= largest),
        curve=tuple(sums.uniform(m) for m in range(2, largest + 1)),
    )


class _PromptSums:
    """Sums of (visits, groups with signal, finished rollouts, trained visits), and of every resample of prompts."""

    def __init__(self, visits: Sequence[Visit], drawn: float) -> None:
        names = {name: number for number, name in enumerate(dict.fromkeys(visit.prompt_id for visit in visits))}
        self._visits = visits
        self._prompt = np.array([names[visit.prompt_id] for visit in visits])
        self._mixed_from = np.array([visit.mixed_from or np.inf for visit in visits])
        signal = [visit.is_trained and visit.shows_two_outcomes for visit in visits]
        columns = (np.ones(len(visits)), signal, [v.drawn for v in visits], [v.is_trained for v in visits])
        by_prompt = np.stack([self._per_prompt(np.asarray(c, dtype=float)) for c in columns], axis=1)
        self.totals = by_prompt.sum(axis=0)
        # Aborted rollouts are of no pool: every finished one bears its part of them.
        self._overhead = max(drawn / self.totals[2], 1.0)
        self._picks = np.random.default_rng(0).multinomial(len(names), np.ones(len(names)) / len(names), RESAMPLES)
        self._resampled = self._picks @ by_prompt

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
    """(what, sentence) pairs: what the run had, and what follows."""
    had = f"{paid.groups:,} ({paid.share.value:.0%} of the groups), from {paid.rollouts:,} rollouts"
    cost = "" if paid.cost is None else f"; {paid.cost:.1f} rollouts per group with signal"
    lines = [("groups with signal", f"{had}, {paid.per_prompt:.1f} per prompt{cost}")]
    if paid.unresolved_visits:
        part = paid.unresolved_rollouts / max(paid.rollouts, 1)
        prompts = f"{paid.unresolved_visits:,} of {paid.visits:,} prompts whose answers had one score only"
        lines.append(("without signal", f"{part:.0%} of the rollouts went to {prompts}"))
    return [*lines, ("conclusion", conclusion(paid))]


def conclusion(paid: Payoff) -> str:
    """One sentence: did adaptive sampling pay? By the 95 % intervals of the ratios to uniform sampling."""
    unknown = "It cannot be said whether adaptive sampling paid, because"
    if paid.cost is None:
        return f"{unknown} no group had a signal: the prompts are too hard or too easy for this model."
    if not paid.designs:
        return f"{unknown} its pools do not tell what uniform sampling would have had."
    # On more prompts first, on the run's own last, where the pools tell both.
    found = [(_verdict(d), d) for d in paid.designs]
    words, on_same = [word for word, _ in found], found[-1][1].per_prompt == round(paid.per_prompt, 1)
    if all(word == "more" for word in words):
        verdict = "Adaptive sampling paid"
    elif words[-1] == "more" and on_same:
        verdict = "Adaptive sampling paid only if you have no other prompts to train on"
    elif any(words):
        verdict = "Adaptive sampling did not pay"
        found.sort(key=lambda each: each[0] == "more")
    else:
        verdict = f"{unknown} the difference is not significant"
    same = paid.designs[-1] if on_same else None
    first, *others = [_compared(word, d, "its own" if d is same else f"{d.prompts:,.0f}") for word, d in found]
    others = [text.replace(" groups with signal", "").replace(" uniform sampling", "") for text in others]
    return f"{verdict}: for as many rollouts it had {', and '.join([first, *others])}."


def _compared(verdict: str, uniform: Uniform, prompts: str) -> str:
    size = f"{abs(uniform.ratio.value - 1):.0%} {verdict}" if verdict and uniform.ratio else verdict or "as many"
    than = f"{'than' if verdict else 'as'} uniform sampling with {uniform.per_prompt:.4g}"
    return f"{size} groups with signal {than} for each of {prompts} prompts"


def _verdict(uniform: Uniform) -> str:
    """more, fewer, or nothing where the interval holds 1."""
    if uniform.ratio is None or uniform.ratio.low > 1:
        return "more"
    return "fewer" if uniform.ratio.high < 1 else ""
