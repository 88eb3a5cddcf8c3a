"""Simulate the sampling of a step on engines in virtual time, for any policy, scheduler and number of engines.

With RUN_DIR, the workload is that run's and the engine is the one that --calibrate measured. Without RUN_DIR both are
synthetic: 512 prompts of all pass rates, long answers, and engines like a GPU's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from openrlhf_ada.cli.scenario import (
    ENGINE_FILE,
    SYNTHETIC_PROMPTS,
    Scenario,
    at_least,
    check_folders,
    names_of,
    namespace,
    recorded,
    run_settings,
    scenario_settings,
    steps_of,
    synthetic,
)
from openrlhf_ada.config import program
from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.visible import error_text
from openrlhf_ada.core.scheduling import SCHEDULERS, SchedulerName
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.simulation.forecast import Forecast
from openrlhf_ada.simulation.workload import SYNTHETIC

PROG = "openrlhf-ada simulate"

WIDTH = 110
"""Columns of the table, in a narrower terminal too."""
POLICIES = ("recorded", "uniform", "pos", "balance", *METHODS)


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    try:
        if args.calibrate:
            return _calibrate(args)
        check_folders(json=args.json)
        if args.run_dir:
            scenario = recorded(
                args.run_dir, args.engine, args.prompts, args.steps, f"{program.called()} simulate --calibrate"
            )
        else:
            scenario = synthetic(SYNTHETIC, args.engine, args.prompts or SYNTHETIC_PROMPTS)
        rows = list(_simulate(scenario, args))
    except (ValueError, FileNotFoundError) as error:
        print(f"{PROG}: error: {error_text(error)}", file=sys.stderr)
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
        type=names_of(SCHEDULERS),
        default=list(SCHEDULERS),
        metavar="NAME,...",
        help="schedulers to compare (default: all)",
    )
    add(
        "--policies",
        type=names_of(POLICIES),
        default=None,
        metavar="NAME,...",
        help="recorded (the run's own), uniform, pos, balance, or names of --ada_method, without the replacing of "
        "prompts (default: recorded,uniform; without RUN_DIR: balance,uniform)",
    )
    add("--prompts", type=at_least(1), metavar="N", help="prompts per step (default: as in the run)")
    add(
        "--steps",
        type=at_least(1),
        default=8,
        metavar="N",
        help="number of last steps of RUN_DIR to replay; without RUN_DIR, steps of a method that learns from step to "
        "step (default 8)",
    )
    add("--speculation", type=at_least(0), metavar="N", help="as --ada_speculation (default: as in the run)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 1000 for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers from 1 to 1000")
    return [int(part) for part in parts]


# -- simulating ------------------------------------------------------------------------------------------------------


def _simulate(scenario: Scenario, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    policies = args.policies or (["recorded", "uniform"] if args.run_dir else ["balance", "uniform"])
    for num_engines in args.engines or [scenario.num_engines]:
        cluster = scenario.cluster(num_engines, args.speculation)
        for name in policies:
            settings = scenario_settings(scenario, name)
            # Uniform sampling needs one wave only, so all schedulers are the same.
            only_rounds = name == "uniform" or settings.decides_together
            schedulers: list[SchedulerName] = ["rounds"] if only_rounds else args.schedulers
            for scheduler in schedulers:
                steps = steps_of(scenario, settings, scheduler, cluster, args.steps)
                row = {"policy": name, "scheduler": scheduler, "engines": num_engines} | _mean(steps)
                yield row | _with_replacing(scenario, row)


def _with_replacing(scenario: Scenario, row: dict[str, Any]) -> dict[str, float]:
    """For policies that replace prompts of one outcome by fresh ones, which is not simulated: every prompt that is
    trained costs the rollouts of 1 / signal_share prompts."""
    name, signal = row["policy"], row["signal_share"]
    method = METHODS.get(name)
    own = scenario.settings.unresolved if name == "recorded" else None
    replaces = (method.flags.get("ada.unresolved") if method else own) == "refill"
    return {"rollouts_per_trained_prompt": row["rollouts_per_prompt"] / signal} if replaces and signal else {}


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
    console.width = max(console.width, WIDTH)
    console.print(table)
    console.print(
        "\nMean of the steps. ideal s: sampling time if it were known from the start which rollouts are needed. "
        "wasted: share of the tokens that were not needed. signal: share of groups with both outcomes."
    )
    for name, spent in {row["policy"]: row.get("rollouts_per_trained_prompt") for row in rows}.items():
        if spent is not None:
            console.print(
                f"{name} replaces prompts of one outcome, which is not simulated: it draws about {spent:.3g} rollouts "
                "for every prompt that it trains."
            )
    if scenario.recorded_s is not None:
        run = f"recorded ({scenario.settings.scheduler}, {scenario.num_engines} engines)"
        console.print(f"{run}: {scenario.recorded_s:.3g} s of sampling per step")


# -- measuring --------------------------------------------------------------------------------------------------------


def _calibrate(args: argparse.Namespace) -> int:
    if args.run_dir is None:
        raise ValueError("--calibrate needs a RUN_DIR: it measures that run's engine with its model and data")
    from openrlhf_ada.cli.train_ppo_ray import quiet
    from openrlhf_ada.platforms.session import ray_session

    host = namespace(read_run(args.run_dir).config)
    host.ada = run_settings(host, args.run_dir)
    if host.ada.mode == "off":
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
