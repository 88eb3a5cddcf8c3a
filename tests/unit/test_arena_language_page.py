"""What is said of the language model on the real stack, beside its committed results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from documents import ROOT

from openrlhf_ada.arena import real, real_page, real_tables
from openrlhf_ada.arena.page import inserted
from openrlhf_ada.cli.arena_page import REAL

PACKED, PAGE = ROOT / "openrlhf_ada" / "arena" / "results", ROOT / "docs" / "arena.md"


@cache
def language_model() -> real.Results:
    conditions = real.read_conditions(PACKED / REAL)
    assert conditions is not None
    return real.Results(PACKED / REAL, conditions, resumes=False)


def test_committed_page_is_of_the_committed_results() -> None:
    text, marks = PAGE.read_text(encoding="utf-8"), (real_page.FIRST, real_page.LAST)
    assert inserted(text, real_page.render_real(language_model()), marks) == text, "write it anew: make arena-docs"


@cache
def language_model_rows() -> dict[str, real_tables.Row]:
    results = language_model()
    names = sorted({cell.method for cell in results.by_cell} - {real.REFERENCE})
    rows = real_tables.table(results, names, 1 + max(cell.seed for cell in results.by_cell))
    return {row.method: row for row in rows}


def points(gain: real_tables.Interval | None) -> tuple[str, str]:
    """(mean, interval)"""
    assert gain is not None and gain.low is not None and gain.high is not None
    return f"{100 * gain.mean:.1f}", f"{100 * gain.low:.1f} to {100 * gain.high:.1f}"


def spanned(interval: real_tables.Interval) -> str:
    assert interval.low is not None and interval.high is not None
    return f"{interval.low:.2f} to {interval.high:.2f}"


def text_of(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_what_is_said_of_the_language_model_is_what_the_results_say() -> None:
    rows = language_model_rows()
    readme, page, choosing, decisions = map(
        text_of, ("README.md", "docs/arena.md", "docs/choosing.md", "docs/decisions.md")
    )
    assert [rows[name].seeds for name in ("raft-1-twice", "first-right", "counted-unrounded", "counted")] == [
        3,
        6,
        3,
        1,
    ]
    single, ours, unrounded = (
        points(rows[name].gain) for name in ("raft-1-twice", "first-right", "counted-unrounded")
    )
    assert min(float(interval.split(" ")[0]) for _, interval in (single, ours, unrounded)) > 0
    than = f"has {single[0]} points more right on average over the budget than"
    assert f"`raft-1-twice` {than} `uniform-4-twice` ({single[1]}, three seeds), `first-right` {ours[0]}" in readme
    assert f"`first-right` {ours[0]} ({ours[1]}, six seeds), and `counted` without leaving answers out" in readme
    assert f"answers out {unrounded[0]} ({unrounded[1]}, three seeds)." in readme
    for found in (single, ours):
        interval = f"{found[1]}, {'three' if found is single else 'six'} seeds"
        assert f"{found[0]} points more are right than with `uniform-4-twice` ({interval})" in page
    assert f"has {single[0]} points more right than uniform sampling with two passes ({single[1]}, mean" in choosing
    assert f"`raft-1-twice` {than} uniform sampling with two passes ({single[1]}), and" in decisions
    assert (
        f"`first-right` {ours[0]} ({ours[1]}, six seeds), but `counted` without leaving out has {unrounded[0]}"
        in decisions
    )


def test_what_is_said_of_costs_on_the_language_model_is_what_the_results_say() -> None:
    rows, page, decisions = language_model_rows(), text_of("docs/arena.md"), text_of("docs/decisions.md")
    costs = {name: row.cost for name, row in rows.items() if row.cost}
    rollouts, seconds = (costs["counted-unrounded"][name] for name in ("rollouts", "seconds"))
    assert f"takes {rollouts.mean:.2f} of the rollouts of uniform sampling** ({spanned(rollouts)})" in page
    assert f"it takes {seconds.mean:.2f} ({spanned(seconds)})." in page
    assert f"with as many passes and updates ({spanned(rollouts)})." in decisions
    ours = costs["first-right"]["rollouts"]
    assert f"takes {ours.mean:.2f} of the rollouts, which six seeds do not tell apart from 1" in page
    assert f"from 1 ({spanned(ours)})" in page
    assert f"At the end {100 * rows['raft-1-twice'].final:.0f} % are right." in page
    single = costs["raft-1-twice"]["rollouts"]
    assert f"takes {single.mean:.2f} of the rollouts ({spanned(single)})." in page
    alone = [f"{costs['counted'][name].mean:.2f}" for name in ("rollouts", "seconds")]
    assert "one seed, takes {} of the rollouts and {} of the seconds".format(*alone) in page


def less(method: str, other: str, of: Callable[[Mapping[str, Any]], float]) -> real_tables.Interval:
    """Over the seeds that both have."""
    runs = {(cell.method, cell.seed): run for cell, run in language_model().by_cell.items()}
    seeds = [seed for name, seed in runs if name == method and (other, seed) in runs]
    return real_tables.interval([of(runs[method, seed]) - of(runs[other, seed]) for seed in seeds])


def test_what_is_said_of_pairs_on_the_language_model_is_what_the_results_say() -> None:
    page, choosing, decisions = map(text_of, ("docs/arena.md", "docs/choosing.md", "docs/decisions.md"))

    def mean(run: Mapping[str, Any]) -> float:
        return real_tables.area(run, language_model().conditions.budget)

    ahead = points(less("raft-1-twice", "first-right", mean))
    assert f"{ahead[0]} more than with `first-right` ({ahead[1]}, the same seeds)" in page
    assert f"and {ahead[0]} more than `first-right` ({ahead[1]})." in choosing
    assert f"it has {ahead[0]} points more right on average over the budget ({ahead[1]})." in decisions
    alike = less("counted-unrounded", "raft-1-twice", mean)
    assert alike.low is not None and alike.high is not None
    fewer, most, least = (f"{100 * abs(x):.1f}" for x in (alike.mean, alike.high, alike.low))
    assert f"not told apart from it: {fewer} points fewer ({most} more to {least} fewer)" in page
    behind = less("counted-unrounded", "first-right", mean)
    assert behind.low is not None and behind.high is not None and behind.low < 0 < behind.high
    points_ahead, low, high = (f"{abs(100 * value):.1f}" for value in (behind.mean, behind.low, behind.high))
    assert f"`counted-unrounded` is ahead of it, by {points_ahead} points ({low} behind to {high} ahead)" in page
    said = f"On the same seeds `first-right` is {points_ahead} behind that ({high} behind to {low} ahead)."
    assert said in text_of("README.md")
    end = less("first-right", "uniform-4-twice", lambda run: run["evaluations"]["accuracy"][-1])
    assert end.low is not None and end.high is not None
    low, high = f"{-100 * end.low:.0f}", f"{100 * end.high:.0f}"
    assert f"At the end 67 % are, {100 * end.mean:.0f} points more ({low} fewer to {high} more)." in page


def test_page_says_in_which_order_methods_come_on_the_language_model() -> None:
    gains = {name: row.gain.mean for name, row in language_model_rows().items() if row.gain}
    order = sorted(gains, key=lambda name: -gains[name])
    page = text_of("docs/arena.md")
    assert order[0] == "raft-1-twice" and order[-2:] == ["balance", "uniform-16"]
    assert gains["uniform-4"] > gains["uniform-8"] and gains["dapo-8"] > gains["uniform-8"]
    assert "`uniform-4` is ahead of `uniform-8`, and `balance` and `uniform-16` are last." in page
    at_once, pos, est = (
        f"{100 * abs(gains[name] - gains['uniform-8']):.1f}" for name in ("uniform-8-at-once", "pos", "est")
    )
    assert gains["uniform-8-at-once"] > gains["pos"] > gains["uniform-8"] > gains["est"]
    assert f"`uniform-8-at-once` is {at_once} points ahead of `uniform-8` here and `pos` {pos}, in the arena" in page
    assert f"`est` is {est} behind it here" in page
    others = ("uniform-4", "uniform-8-at-once", "pos", "est", "dapo-8", "balance", "uniform-16")
    apart = [
        less(name, "uniform-8", lambda run: real_tables.area(run, language_model().conditions.budget))
        for name in others
    ]
    assert all(found.low is not None and found.high is not None and found.low < 0 < found.high for found in apart)
    assert "Three seeds tell none of these from `uniform-8`." in page
    assert "`raft-1-twice` learns most from as many rollouts" in page
    assert {name for name, row in language_model_rows().items() if row.seeds < 3} == {"counted"}
    assert "more seeds: of `counted` two" in page[page.index("**What is missing.**") :]


def test_page_compares_methods_with_uniform_sampling_of_four_on_the_language_model() -> None:
    page = text_of("docs/arena.md")

    def mean(run: Mapping[str, Any]) -> float:
        return real_tables.area(run, language_model().conditions.budget)

    def fewer(method: str) -> tuple[str, str]:
        return points(less("uniform-4", method, mean))

    est, balance, few = fewer("est"), fewer("balance"), less("uniform-4", "pos", mean)
    assert f"`est` has {est[0]} points fewer right than `uniform-4` ({est[1]})" in page
    assert few.low is not None and few.high is not None and few.low < 0
    pos = f"`pos` {100 * few.mean:.1f} ({100 * few.high:.1f} fewer to {-100 * few.low:.1f} more)"
    assert f"`balance` {balance[0]} ({balance[1]}) and {pos}" in page
    said = (
        f"`pos` by {100 * few.mean:.1f} points, `est` by {est[0]} and `balance` by {balance[0]} (mean over the budget,"
    )
    assert said in text_of("docs/decisions.md")
    ours, single = points(less("first-right", "uniform-4", mean)), points(less("raft-1-twice", "uniform-4", mean))
    assert f"`first-right` has {ours[0]} more than `uniform-4` ({ours[1]}), and" in page
    assert f"`raft-1-twice` {single[0]} ({single[1]})." in page


def test_page_says_how_many_answers_a_step_of_each_trains() -> None:
    """Answers are counted by their tokens: a record has no number of those that are right."""
    page = text_of("docs/arena.md")
    prompts = {
        method: language_model().by_cell[cell]["flags"]["rollout.batch_size"]
        for method in ("first-right", "raft-1-twice")
        for cell in language_model().by_cell
        if cell.method == method
    }
    assert f"A step of `first-right` has {prompts['first-right']} prompts" in page
    assert f"one of `raft-1-twice` has {prompts['raft-1-twice']} prompts" in page
    shares = [
        sum(run["by_step"]["trained_tokens"]) / sum(run["by_step"]["tokens"])
        for cell, run in language_model().by_cell.items()
        if cell.method == "raft-1-twice"
    ]
    assert all(abs(prompts["raft-1-twice"] * share - 75) < 3 for share in shares)
    assert "and about 75 answers that are right (by their share of the tokens)" in page
