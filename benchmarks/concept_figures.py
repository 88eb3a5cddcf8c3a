"""The pictures and tables of docs/concepts.md: policies and scheduler that train, on coin flips and in virtual time.

python benchmarks/concept_figures.py     writes docs/images/concepts-*.svg for light and for dark pages, prints tables
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.fleet import DispatchLimits, run
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import SCHEDULERS, Request, Scheduler, SchedulerName
from openrlhf_ada.core.speculation import LEAST_CHANCE
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.coin_flips import SimulatedStep, simulate
from openrlhf_ada.simulation.virtual_engines import EngineModel, VirtualFleet

IMAGES = Path(__file__).parents[1] / "docs" / "images"
GROUP, WAVE, CAP = 4, 8, 32
SEED = 11

RATES = (0.01, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Pass rates of the prompts of the first picture."""

PREDICTED, BUDGET, FLOOR = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), 8, 0.02
"""Predicted pass rates of the prompts of the second picture, and mean rollouts of each."""

PROMPTS, ENGINES = 64, 2
ENGINE = EngineModel(batch_sizes=(1, 256), step_seconds=(0.008, 0.022), slots=256, speculation=256)
"""Of the third picture: a GPU-like engine."""


def policy_of(exit_name: str) -> Policy:
    return make_policy(
        resolve(
            AdaConfig(mode="seq", exit=exit_name, wave=WAVE, max_samples=CAP), n=GROUP, advantage="dr_grpo", batch=1
        )
    )


@cache
def sampled() -> SimulatedStep:
    """One step of `balance` over RATES."""
    rates = np.array(RATES)
    return next(simulate(policy_of("balance"), iter([range(len(rates))]), lambda _, rows: rates[rows], SEED))


def _mixed(scores: Sequence[float]) -> bool:
    return len(set(scores)) > 1


def pools_table() -> str:
    """Markdown: each prompt's pool, and what is trained of it."""
    lines = [["p", "first 4", "signal with 4", "drawn", "right", "coefficients", "signal"]]
    step = sampled()
    for rate, pool, group in zip(RATES, step.pools, step.groups, strict=True):
        scores = pool.scores.tolist()
        kept = [scores[index] for index in group.indices]
        by_score = {score: group.coefficients[at] for at, score in enumerate(kept)}
        coefficients = ", ".join(
            f"{value:+.3g}" if value else "0" for _, value in sorted(by_score.items(), reverse=True)
        )
        lines.append(
            [
                f"{rate:g}".removeprefix("0"),
                f"{sum(scores[:GROUP]):.0f} right",
                "yes" if _mixed(scores[:GROUP]) else "no",
                f"{len(scores)}",
                f"{sum(scores):.0f}",
                coefficients,
                "yes" if any(group.coefficients) else "no",
            ]
        )
    return _table(lines)


def split() -> list[int]:
    """Rollouts that Ada-Est gives to prompts of these predictions."""
    priorities = priority("inverse_sqrt", PREDICTED, FLOOR)
    count = len(PREDICTED)
    return allocate(priorities, BUDGET * count, GROUP, CAP, np.arange(count)).tolist()


def split_table() -> str:
    """Markdown: the same."""
    predicted = [f"{p:g}".removeprefix("0") for p in PREDICTED]
    return _table([["predicted pass rate", *predicted, "sum"], ["rollouts", *map(str, split()), str(sum(split()))]])


class _WatchedFleet(VirtualFleet):
    """Notes how many rollouts run, and since when."""

    def __init__(self) -> None:
        super().__init__(ENGINES, ENGINE, _answer)
        self.running: list[tuple[float, int]] = [(0.0, 0)]

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        super().submit(engine, requests)
        self._note(len(requests))

    def wait(self) -> Any:
        answers = super().wait()
        self._note(-len(answers))
        return answers

    def _note(self, change: int) -> None:
        self.running.append((self.now, self.running[-1][1] + change))


def _answer(request: Request) -> Sample:
    """Score and length follow from the identity of a rollout."""
    rate = np.random.default_rng([SEED, request.key]).beta(1.5, 1.5)
    rng = np.random.default_rng([SEED, request.key, request.index])
    score = float(rng.random() < rate)
    return Sample(request.key, request.index, score, score, int(np.clip(rng.lognormal(6.2, 0.8), 1, 4096)))


@cache
def timeline(name: SchedulerName) -> list[tuple[float, int]]:
    """(seconds, rollouts that run from then on) of one step."""
    fleet = _WatchedFleet()
    pools = [PromptPool(key, row=key) for key in range(PROMPTS)]
    scheduler = Scheduler[None](policy_of("balance"), pools, name, least_chance=LEAST_CHANCE)
    run(scheduler, fleet, DispatchLimits(ENGINE.slots, ENGINE.speculation or ENGINE.slots))
    return fleet.running


def seconds_table() -> str:
    """Markdown: seconds of the step by scheduler."""
    seconds = [f"{timeline(name)[-1][0]:.0f} s" for name in SCHEDULERS]
    return _table([["", *(f"`{name}`" for name in SCHEDULERS)], ["sampling takes", *seconds]])


def _table(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- pictures ---------------------------------------------------------------------------------------------------------

THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {"text": "#1f2328", "quiet": "#6e7781", "right": "#1a7f37", "wrong": "#d0d7de", "accent": "#3f51b5"},
    "dark": {"text": "#e6edf3", "quiet": "#9aa4af", "right": "#3fb950", "wrong": "#484f58", "accent": "#8c9eff"},
}
"""Colours on transparent ground."""


def draw_pools(figure: Any, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    step = sampled()
    for row, (rate, pool, group) in enumerate(zip(RATES, step.pools, step.groups, strict=True)):
        for index, score in enumerate(pool.scores.tolist()):
            kept = index in group.indices
            axes.add_patch(
                Rectangle(
                    (index + 0.1, row + 0.14), 0.8, 0.72,
                    facecolor=colours["right" if score else "wrong"],
                    edgecolor=colours["text"] if kept else "none", linewidth=1.4,
                )
            )  # fmt: skip
        signal = "signal" if any(group.coefficients) else "no signal"
        axes.text(len(pool) + 0.5, row + 0.5, signal, va="center", color=colours["quiet"], fontsize=10)
        axes.text(-0.5, row + 0.5, f"p = {rate:g}", va="center", ha="right", color=colours["text"], fontsize=10)
    for edge in range(0, CAP + 1, WAVE):
        axes.axvline(edge, color=colours["quiet"], linewidth=0.6, linestyle=":")
    for wave in range(CAP // WAVE):
        axes.text((wave + 0.5) * WAVE, -0.25, f"wave {wave + 1}", ha="center", color=colours["quiet"], fontsize=10)
    axes.set(xlim=(-5.5, CAP + 6.5), ylim=(len(RATES), -0.7))
    axes.axis("off")


def draw_split(figure: Any, colours: Mapping[str, str]) -> None:
    axes = figure.subplots()
    places = np.arange(len(PREDICTED))
    bars = axes.bar(places, split(), color=colours["accent"], width=0.7)
    axes.bar_label(bars, color=colours["text"], fontsize=10)
    axes.axhline(BUDGET, color=colours["quiet"], linewidth=1, linestyle="--")
    axes.text(len(PREDICTED) - 0.5, BUDGET + 0.3, "mean 8", ha="right", color=colours["quiet"], fontsize=10)
    axes.set_xticks(places, [f"{p:g}" for p in PREDICTED])
    _label(axes, colours, "predicted pass rate", "rollouts")


def draw_timeline(figure: Any, colours: Mapping[str, str]) -> None:
    axes = figure.subplots()
    by_name = dict(zip(SCHEDULERS, ("quiet", "right", "accent"), strict=True))
    for name, colour in by_name.items():
        seconds, running = zip(*timeline(name), strict=True)
        axes.step(seconds, running, where="post", color=colours[colour], linewidth=1.6)
        axes.plot(seconds[-1], 0, "o", color=colours[colour], markersize=6, clip_on=False)
        axes.annotate(
            f"{name}: {seconds[-1]:.0f} s", (seconds[-1], 0), xytext=(0, 12 + 15 * list(by_name).index(name)),
            textcoords="offset points", ha="right", color=colours[colour], fontsize=10,
        )  # fmt: skip
    axes.set(xlim=(0, None), ylim=(0, None))
    _label(axes, colours, "seconds of the step", "rollouts that run")


def _label(axes: Any, colours: Mapping[str, str], x: str, y: str) -> None:
    axes.set_xlabel(x, color=colours["text"])
    axes.set_ylabel(y, color=colours["text"])
    axes.tick_params(colors=colours["quiet"], labelcolor=colours["text"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours["quiet"])


PICTURES: Mapping[str, tuple[Callable[[Any, Mapping[str, str]], None], tuple[float, float]]] = {
    "pools": (draw_pools, (6.8, 3.0)),
    "split": (draw_split, (6.0, 2.8)),
    "timeline": (draw_timeline, (6.0, 3.0)),
}


def write_pictures(folder: Path) -> None:
    """Six files; the same whenever they are written."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "openrlhf_ada", "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
        for name, (draw, size) in PICTURES.items():
            for theme, colours in THEMES.items():
                figure = Figure(figsize=size, layout="constrained")
                figure.patch.set_alpha(0)
                draw(figure, colours)
                for axes in figure.axes:
                    axes.patch.set_alpha(0)
                figure.savefig(folder / f"concepts-{name}-{theme}.svg", metadata={"Date": None})


def main() -> None:
    write_pictures(IMAGES)
    print(f"Pools\n{pools_table()}\n\nSplit\n{split_table()}\n\nSeconds\n{seconds_table()}\n")
    seconds = {name: timeline(name)[-1][0] for name in SCHEDULERS}
    print(json.dumps({"split": split(), "seconds": seconds}))


if __name__ == "__main__":
    main()
