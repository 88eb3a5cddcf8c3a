"""Simulate the sampling of a step on engines in virtual time, for any policy, scheduler and number of engines.

With RUN_DIR, the workload is that run's and the engine is the one that --calibrate measured. Without RUN_DIR both are
synthetic: 512 prompts of all pass rates, long answers, and engines like a GPU's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import AdaConfig, from_namespace
from openrlhf_ada.config.score_rules import scored_by_model
from openrlhf_ada.config.settings import Settings, make_policy, positive_above, resolve
from openrlhf_ada.core.scheduling import SCHEDULERS, SchedulerName
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel, SampleOf
from openrlhf_ada.simulation.workload import SYNTHETIC, RecordedRollouts, recorded_steps

PROG = "openrlhf-ada simulate"
ENGINE_FILE = "engine.json"

SYNTHETIC_PROMPTS, SYNTHETIC_ENGINES = 512, 8

POLICIES = ("recorded", "uniform", "pos", "balance", *METHODS)


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
    """What is simulated. `host`: those of OpenRLHF's flags that policies read; `recorded_s`: seconds of sampling per
    step that the run took, if it is one."""

    config: AdaConfig
    host: SimpleNamespace
    steps: Sequence[Step]
    engine: EngineModel
    num_engines: int
    recorded_s: float | None = None


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    try:
        if args.calibrate:
            return _calibrate(args)
        scenario = _recorded(args) if args.run_dir else _synthetic(args)
        rows = list(_simulate(scenario, args))
    except (ValueError, FileNotFoundError) as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    _show(scenario, rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run_dir", type=Path, nargs="?", metavar="RUN_DIR", help="run directory of a run with --ada_mode seq or est")
    add("--calibrate", action="store_true", help=f"measure RUN_DIR's engine on this machine: RUN_DIR/{ENGINE_FILE}")
    add("--engine", type=Path, metavar="FILE", help=f"file with a measured engine (default: RUN_DIR/{ENGINE_FILE})")
    add(
        "--engines",
        type=_counts,
        metavar="N,...",
        help="numbers of engines to compare, 1 to 1000 (default: as in the run)",
    )
    add(
        "--schedulers",
        type=_names(SCHEDULERS),
        default=list(SCHEDULERS),
        metavar="NAME,...",
        help="schedulers to compare (default: all)",
    )
    add(
        "--policies",
        type=_names(POLICIES),
        default=None,
        metavar="NAME,...",
        help="recorded (the run's own), uniform, pos, balance, or names of --ada_method, without the replacing of "
        "prompts (default: recorded,uniform; without RUN_DIR: balance,uniform)",
    )
    add("--prompts", type=_at_least(1), metavar="N", help="prompts per step (default: as in the run)")
    add(
        "--steps",
        type=_at_least(1),
        default=8,
        metavar="N",
        help="number of last steps of RUN_DIR to replay; without RUN_DIR, steps of a method that learns from step to "
        "step (default 8)",
    )
    add("--speculation", type=_at_least(0), metavar="N", help="as --ada_speculation (default: as in the run)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 1000 for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers from 1 to 1000")
    return [int(part) for part in parts]


def _at_least(least: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least {least}")
        return int(text)

    return parse


def _names(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is unknown: expected some of {', '.join(known)}")
        return names

    return parse


# -- what is simulated ------------------------------------------------------------------------------------------------


def _recorded(args: argparse.Namespace) -> Scenario:
    run = read_run(args.run_dir)
    host = namespace(run.config)
    config = _ada_flags(host, args.run_dir)
    if resolve(config, host).reads_critic and "recorded" in (args.policies or ["recorded"]):
        raise ValueError("the run's pass rates come from a critic, which is not simulated: try --policies uniform")
    file = args.engine or args.run_dir / ENGINE_FILE
    if not file.exists():
        raise FileNotFoundError(f"no engine was measured ({file}): run `{PROG} --calibrate {args.run_dir}` first")
    taken = list(recorded_steps(run))[-args.steps :]
    steps: list[Step] = []
    for recorded in taken:
        step = recorded.with_prompts(args.prompts, host.train.seed) if args.prompts else recorded
        above = positive_above(config)
        answer = RecordedRollouts(step.rollouts, positive_above=above, replay=not args.prompts, seed=host.train.seed)
        steps.append(Step(list(step.rollouts), list(step.rows.values()), answer))
    return Scenario(
        config, host, steps, _read_engine(file), host.vllm.num_engines, _seconds(run, [step.step for step in taken])
    )


def _synthetic(args: argparse.Namespace) -> Scenario:
    keys = range(args.prompts or SYNTHETIC_PROMPTS)
    rollout = {"n_samples_per_prompt": 4, "batch_size": len(keys)}
    host = namespace({"rollout": rollout, "algo": {"advantage": {"estimator": "dr_grpo"}}})
    engine = _read_engine(args.engine) if args.engine else GPU_LIKE
    config = AdaConfig(mode="seq", wave=8, max_samples=32)
    return Scenario(config, host, [Step(keys, keys, SYNTHETIC)], engine, SYNTHETIC_ENGINES)


def _ada_flags(host: SimpleNamespace, run_dir: Path) -> AdaConfig:
    unknown = sorted(set(vars(host.ada)) - {f.name for f in fields(AdaConfig)})
    if unknown:
        raise ValueError(f"{run_dir} is of another version of openrlhf_ada: there is no --ada_{unknown[0]} here")
    return from_namespace(host.ada)


def _seconds(run: Run, steps: Sequence[int]) -> float:
    return mean(row["timing/generation"] for row in run.steps if row["step"] in steps)


def _read_engine(file: Path) -> EngineModel:
    try:
        figures: dict[str, Any] = dict(json.loads(file.read_text(encoding="utf-8")))
        for name in ("batch_sizes", "step_seconds"):
            figures[name] = tuple(figures[name])
        return EngineModel(**figures)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} does not describe an engine as --calibrate writes it: {error!r}") from error


def namespace(flags: Any) -> Any:
    """A run's flags as OpenRLHF's parser gives them."""
    if isinstance(flags, dict):
        return SimpleNamespace(**{name: namespace(value) for name, value in flags.items()})
    return flags


# -- simulating -------------------------------------------------------------------------------------------------------


def _simulate(scenario: Scenario, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    policies = args.policies or (["recorded", "uniform"] if args.run_dir else ["balance", "uniform"])
    for num_engines in args.engines or [scenario.num_engines]:
        engine = scenario.engine
        wanted = args.speculation if args.speculation is not None else scenario.config.speculation
        automatic = engine.slots if engine.speculation is None else engine.speculation
        cluster = Cluster(num_engines, engine, automatic if wanted is None else wanted)
        for name in policies:
            settings = _settings(scenario, name)
            # Uniform sampling needs one wave only, so all schedulers are the same.
            only_rounds = name == "uniform" or settings.decides_together
            schedulers: list[SchedulerName] = ["rounds"] if only_rounds else args.schedulers
            for scheduler in schedulers:
                if settings.remembers and not args.run_dir:
                    steps = list(_learning(settings, scheduler, cluster, len(scenario.steps[0].keys), args.steps))
                else:
                    policy = make_policy(settings)
                    steps = [forecast(policy, s.pools(), s.answer, scheduler, cluster) for s in scenario.steps]
                yield {"policy": name, "scheduler": scheduler, "engines": num_engines} | _mean(steps)


def _learning(
    settings: Settings, scheduler: SchedulerName, cluster: Cluster, size: int, num_steps: int
) -> Iterator[Forecast]:
    """Steps of `size` prompts of a method that remembers. There are --ada_candidates times as many made-up ones."""
    policy = make_policy(settings)
    chooser = make_chooser(settings, policy, settings.candidates * size, seed=0)
    for step in range(num_steps):
        rows = {step * size + i: choice.row for i, choice in enumerate(chooser.take(size))}
        pools = [PromptPool(key, row=row) for key, row in rows.items()]
        answer = lambda request, rows=rows: SYNTHETIC.visit(request, rows[request.key])  # noqa: E731
        yield forecast(policy, pools, answer, scheduler, cluster)
        chooser.end_step(pools)


def _settings(scenario: Scenario, name: str) -> Settings:
    if name not in METHODS:
        return resolve(_configured(scenario, name), scenario.host)
    flags = METHODS[name].flags
    n, estimator = flags["rollout.n_samples_per_prompt"], flags["algo.advantage.estimator"]
    ours = {flag.removeprefix("ada."): value for flag, value in flags.items() if flag.startswith("ada.")}
    if ours["mode"] == "off":
        ours = {"mode": "seq", "exit": "fixed", "max_samples": n, "select": "all"}
    rollout = {"n_samples_per_prompt": n, "batch_size": scenario.host.rollout.batch_size}
    settings = resolve(
        AdaConfig(**ours), namespace({"rollout": rollout, "algo": {"advantage": {"estimator": estimator}}})
    )
    if settings.reads_critic:
        raise ValueError(f"--policies {name}: its pass rates come from a critic, which is not simulated")
    return settings


def _configured(scenario: Scenario, name: str) -> AdaConfig:
    config = scenario.config
    if name == "recorded":
        return config
    plain = AdaConfig(mode="seq", wave=config.wave, max_samples=config.max_samples)
    if name == "uniform":
        return replace(plain, exit="fixed", max_samples=scenario.host.rollout.n_samples_per_prompt)
    return replace(plain, exit=name)


def _mean(steps: Sequence[Forecast]) -> dict[str, float]:
    """Means per step; shares over all steps."""
    tokens = sum(step.tokens for step in steps)
    return {
        "steps": len(steps),
        "seconds": mean(step.seconds for step in steps),
        "work_seconds": mean(step.work_seconds for step in steps),
        "floor_seconds": mean(step.floor_seconds for step in steps),
        "rollouts_per_prompt": sum(step.rollouts for step in steps) / sum(step.prompts for step in steps),
        "tokens": tokens / len(steps),
        "waste_share": sum(step.wasted_tokens for step in steps) / tokens,
        "signal_share": mean(step.signal_share for step in steps),
    }


def _show(scenario: Scenario, rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for column in ("policy", "scheduler"):
        table.add_column(column, no_wrap=True)
    for column in ("steps", "engines", "sampling s", "ideal s", "rollouts/prompt", "tokens", "wasted", "signal"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        figures = {name: f"{row[name]:.3g}" for name in ("seconds", "work_seconds", "rollouts_per_prompt")}
        figures |= {name: f"{row[name]:.0%}" for name in ("waste_share", "signal_share")}
        names = [row["policy"], row["scheduler"], str(row["steps"]), str(row["engines"])]
        times = [figures["seconds"], figures["work_seconds"], figures["rollouts_per_prompt"]]
        table.add_row(*names, *times, f"{row['tokens']:,.0f}", figures["waste_share"], figures["signal_share"])
    console = Console()
    console.print(table)
    console.print(
        "\nMean of the steps. ideal s: sampling time if it were known from the start which rollouts are needed. "
        "wasted: share of the tokens that were not needed. signal: share of groups with both outcomes."
    )
    if scenario.recorded_s is not None:
        run = f"recorded ({scenario.config.scheduler}, {scenario.num_engines} engines)"
        console.print(f"{run}: {scenario.recorded_s:.3g} s of sampling per step")


# -- measuring --------------------------------------------------------------------------------------------------------


def _calibrate(args: argparse.Namespace) -> int:
    if args.run_dir is None:
        raise ValueError("--calibrate needs a RUN_DIR: it measures that run's engine with its model and data")
    from openrlhf_ada.cli.train_ppo_ray import quiet
    from openrlhf_ada.platforms.session import ray_session

    host = namespace(read_run(args.run_dir).config)
    if _ada_flags(host, args.run_dir).mode == "off":
        raise ValueError(f"{args.run_dir} was made with --ada_mode off, whose engines are asked in another way")
    if scored_by_model(host):
        raise ValueError(f"{args.run_dir} was scored by its reward model, which --calibrate does not start")
    host.ada_events = None
    with quiet(verbose=False):
        print("starting Ray and one engine", file=sys.stderr)
        with ray_session(host, verbose=False):
            from openrlhf_ada.trainer.sampling_only import calibrate

            note = lambda size, slots: print(f"measuring batches of {size} (of {slots})", file=sys.stderr)  # noqa: E731
            engine = calibrate(host, note)
    file = args.engine or args.run_dir / ENGINE_FILE
    file.write_text(json.dumps(asdict(engine), indent=1), encoding="utf-8")
    print(file)
    return 0
