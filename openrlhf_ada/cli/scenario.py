"""What is simulated: prompts and answers of a recorded run or synthetic ones, engines, and a method's settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from types import MappingProxyType, SimpleNamespace
from typing import Any

from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.nearest import did_you_mean
from openrlhf_ada.config.presets import METHODS, OLD_NAMES
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.scheduling import SchedulerName
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel, SampleOf
from openrlhf_ada.simulation.workload import RecordedRollouts, SyntheticRollouts, recorded_steps

ENGINE_FILE = "engine.json"

SYNTHETIC_PROMPTS, SYNTHETIC_ENGINES = 512, 8


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
    """What is simulated. `batch`: prompts in a step; `recorded_s`: seconds of sampling per
    step that the run took, if it is one."""

    settings: Settings
    batch: int
    steps: Sequence[Step]
    engine: EngineModel
    num_engines: int
    recorded_s: float | None = None

    def cluster(self, num_engines: int, speculation: int | None) -> Cluster:
        """So many of the engines. `speculation`: None for the run's own, or what the engine makes of it."""
        wanted = self.settings.speculation if speculation is None else speculation
        automatic = self.engine.slots if self.engine.speculation is None else self.engine.speculation
        return Cluster(num_engines, self.engine, automatic if wanted is None else wanted)


def recorded(run_dir: Path, file: Path | None, prompts: int | None, num_steps: int, calibrate: str) -> Scenario:
    """The last steps of a run, or as many prompts of each as asked for. `file`: of the engine, beside the run's own.

    `calibrate`: the command that measures an engine, for the error where none was.
    """
    run = read_run(run_dir)
    host = namespace(run.config)
    settings = host.ada = run_settings(host, run_dir)
    file = file or run_dir / ENGINE_FILE
    if not file.exists():
        raise FileNotFoundError(f"no engine was measured ({file}): run `{calibrate} {run_dir}` first")
    taken = list(recorded_steps(run))[-num_steps:]
    steps: list[Step] = []
    for one in taken:
        step = one.with_prompts(prompts, host.train.seed) if prompts else one
        seed, above = host.train.seed, settings.positive_above
        answer = RecordedRollouts(step.rollouts, positive_above=above, replay=not prompts, seed=seed)
        steps.append(Step(list(step.rollouts), list(step.rows.values()), answer))
    seconds = _seconds(run, [step.step for step in taken])
    return Scenario(settings, host.rollout.batch_size, steps, read_engine(file), host.vllm.num_engines, seconds)


def synthetic(answer: SyntheticRollouts, file: Path | None, prompts: int) -> Scenario:
    """One step of so many prompts, which answer so. `file`: of the engine; None: one like a GPU's."""
    keys = range(prompts)
    engine = read_engine(file) if file else GPU_LIKE
    given = AdaConfig(mode="seq", wave=8, max_samples=32)
    settings = resolve(given, n=4, advantage="dr_grpo", batch=prompts)
    return Scenario(settings, prompts, [Step(keys, keys, answer)], engine, SYNTHETIC_ENGINES)


def run_settings(host: SimpleNamespace, run_dir: Path) -> Settings:
    """Of a run, by its recorded flags. Raises ValueError for a run of another version of the package."""
    unknown = sorted(set(vars(host.ada)) - {f.name for f in fields(AdaConfig)})
    if unknown:
        raise ValueError(f"{run_dir} is of another version of openrlhf_ada: there is no --ada_{unknown[0]} here")
    n, advantage = host.rollout.n_samples_per_prompt, host.algo.advantage.estimator
    return resolve(AdaConfig(**vars(host.ada)), n=n, advantage=advantage, batch=host.rollout.batch_size)


def _seconds(run: Run, steps: Sequence[int]) -> float:
    return mean(row["timing/generation"] for row in run.steps if row["step"] in steps)


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
    scenario: Scenario, settings: Settings, scheduler: SchedulerName, cluster: Cluster, num_steps: int
) -> list[Forecast]:
    """The scenario's steps under these settings; `num_steps` steps of synthetic prompts where the policy learns."""
    first = scenario.steps[0].answer
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


def scenario_settings(scenario: Scenario, name: str) -> Settings:
    """The run's own (`recorded`), uniform sampling, an exit rule, or a method."""
    if name in METHODS:
        return method_settings(name, scenario.batch)
    settings = _configured(scenario, name)
    if settings.reads_critic:
        raise ValueError("the run's pass rates come from a critic, which is not simulated: try --policies uniform")
    return settings


def _configured(scenario: Scenario, name: str) -> Settings:
    own = scenario.settings
    if name == "recorded":
        return own
    plain = AdaConfig(mode="seq", wave=own.wave, max_samples=own.given.max_samples)
    if name == "uniform":
        plain = replace(plain, max_samples=own.group_size)
    plain = replace(plain, exit="fixed" if name == "uniform" else name)
    return resolve(plain, n=own.group_size, advantage=own.advantage, batch=scenario.batch)


# -- flags of the commands that simulate ----------------------------------------------------------------------------


def at_least(least: int) -> Callable[[str], int]:
    """For argparse: a whole number that is not below `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least {least}")
        return int(text)

    return parse


def check_folders(**files: Path | None) -> None:
    """Of files to be written, by flag, before anything is simulated. Raises FileNotFoundError."""
    for flag, file in files.items():
        if file is not None and not file.parent.is_dir():
            raise FileNotFoundError(f"--{flag} {file}: there is no folder {file.parent}")


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
