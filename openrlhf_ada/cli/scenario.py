"""What is planned: answers, engines and seconds of training, of a recorded run or made up, and methods' settings."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from openrlhf_ada.config import program
from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.presets import method_named, nested
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.estimators import spread_of_rates
from openrlhf_ada.core.scheduling import SchedulerName
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.reporting.other_logs import Log
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.step_seconds import ENGINES, PROMPT_TOKENS, STEP_MODELS, StepModel
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel
from openrlhf_ada.simulation.workload import SYNTHETIC, SyntheticRollouts

Read = TypeVar("Read")

ENGINE_FILE = "engine.json"

LEARNING_STEPS = 3
"""Steps of a method that learns from step to step, and last steps of a run whose answers are looked at."""

_TIMES = ("ada/kept", "ada/kept_tokens", "ada/step_s", "timing/generation")
"""What a run's seconds of training are worked out from."""


@dataclass(frozen=True)
class Scenario:
    """Answers, engines, and what a step takes beside sampling. `flags`: of the run, if it is one."""

    answers: SyntheticRollouts
    cluster: Cluster
    machine: StepModel
    flags: SimpleNamespace | None = None


def recorded(run_dir: Path, file: Path | None, num_engines: int | None) -> Scenario:
    """Of a run in mode seq or est. `file`: of the engine; None: the run's own. Raises ValueError or OSError where the
    run does not have what it takes."""
    run = read_run(run_dir)
    flags = namespace(run.config)
    settings = settings_of(flags, flags.rollout.batch_size)
    file = file or run_dir / ENGINE_FILE
    if not file.exists():
        command = f"{program.called()} plan --calibrate {run_dir}"
        raise FileNotFoundError(f"no engine was measured ({file}): run `{command}` first")
    # A measured engine needs no factor.
    machine = StepModel(sampling=1.0, per_token=_seconds_per_token(run) / flags.train.max_epochs, fixed=0.0)
    cluster = _cluster(read_engine(file), num_engines or flags.vllm.num_engines, settings.speculation)
    return Scenario(_answers(run, settings.positive_above), cluster, machine, flags)


def synthetic(answers: SyntheticRollouts, machine: str, file: Path | None, num_engines: int | None) -> Scenario:
    """`machine`: one of STEP_MODELS, or a file of tests/gpu/first_run.sh. `file`: of an engine that was measured,
    instead of the machine's. Raises ValueError or OSError for another file."""
    if machine not in STEP_MODELS and not Path(machine).is_file():
        raise FileNotFoundError(f"--machine {machine}: neither {' nor '.join(STEP_MODELS)}, nor a file")
    named = (GPU_LIKE, ENGINES, STEP_MODELS[machine]) if machine in STEP_MODELS else None
    engine, count, seconds = named or read_machine(Path(machine))
    if file:
        engine, seconds = read_engine(file), replace(seconds, sampling=1.0)
    return Scenario(answers, _cluster(engine, num_engines or count), seconds)


def logged(log: Log, estimator: str, machine: str, file: Path | None, num_engines: int | None) -> Scenario:
    """Of another trainer's log: pass rates and lengths of all its steps; seconds as `synthetic` has them. `estimator`:
    of its advantages."""
    right = [[rollout.score > log.positive_above for rollout in group] for group in log.groups.values()]
    scenario = synthetic(_as_answered(right, [r.tokens for r in log.rollouts]), machine, file, num_engines)
    flags = namespace(nested(method_named("grpo").flags))
    flags.rollout.n_samples_per_prompt, flags.algo.advantage.estimator = log.usual_size, estimator
    flags.rollout.batch_size = max(1, round(len(log.groups) / log.steps))
    return replace(scenario, flags=flags)


def _cluster(engine: EngineModel, num_engines: int, speculation: int | None = None) -> Cluster:
    automatic = engine.slots if engine.speculation is None else engine.speculation
    return Cluster(num_engines, engine, automatic if speculation is None else speculation)


def _answers(run: Run, positive_above: float) -> SyntheticRollouts:
    """Pass rates and lengths of the last steps. Raises ValueError where the run has no record of its rollouts."""
    outcomes: dict[int, dict[Any, list[bool]]] = defaultdict(lambda: defaultdict(list))
    tokens: dict[int, list[float]] = defaultdict(list)
    for sample in run.samples():
        outcomes[sample["step"]][sample["prompt_id"]].append(sample["metric"] > positive_above)
        tokens[sample["step"]].append(sample["tokens"])
    last = sorted(tokens)[-LEARNING_STEPS:]
    if not last:
        raise ValueError(f"{run.run_dir} has no record of single rollouts: it was not made with --ada_mode seq or est")
    visits = [visit for step in last for visit in outcomes[step].values()]
    return _as_answered(visits, [*chain.from_iterable(tokens[step] for step in last)])


def _as_answered(visits: Sequence[Sequence[bool]], tokens: Sequence[float]) -> SyntheticRollouts:
    """Answers like these. `visits`: of each prompt, which were right; `tokens`: of all."""
    rates = tuple(spread_of_rates([sum(visit) for visit in visits], [len(visit) for visit in visits]).tolist())
    lengths = np.maximum(tokens, 1)
    return replace(
        SYNTHETIC,
        rates=rates,
        median=float(np.median(lengths)),
        spread=float(np.log(lengths).std()),
        longest=int(lengths.max()),
    )


def _seconds_per_token(run: Run) -> float:
    """Seconds of a run's steps outside sampling, for each trained token. Raises ValueError where none was recorded."""
    rows = [row for row in run.steps if all(row.get(name) is not None for name in _TIMES)]
    tokens = sum(row["ada/kept_tokens"] + row["ada/kept"] * PROMPT_TOKENS for row in rows)
    if not tokens:
        raise ValueError(
            f"{run.run_dir} has no finished step of --ada_mode seq or est. Name a run that has one, or give pass "
            "rates by --beta"
        )
    return sum(row["ada/step_s"] - row["timing/generation"] for row in rows) / tokens


def read_engine(file: Path) -> EngineModel:
    """An engine as --calibrate writes it. Raises ValueError for another file."""
    return _read(file, "an engine as --calibrate writes it", _engine)


def read_machine(file: Path) -> tuple[EngineModel, int, StepModel]:
    """(engine, how many, training) as tests/gpu/first_run.sh measures them. Raises ValueError or OSError."""
    return _read(file, "a machine as tests/gpu/first_run.sh measures it", _machine)


def _read(file: Path, what: str, form: Callable[[Any], Read]) -> Read:
    try:
        return form(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{file} does not describe {what}: {error!r}") from error


def _engine(figures: Any) -> EngineModel:
    return EngineModel(**figures | {name: tuple(figures[name]) for name in ("batch_sizes", "step_seconds")})


def _machine(figures: Any) -> tuple[EngineModel, int, StepModel]:
    if "parts" in figures and "step" not in figures:
        raise ValueError("not everything is measured: call that again, which goes on")
    step = {name: float(figures["step"][name]) for name in ("per_token", "fixed")}
    return _engine(figures["engine"]), int(figures["engines"]), StepModel(sampling=1.0, **step)


def namespace(flags: Any) -> Any:
    """Recorded flags, by section, as OpenRLHF's parser gives them."""
    if isinstance(flags, dict):
        return SimpleNamespace(**{name: namespace(value) for name, value in flags.items()})
    return flags


def settings_of(flags: SimpleNamespace, prompts: int) -> Settings:
    """By the flags of a run or a method, for steps of so many prompts. Mode `off` becomes a fixed number of rollouts.

    Raises ValueError for the flags of another version of the package.
    """
    n, ours = flags.rollout.n_samples_per_prompt, vars(flags.ada)
    if unknown := sorted(set(ours) - {f.name for f in fields(AdaConfig)}):
        raise ValueError(f"the run is of another version of openrlhf_ada: there is no --ada_{unknown[0]} here")
    if ours["mode"] == "off":
        ours = {"mode": "seq", "exit": "fixed", "max_samples": n, "select": "all"}
    return resolve(AdaConfig(**ours), n=n, advantage=flags.algo.advantage.estimator, batch=prompts)


def steps_of(scenario: Scenario, settings: Settings, prompts: int) -> list[Forecast]:
    """Steps of so many prompts under these settings: one, or LEARNING_STEPS where the policy learns.

    There are --ada_candidates times as many prompts.
    """
    policy = make_policy(settings)
    chooser = make_chooser(settings, policy, settings.candidates * prompts, seed=0)
    found: list[Forecast] = []
    for step in range(LEARNING_STEPS if settings.remembers else 1):
        rows = {step * prompts + i: choice.row for i, choice in enumerate(chooser.take(prompts))}
        pools = [PromptPool(key, row=row) for key, row in rows.items()]
        answer = lambda request, rows=rows: scenario.answers.visit(request, rows[request.key])  # noqa: E731
        scheduler = cast("SchedulerName", settings.scheduler)
        skips = settings.skips_zeros
        found.append(forecast(policy, pools, answer, scheduler, scenario.cluster, skips_zeros=skips))
        chooser.end_step(pools)
    return found
