"""What is simulated: prompts and answers of a recorded run or synthetic ones, engines, and a method's settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from openrlhf_ada.config import program
from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.nearest import did_you_mean
from openrlhf_ada.config.presets import METHODS, OLD_NAMES
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.scheduling import SchedulerName
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel, SampleOf
from openrlhf_ada.simulation.workload import RecordedRollouts, SyntheticRollouts, recorded_steps

ENGINE_FILE = "engine.json"

SYNTHETIC_ENGINES = 8


@dataclass(frozen=True)
class Step:
    """The prompts of one step, as fresh pools, and what they answer."""

    keys: Sequence[int]
    rows: Sequence[int]
    answer: SampleOf

    def pools(self) -> list[PromptPool]:
        return [PromptPool(key, row=row) for key, row in zip(self.keys, self.rows, strict=True)]


@dataclass(frozen=True)
class Scenario:
    """What is simulated. `settings`, `epochs`: those of the run, if it is one."""

    settings: Settings
    steps: Sequence[Step]
    engine: EngineModel
    num_engines: int
    epochs: int = 1

    @property
    def prompts(self) -> int:
        """Of a step."""
        return len(self.steps[0].keys)

    def cluster(self, num_engines: int) -> Cluster:
        """So many of the engines."""
        automatic = self.engine.slots if self.engine.speculation is None else self.engine.speculation
        own = self.settings.speculation
        return Cluster(num_engines, self.engine, automatic if own is None else own)


def recorded(run_dir: Path, file: Path | None, prompts: int | None, num_steps: int) -> Scenario:
    """The last steps of a run, or so many prompts of each. `file`: of the engine; None: the run's own."""
    run = read_run(run_dir)
    host = namespace(run.config)
    settings = host.ada = run_settings(host, run_dir)
    file = file or run_dir / ENGINE_FILE
    if not file.exists():
        command = f"{program.called()} plan --calibrate {run_dir}"
        raise FileNotFoundError(f"no engine was measured ({file}): run `{command}` first")
    steps: list[Step] = []
    for one in list(recorded_steps(run))[-num_steps:]:
        step = one.with_prompts(prompts, host.train.seed) if prompts else one
        seed, above = host.train.seed, settings.positive_above
        answer = RecordedRollouts(step.rollouts, positive_above=above, replay=not prompts, seed=seed)
        steps.append(Step(list(step.rollouts), list(step.rows.values()), answer))
    return Scenario(settings, steps, read_engine(file), host.vllm.num_engines, host.train.max_epochs)


def synthetic(answer: SyntheticRollouts, file: Path | None, prompts: int) -> Scenario:
    """One step of so many prompts, which answer so. `file`: of the engine; None: one like a GPU's."""
    given = AdaConfig(mode="seq", wave=8, max_samples=32)
    settings = resolve(given, n=4, advantage="dr_grpo", batch=prompts)
    engine = read_engine(file) if file else GPU_LIKE
    return Scenario(settings, [Step(range(prompts), range(prompts), answer)], engine, SYNTHETIC_ENGINES)


def run_settings(host: SimpleNamespace, run_dir: Path) -> Settings:
    """Of a run, by its recorded flags. Raises ValueError for a run of another version of the package."""
    unknown = sorted(set(vars(host.ada)) - {f.name for f in fields(AdaConfig)})
    if unknown:
        raise ValueError(f"{run_dir} is of another version of openrlhf_ada: there is no --ada_{unknown[0]} here")
    n, advantage = host.rollout.n_samples_per_prompt, host.algo.advantage.estimator
    return resolve(AdaConfig(**vars(host.ada)), n=n, advantage=advantage, batch=host.rollout.batch_size)


def read_engine(file: Path) -> EngineModel:
    """An engine as --calibrate writes it. Raises ValueError for another file."""
    try:
        figures: dict[str, Any] = dict(json.loads(file.read_text(encoding="utf-8")))
        for name in ("batch_sizes", "step_seconds"):
            figures[name] = tuple(figures[name])
        return EngineModel(**figures)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{file} does not describe an engine as --calibrate writes it: {error!r}") from error


def namespace(flags: Any) -> Any:
    """A run's flags as OpenRLHF's parser gives them."""
    if isinstance(flags, dict):
        return SimpleNamespace(**{name: namespace(value) for name, value in flags.items()})
    return flags


def steps_of(
    scenario: Scenario, settings: Settings, scheduler: SchedulerName, num_engines: int, num_steps: int
) -> list[Forecast]:
    """The scenario's steps under these settings; `num_steps` steps of synthetic prompts where the policy learns.

    Raises ValueError for settings whose pass rates come from a critic.
    """
    if settings.reads_critic:
        raise ValueError("pass rates come from a critic, which is not simulated: leave `recorded` out of --methods")
    first, cluster = scenario.steps[0].answer, scenario.cluster(num_engines)
    if settings.remembers and isinstance(first, SyntheticRollouts):
        return list(_learning(settings, scheduler, cluster, first, len(scenario.steps[0].keys), num_steps))
    policy, skips = make_policy(settings), settings.skips_zeros
    return [forecast(policy, s.pools(), s.answer, scheduler, cluster, skips_zeros=skips) for s in scenario.steps]


def _learning(
    settings: Settings, scheduler: SchedulerName, cluster: Cluster, prompts: SyntheticRollouts, size: int, steps: int
) -> Iterator[Forecast]:
    """Steps of `size` prompts of a method that remembers. There are --ada_candidates times as many made-up ones."""
    policy = make_policy(settings)
    chooser = make_chooser(settings, policy, settings.candidates * size, seed=0)
    for step in range(steps):
        rows = {step * size + i: choice.row for i, choice in enumerate(chooser.take(size))}
        pools = [PromptPool(key, row=row) for key, row in rows.items()]
        answer = lambda request, rows=rows: prompts.visit(request, rows[request.key])  # noqa: E731
        yield forecast(policy, pools, answer, scheduler, cluster, skips_zeros=settings.skips_zeros)
        chooser.end_step(pools)


def method_settings(name: str, prompts: int) -> Settings:
    """Of --ada_method, for steps of so many prompts. Mode `off` becomes a fixed number of rollouts, all trained.

    Raises ValueError for a method whose pass rates come from a critic.
    """
    flags = METHODS[name].flags
    n, estimator = flags["rollout.n_samples_per_prompt"], flags["algo.advantage.estimator"]
    ours = {flag.removeprefix("ada."): value for flag, value in flags.items() if flag.startswith("ada.")}
    if ours["mode"] == "off":
        ours = {"mode": "seq", "exit": "fixed", "max_samples": n, "select": "all"}
    settings = resolve(AdaConfig(**ours), n=n, advantage=estimator, batch=prompts)
    if settings.reads_critic:
        raise ValueError(f"{name}: its pass rates come from a critic, which is not simulated")
    return settings


# -- flags ------------------------------------------------------------------------------------------------------


def at_least(least: int) -> Callable[[str], int]:
    """For argparse: a whole number that is not below `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least {least}")
        return int(text)

    return parse


def names_of(known: Collection[str], refused: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], list[str]]:
    """For argparse: names of these, with commas between them. `refused`: why others cannot be named."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        names = [OLD_NAMES.get(name, name) for name in given]
        for old in (name for name in given if name in OLD_NAMES):
            print(f"{old} is now called {OLD_NAMES[old]}; the old name goes with the next version", file=sys.stderr)
        unknown = [name for name in names if name not in known]
        if unknown:
            why = refused.get(unknown[0], "is unknown")
            hint = did_you_mean(unknown[0], known)
            raise argparse.ArgumentTypeError(f"{unknown[0]} {why}: expected some of {', '.join(known)}.{hint}")
        return names

    return parse
