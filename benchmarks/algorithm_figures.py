"""The figures and tables of docs/algorithms.md, from exact enumeration with the package's own policies.

python benchmarks/algorithm_figures.py      writes the page's tables and docs/images/*.png; last line: one JSON object
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.config.objective_notes import weights_of
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.choice import chances
from openrlhf_ada.core.criteria import CHOICES, LEAST_VALUE, of_rates
from openrlhf_ada.core.exact import (
    Weight,
    drawn_weight,
    estimated_weights,
    expected_split,
    extra_chances,
    pilot_chances,
    sequential_weight,
)
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.pieces import Trait
from openrlhf_ada.core.policies import Estimated, Policy, Sequential, TwoStage
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.simulation.coin_flips import simulate

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
IMAGES = PAGE.parent / "images"
GROUP = 4
RATES = (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)
GRID = np.concatenate([np.geomspace(0.01, 0.5, 25), 1 - np.geomspace(0.5, 0.01, 25)[1:]])

Curve = NDArray[np.float64]
WeightAt = Callable[[float], Weight]


def settings_of(advantage: str = "dr_grpo", n: int = GROUP, **flags: Any) -> Settings:
    """What our flags come to beside this advantage estimator of OpenRLHF; mode seq unless told."""
    return resolve(AdaConfig(**{"mode": "seq"} | flags), n=n, advantage=advantage, batch=1)


def sequential(exit_name: str = "balance", **flags: Any) -> Sequential:
    policy = make_policy(settings_of(exit=exit_name, **flags))
    assert isinstance(policy, Sequential)
    return policy


def estimated(**flags: Any) -> Estimated:
    policy = make_policy(settings_of(mode="est", **flags))
    assert isinstance(policy, Estimated)
    return policy


def weight_at(policy: Sequential, p: float, predicted: float | None = None) -> float:
    """f'_eff(p)."""
    return sequential_weight(policy, p, predicted).effective


def noise_at(policy: Sequential, p: float) -> float:
    """Standard deviation of a group's update per unit of its expectation, for score vectors of unit length."""
    return sequential_weight(policy, p).noise


# -- tables -----------------------------------------------------------------------------------------------------------


def _seq(exit_name: str, **flags: Any) -> WeightAt:
    policy = sequential(exit_name, **flags)
    return lambda p: sequential_weight(policy, p)


def _uniform(estimator: str, n: int = GROUP) -> WeightAt:
    builder = GroupBuilder(Selection("all", n, 0.5), estimator)
    return lambda p: drawn_weight(builder, n, p)


def _est(**flags: Any) -> WeightAt:
    """In a batch of evenly spread pass rates: one prompt each at .01, .02, ..., .99."""
    policy = estimated(**flags)
    rates = np.arange(1, 100) / 100
    return lambda p: estimated_weights(policy, rates, [round(100 * p) - 1])[0]


PUBLISHED: dict[str, WeightAt] = {
    "Dr. GRPO, n = 4": _uniform("dr_grpo"),
    "GRPO, n = 4": _uniform("group_norm"),
    "GRPO, n = 8": _uniform("group_norm", 8),
    "GRPO, n = 16": _uniform("group_norm", 16),
    "PODS, 16 -> 4": _seq("fixed", max_samples=16, select="max_variance", baseline="kept", advantage="group_norm"),
    "`pos`": _seq("pos"),
    "`balance`": _seq("balance"),
    "`pos`, `group_norm`": _seq("pos", advantage="group_norm"),
    "`balance`, `group_norm`": _seq("balance", advantage="group_norm"),
    "`pos`, `paper`": _seq("pos", correction="paper", floor=0.001),
    "`balance`, `paper`": _seq("balance", correction="paper", floor=0.001),
    "Ada-Est as published, 8 on average": _est(
        n=8, correction="paper", baseline="pool", max_samples=32, min_samples=2
    ),
}
"""Methods as their papers or their code have them, and `group_norm` on adaptive groups."""

LINEAR: dict[str, WeightAt] = {
    "`pos`, `stratum`": _seq("pos", correction="stratum", objective="linear"),
    "`balance`, `stratum`": _seq("balance", correction="stratum", objective="linear"),
    "`pos`, `stratum`, `pool`": _seq("pos", correction="stratum", objective="linear", baseline="pool"),
    "`balance`, `stratum`, `pool`": _seq("balance", correction="stratum", objective="linear", baseline="pool"),
    "`pos`, `stratum`, `unbiased`": _seq("pos", correction="stratum", objective="linear", baseline="unbiased"),
    "`balance`, `stratum`, `unbiased`": _seq("balance", correction="stratum", objective="linear", baseline="unbiased"),
    "Ada-Est, 8 on average, `std`": _est(budget=8.0, objective="linear", allocation="std"),
    "PPO, `pos`": _seq("pos", advantage="gae"),
    "PPO, `balance`": _seq("balance", advantage="gae"),
    "PPO, either, `stratum`": _seq("balance", advantage="gae", correction="stratum", objective="linear"),
}
"""Settings that aim at p, whose weight is 1."""

LOG: dict[str, WeightAt] = {
    "either, `positives`": _seq("balance", correction="positives"),
    "`pos`, `stratum`": _seq("pos", correction="stratum"),
    "`balance`, `stratum`": _seq("balance", correction="stratum"),
    "`balance`, `stratum`, `pool`": _seq("balance", correction="stratum", baseline="pool"),
    "Ada-Est, 8 on average": _est(budget=8.0),
    "Ada-Est, 8 on average, `pool`": _est(budget=8.0, baseline="pool"),
    "Ada-Est, 8 on average, all trained": _est(n=8),
}
"""Settings that aim at log p, whose weight is 1/p, with the floor .02 under every pass rate where one is used."""

AIMS: dict[str, dict[str, WeightAt]] = {"published": PUBLISHED, "linear": LINEAR, "log": LOG}


EXACT = (["1.00"] * len(RATES), ["50.0", "20.0", "10.0", "3.33", "2.00", "1.11", "1.02"])
"""1, and 1/p with the floor .02 at both ends."""


OF_METHODS = ("GRPO, n = 4", "GRPO, n = 16", "PODS, 16 -> 4", "Ada-Est as published, 8 on average")
"""Those of `grpo`, `dapo`, `pods` and `reinforce-ada-est`."""


def weights_table(aim: str) -> str:
    """Markdown: effective weight by pass rate; without those that are what was aimed at, or among the methods."""
    rows = [(name, at) for name, at in AIMS[aim].items() if name not in OF_METHODS]
    lines = [[name, *(_number(at(p).effective) for p in RATES)] for name, at in rows]
    return _table([_HEADER, *(line for line in lines if line[1:] not in EXACT)])


ENUMERATED = [name for name in METHODS if name not in ("ppo", "reinforce-ada-est-critic")]
"""Methods without a critic."""

METHOD_RATES = (0.01, 0.1, 0.3, 0.5, 0.9)
DRAWN_RATES = (0.01, 0.1, 0.5, 0.9)


def method_settings(name: str) -> Settings:
    """Mode off becomes a fixed number of rollouts, all trained."""
    flags = METHODS[name].flags
    n, advantage = flags["rollout.n_samples_per_prompt"], flags["algo.advantage.estimator"]
    if flags["ada.mode"] == "off":
        return settings_of(advantage, n, exit="fixed", max_samples=n, select="all")
    ours = {flag.removeprefix("ada."): value for flag, value in flags.items() if flag.startswith("ada.")}
    return settings_of(advantage, n, **ours)


def method_weights_table() -> str:
    """Markdown: effective weight of the methods by pass rate, and rollouts of a visit at four. In mode est in a
    batch of evenly spread pass rates."""
    header = ["p", *(f"{p:g}".removeprefix("0") for p in METHOD_RATES)]
    header += [f"drawn, {p:g}".replace("0.", ".") for p in DRAWN_RATES]
    lines: list[list[str]] = []
    for name in ENUMERATED:
        settings = method_settings(name)
        drawn = [f"{count:.1f}".removesuffix(".0") for count in _draws(settings)]
        lines.append([f"`{name}`", *map(_number, method_weights(settings)), *drawn])
    return _table([header, *lines])


def method_weights(settings: Settings) -> list[float]:
    return [weight.effective for weight in weights_of(settings, METHOD_RATES)]


def _draws(settings: Settings) -> list[float]:
    policy = make_policy(settings)
    if isinstance(policy, Sequential):
        return [policy.plan.expected_draws(p) for p in DRAWN_RATES]
    rates = np.arange(1, 100) / 100
    assert isinstance(policy, Estimated | TwoStage)
    drawn = expected_split(policy, rates) if isinstance(policy, Estimated) else _two_stage_draws(policy, rates)
    return [float(drawn[round(100 * p) - 1]) for p in DRAWN_RATES]


def _two_stage_draws(policy: TwoStage, rates: np.ndarray) -> np.ndarray:
    """Expected rollouts of a prompt of each pass rate, all equally frequent, shape (B,)."""
    pilots = np.array([pilot_chances(policy.pilot, rate) for rate in rates])
    extra = extra_chances(policy, pilots.mean(axis=0))
    return policy.pilot + pilots @ extra @ np.arange(extra.shape[1])


def choice_table() -> str:
    """Markdown: how often prompts are chosen, by pass rate, against the mean of four candidates; where the value reads
    pass rates alone."""
    rates, lines = np.arange(1, 100) / 100, []
    for name, piece in CHOICES.items():
        if Trait.READS_VISITS not in piece.traits:
            often = 4 * chances(np.maximum(piece.function(of_rates(rates)), LEAST_VALUE), len(rates) / 4)
            lines.append([f"`{name}`", *(_number(often[round(100 * p) - 1]) for p in RATES)])
    return _table([_HEADER, *lines])


def cost_table() -> str:
    """Markdown: expected rollouts of a prompt."""
    lines = [[f"`{e}`", *(f"{sequential(e).plan.expected_draws(p):.1f}" for p in RATES)] for e in ("pos", "balance")]
    return _table([_HEADER, *lines])


COUNTED = (0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Pass rates of the prompts whose predictions are simulated, equally many of each."""


def predicted_weights() -> dict[float, tuple[float, float]]:
    """By pass rate: mean and standard deviation over prompts of 1 / max(prediction, floor) after five visits.

    Default settings of Ada-Est with 8 rollouts on average, 512 prompts in batches of 64, 8 seeds; no drift.
    """
    settings = settings_of(mode="est", budget=8.0)
    weights: dict[float, list[float]] = {p: [] for p in COUNTED}
    rates = np.tile(COUNTED, 64)
    for seed in range(8):
        policy = make_policy(settings)
        assert isinstance(policy, Estimated)
        rng = np.random.default_rng(seed)
        visits = [batch for _ in range(5) for batch in rng.permutation(len(rates)).reshape(-1, 64).tolist()]
        _run(policy, visits, rates, seed)
        predictions = policy.memory.counts.predict(np.arange(len(rates)))
        for p in COUNTED:
            weights[p] += [settings.target.weight(q, policy.floor) for q in predictions[rates == p]]
    return {p: (float(np.mean(w)), float(np.std(w))) for p, w in weights.items()}


def _run(policy: Policy, batches: Sequence[Sequence[int]], rates: Curve, seed: int) -> None:
    for _ in simulate(policy, iter(batches), lambda step, rows: rates[rows], seed):
        pass


def prediction_table() -> str:
    """Markdown: what `log` asks for, what is aimed at above the floor, and what the counts give."""
    found = predicted_weights()
    return _table(
        [
            ["p", *(f"{p:g}".removeprefix("0") for p in COUNTED)],
            ["1/p", *(_number(1 / p) for p in COUNTED)],
            ["right prediction, floor .02", *(_number(min(1 / p, 50)) for p in COUNTED)],
            ["counts after 5 visits", *(f"{mean:.1f} ± {sd:.1f}" for mean, sd in found.values())],
        ]
    )


def matched_table() -> str:
    """Markdown: of --ada_objective matched:reinforce-ada-balance, at the counts' prediction after some visits of 8
    rollouts. Prior of mean 1/2 worth two rollouts, as in the first visits of a run; exact."""
    settings = settings_of(
        exit="fixed", max_samples=8, correction="stratum", objective="matched:reinforce-ada-balance"
    )

    def mean_weight(p: float, visits: int) -> float:
        drawn = 8 * visits
        chances = [math.comb(drawn, k) * p**k * (1 - p) ** (drawn - k) for k in range(drawn + 1)]
        return sum(c * settings.target.weight((k + 1) / (drawn + 2), 0.005) for k, c in enumerate(chances))

    header = ["p", "`balance`", *(f"after {visits} visits" for visits in (0, 1, 2, 5, 20))]
    lines = [
        [
            f"{p:g}".removeprefix("0"),
            _number(settings.target.weight(p)),
            *(_number(mean_weight(p, visits)) for visits in (0, 1, 2, 5, 20)),
        ]
        for p in (0.01, 0.1, 0.3, 0.5, 0.9)
    ]
    return _table([header, *lines])


_HEADER = ["p", *(f"{p:g}".removeprefix("0") for p in RATES)]


def _number(value: float) -> str:
    """Three digits, without the zero before the point."""
    return f"{value:#.3g}".rstrip(".").removeprefix("0")


def _table(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- figures ----------------------------------------------------------------------------------------------------------


def curve(at: WeightAt) -> Curve:
    return np.array([at(p).effective for p in GRID])


def over_pass_rate(axes: Any, title: str, y_label: str, *, log: bool) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("pass rate p")
    axes.set_ylabel(y_label)
    axes.set_xscale("logit")
    axes.set_xticks([0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def figure_weights() -> None:
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    middle.sharey(left)
    styles = {
        "Dr. GRPO, n = 4": "-", "GRPO, n = 4": "-", "PODS, 16 -> 4": "-", "`pos`": "-", "`balance`": "-",
        "`pos`, `group_norm`": "--", "`balance`, `group_norm`": "--",
    }  # fmt: skip
    for name, style in styles.items():
        left.plot(GRID, curve(PUBLISHED[name]), style, label=name.replace("`", ""))
    over_pass_rate(left, "Without correction", "effective weight f'(p)", log=True)
    middle.plot(GRID, 1 / GRID, "k--", linewidth=1, label="1/p, what log p asks for")
    for name in ("`pos`, `paper`", "`balance`, `paper`"):
        middle.plot(GRID, curve(PUBLISHED[name]), label=name.replace("`", ""))
    for name in ("either, `positives`", "`balance`, `stratum`", "`balance`, `stratum`, `pool`"):
        middle.plot(GRID, curve(LOG[name]), label=name.replace("`", "").replace("balance, stratum", "stratum"))
    over_pass_rate(middle, "Aiming at log p", "", log=True)
    right.plot(GRID, np.ones_like(GRID), "k--", linewidth=1, label="1, what p asks for")
    for name in (
        "`balance`, `stratum`", "`pos`, `stratum`, `pool`", "`balance`, `stratum`, `pool`",
        "`pos`, `stratum`, `unbiased`", "PPO, `pos`", "PPO, `balance`",
    ):  # fmt: skip
        right.plot(GRID, curve(LINEAR[name]), label=name.replace("`", ""))
    over_pass_rate(right, "Aiming at p", "", log=False)
    right.set_ylim(0, 2.6)
    for axes in (left, middle, right):
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(IMAGES / "effective_weight.png", dpi=110)


def figure_costs() -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for exit_name in ("pos", "balance"):
        plan = sequential(exit_name).plan
        left.plot(GRID, [plan.expected_draws(p) for p in GRID], label=f"Ada-Seq {exit_name}")
    for name, label in (("inverse_sqrt", "Ada-Est 1/√p"), ("inverse", "Ada-Est 1/p"), ("odds", "Ada-Est √((1-p)/p)")):
        left.plot(GRID, shares(name), "--", label=f"{label}, mean 8")
    over_pass_rate(left, "Rollouts of a prompt (cap 32)", "expected rollouts", log=False)
    for exit_name in ("pos", "balance"):
        right.plot(GRID, [pool_mean(exit_name, p) - p for p in GRID], label=f"pool mean, {exit_name}")
    right.axhline(0, color="black", linewidth=1, linestyle="--", label="unbiased (exact)")
    over_pass_rate(right, "Bias of the pass rate at the stop", "expected estimate - p", log=False)
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(IMAGES / "allocation.png", dpi=110)


def shares(name: str) -> Curve:
    """Rollouts at mean 8, between 4 and 32, if prompts of all the grid's pass rates are equally many."""
    copies = 200
    u = np.repeat(priority(name, GRID, 0.02), copies)
    split = allocate(u, 8 * len(u), GROUP, 32, np.arange(len(u)))
    return split.reshape(len(GRID), copies).mean(axis=1)


def pool_mean(exit_name: str, p: float) -> float:
    outcomes = sequential(exit_name).plan.outcomes(p)
    return sum(chance * k / n for (n, k), chance in outcomes.items())


TABLES: dict[str, Callable[[], str]] = {
    "costs": cost_table,
    "predictions": prediction_table,
    "chances": choice_table,
    **{f"weights, {aim}": partial(weights_table, aim) for aim in AIMS},
    "matched weights": matched_table,
    "weights of methods": method_weights_table,
}
"""What stands between two marks of the page."""


def marks(name: str) -> tuple[str, str]:
    return f"<!-- table: {name} -->", "<!-- end -->"


def written(page: str, name: str) -> str:
    """The page with this table made anew."""
    first, last = marks(name)
    before, _, rest = page.partition(first)
    _, _, after = rest.partition(last)
    return f"{before}{first}\n{TABLES[name]()}\n{last}{after}"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    figure_weights()
    figure_costs()
    page = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        page = written(page, name)
    PAGE.write_text(page, encoding="utf-8")
    weights = {
        aim: {name: [at(p).effective for p in RATES] for name, at in rows.items()} for aim, rows in AIMS.items()
    }
    print(json.dumps({"effective_weight": weights, "pass_rates": RATES}))


if __name__ == "__main__":
    main()
