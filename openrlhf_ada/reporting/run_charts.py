"""The charts of one run, in the order of the questions that a reader has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from openrlhf_ada.reporting.charts import Chart, Color, Progress, Section, Series, curve, over_time
from openrlhf_ada.reporting.payoff import Estimate, Payoff, Uniform
from openrlhf_ada.reporting.prompt_charts import allocation_charts, calibration_charts
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.stopped import seen_rate
from openrlhf_ada.reporting.visits import Visit

COLORS: tuple[Color, ...] = ("blue", "orange", "green", "pink", "sky", "red", "grey")


def run_sections(run: Run, visits: Sequence[Visit], paid: Payoff | None) -> list[Section]:
    """Sections with charts; a chart without data is left out, and a section without charts too."""
    progress = Progress.of(run)
    rate, rate_text = seen_rate(run)
    sections = [
        Section("Does it pay?", pay_charts(paid), [HOW_UNIFORM]),
        Section("Did it learn?", learning_charts(run, progress)),
        Section(
            "Where did the rollouts go?",
            [*signal_charts(run, visits, progress), *allocation_charts(run, visits, rate)],
            [f"Pass rate seen: {rate_text}."] if visits else (),
        ),
        Section("Were the predictions right?", calibration_charts(run, visits, rate, progress)),
        Section("How was it trained, and what did it cost?", cost_charts(run, progress)),
    ]
    return [Section(s.title, [c for c in s.charts if c.series], s.text) for s in sections if _has_data(s)]


def _has_data(section: Section) -> bool:
    return any(chart.series for chart in section.charts)


HOW_UNIFORM = (
    "Uniform sampling with m for every prompt is read from the first m samples of the same pools, which no stop rule "
    "selected. Bands and bars are 95 % intervals (bootstrap over prompts)."
)


# -- does it pay ------------------------------------------------------------------------------------------------------


def pay_charts(paid: Payoff | None) -> list[Chart]:
    """Signal and its cost over rollouts per prompt: uniform sampling as a curve, the run as a point."""
    if paid is None or not paid.curve:
        return []
    share = _uniform_curve(paid, lambda design: design.share)
    cost = _uniform_curve(paid, _cost_of)
    here = {"x": [paid.per_prompt]}
    ours = _point("this run", paid.share, here)
    price = [] if paid.cost is None else [_point("this run", paid.cost, here)]
    x_label = "rollouts per prompt"
    return [
        Chart(
            "pay_signal",
            "Groups with signal at equal rollouts per prompt",
            "Above the curve: signal from more of the prompts than uniform sampling at the same cost.",
            "share of groups with signal",
            [share, ours],
            x_label,
            y_share=True,
        ),
        Chart(
            "pay_cost",
            "Rollouts per group with signal",
            "Lower is cheaper. Few samples for each of more prompts are often cheapest, but leave hard and easy "
            "prompts untrained.",
            "rollouts per group with signal",
            [cost, *price],
            x_label,
        ),
    ]


def _cost_of(design: Uniform) -> Estimate:
    def cost(share: float) -> float:
        return design.per_prompt / max(share, 1e-9)

    return Estimate(cost(design.share.value), cost(design.share.high), cost(design.share.low))


def _uniform_curve(paid: Payoff, figure: Callable[[Uniform], Estimate]) -> Series:
    known = [design for design in paid.curve if design.share.low > 0]
    figures = [figure(design) for design in known]
    return Series(
        "uniform sampling",
        [f.value for f in figures],
        {"x": [design.per_prompt for design in known]},
        "orange",
        low=[f.low for f in figures],
        high=[f.high for f in figures],
        band=True,
    )


def _point(name: str, figure: Estimate, x: dict[str, list[float]]) -> Series:
    return Series(name, [figure.value], x, "green", "points", [figure.low], [figure.high])


# -- did it learn -----------------------------------------------------------------------------------------------------


def learning_charts(run: Run, progress: Progress) -> list[Chart]:
    """Score and held-out accuracy; rewards; the policy's entropy against the score, where it was recorded."""
    training = over_time(
        "training prompts, first samples", run.steps, "ada/first_wave_metric_mean", progress, "blue"
    ) or over_time("training prompts, mean reward", run.steps, "rollout/reward_mean", progress, "blue")
    same = all(row.get("ada/reward_mean") == row.get("ada/metric_mean") for row in run.steps)
    name = "reward and score, which are the same" if same else "reward"
    rewards = over_time(name, run.steps, "ada/reward_mean", progress, "orange")
    rewards += [] if same else over_time("score", run.steps, "ada/metric_mean", progress, "grey")
    return [
        Chart(
            "score",
            "Right answers",
            "Squares: accuracy on held-out prompts with 95 % interval. Line: score of the first n samples of every "
            "training prompt, which no stop rule selected.",
            "share right",
            [*training, *held_out(run, progress)],
            y_share=True,
        ),
        Chart(
            "reward",
            "Reward and score of everything drawn",
            "Hard prompts draw more, so both lie below the policy's accuracy. Watch for a reward that rises while the "
            "score does not.",
            "mean",
            rewards,
        ),
        _frontier(run),
    ]


def held_out(run: Run, progress: Progress, name: str = "held-out prompts", color: Color = "red") -> list[Series]:
    """Accuracy of the evaluations, with intervals, as a list of one or none."""
    rows = [row for row in run.evaluations if row.get("eval/accuracy") is not None]
    if not rows:
        return []
    values = [row["eval/accuracy"] for row in rows]
    halves = [row.get("eval/ci95") or 0.0 for row in rows]
    return [
        Series(
            name,
            values,
            progress.axes([row["step"] for row in rows]),
            color,
            low=[v - h for v, h in zip(values, halves, strict=True)],
            high=[v + h for v, h in zip(values, halves, strict=True)],
        )
    ]


def _frontier(run: Run) -> Chart:
    """The host logs the entropy with --actor.entropy_coef (0 logs it and trains without)."""
    name = next((n for n in ("ent_loss", "entropy_loss") if any(row.get(n) is not None for row in run.steps)), "")
    rows = [row for row in run.steps if None not in (row.get(name), row.get("ada/first_wave_metric_mean"))]
    scores = [row["ada/first_wave_metric_mean"] for row in rows]
    words = [f"step {row['step']}" for row in rows]
    path = Series("steps", scores, {"x": [row[name] for row in rows]}, "blue", "points", text=words)
    return Chart(
        "frontier",
        "Score against entropy",
        "Each point is a step. Training trades entropy for score; a run whose points lie further up at the same "
        "entropy keeps more to explore with.",
        "score of the first samples",
        [path] if rows else [],
        "entropy of the policy (nats per token)",
        y_share=True,
    )


# -- where did the rollouts go ----------------------------------------------------------------------------------------


def signal_charts(run: Run, visits: Sequence[Visit], progress: Progress) -> list[Chart]:
    """Groups with signal over time; prompts that stayed all right or all wrong; rollouts per prompt."""
    size = run.flag("rollout.n_samples_per_prompt")
    signal = over_time("this run", run.steps, "ada/signal_share", progress, "green")
    signal += over_time(
        f"in the first {size} samples of the same prompts", run.steps, "ada/signal_share_uniform", progress, "orange"
    )
    return [
        Chart(
            "signal",
            "Groups with signal",
            "Share of trained groups with a gradient. The second curve is what the first samples alone would have "
            "had, for fewer rollouts: see above for equal ones.",
            "share of groups",
            signal,
            y_share=True,
        ),
        Chart(
            "one_sided",
            "Prompts that are all right or all wrong",
            "Full lines: the whole pool has one outcome, so nothing is learned. Dashed: the first n samples have.",
            "share of prompts",
            _one_sided(visits, size if isinstance(size, int) else 1, progress),
            y_share=True,
        ),
        Chart(
            "per_prompt",
            "Rollouts per prompt",
            "Mean over the prompts of a step, aborted ones included.",
            "rollouts per prompt",
            over_time("this run", run.steps, "ada/rollouts_per_prompt", progress, "blue"),
        ),
    ]


def _one_sided(visits: Sequence[Visit], size: int, progress: Progress) -> list[Series]:
    by_step: dict[int, list[Visit]] = defaultdict(list)
    for visit in visits:
        by_step[visit.step].append(visit)

    def shares(test: Callable[[Visit], bool]) -> list[tuple[int, float]]:
        return [(step, sum(map(test, group)) / len(group)) for step, group in sorted(by_step.items())]

    return [
        *curve("all wrong", shares(lambda v: not v.positive.any()), progress, "red"),
        *curve("all right", shares(lambda v: bool(v.positive.all())), progress, "blue"),
        *curve("first n all wrong", shares(lambda v: not v.positive[:size].any()), progress, "red", "dashed"),
        *curve("first n all right", shares(lambda v: bool(v.positive[:size].all())), progress, "blue", "dashed"),
    ]


# -- what it cost -----------------------------------------------------------------------------------------------------


def cost_charts(run: Run, progress: Progress) -> list[Chart]:
    """Lengths, seconds by phase, and rollouts and tokens that were not trained."""
    first = "training prompts, first samples"
    lengths = over_time(first, run.steps, "rollout/response_length_mean", progress, "blue")
    lengths += over_time("trained samples", run.steps, "response_length", progress, "green")
    lengths += over_time("held-out prompts", run.evaluations, "eval/tokens", progress, "red", "points")
    cut = over_time(first, run.steps, "rollout/truncated_rate", progress, "blue")
    cut += over_time("held-out prompts", run.evaluations, "eval/truncated", progress, "red", "points")
    return [
        Chart("length", "Length of an answer", "A rising length is paid for in every step.", "tokens", lengths),
        Chart("cut_off", "Answers cut off at the length limit", "", "share of answers", cut, y_share=True),
        _phases(run, progress),
        Chart(
            "waste",
            "Rollouts of a step",
            "Unused: finished, in the baseline, not trained. Aborted: sent early and not needed, failed, or lost.",
            "rollouts",
            _stacked(run, progress, [("trained", "ada/kept"), ("unused", "ada/unused"), ("aborted", "ada/aborted")]),
        ),
        Chart(
            "waste_tokens",
            "Tokens of a step",
            "As above, in tokens: long answers count more.",
            "tokens",
            _stacked(
                run,
                progress,
                [
                    ("trained", "ada/kept_tokens"),
                    ("unused", "ada/unused_tokens"),
                    ("aborted", "ada/aborted_tokens"),
                ],
            ),
        ),
    ]


def _stacked(run: Run, progress: Progress, parts: Iterable[tuple[str, str]]) -> list[Series]:
    return [
        series
        for (name, metric), color in zip(parts, COLORS, strict=False)
        for series in over_time(name, run.steps, metric, progress, color, "area")
    ]


def _phases(run: Run, progress: Progress) -> Chart:
    """The host's `timing/...`, and what is left of a step's seconds. `timing/step_total` is their sum."""
    names = sorted({n for row in run.steps for n in row if n.startswith("timing/")} - {"timing/step_total"})
    names = names[: len(COLORS) - 1]
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in [*names, "other"]}
    for row in run.steps:
        known = [float(row.get(name) or 0.0) for name in names]
        for name, value in zip(names, known, strict=True):
            points[name].append((row["step"], value))
        points["other"].append((row["step"], max(0.0, (row.get("ada/step_s") or 0.0) - sum(known))))
    colors: list[Color] = [*COLORS[: len(names)], "grey"]
    series = [
        s
        for name, color in zip([*names, "other"] if names else [], colors if names else [], strict=True)
        for s in curve(name.removeprefix("timing/").replace("_", " "), points[name], progress, color, "area")
    ]
    return Chart("phases", "Seconds of a step, by phase", "Evaluations are not in it.", "seconds", series)
