"""What a step of each method takes and gives, before anything is trained.

Pass rates and lengths come from SOURCE (data of prepare-data, the run directory of a run in mode seq or est, or
rollouts that verl, TRL, prime-rl or slime have logged) or from --beta. Sampling is simulated on engines in virtual
time, and training takes its seconds by the token. A run's own engine is measured once with --calibrate. How well a
policy learns from such steps is not simulated: what is recommended rests on published results, and the lines under
the table say on which.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

from openrlhf_ada.cli.plan_tables import CONTROL, DEFAULT, EXPERIMENTS, RATES, Plan, show, show_log
from openrlhf_ada.cli.scenario import (
    ENGINE_FILE,
    Scenario,
    logged,
    namespace,
    recorded,
    settings_of,
    steps_of,
    synthetic,
)
from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.config.objective_notes import LARGEST_CAP, weights_of
from openrlhf_ada.config.presets import method_named, nested
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.data.prepared import measured_rates
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.reporting.other_logs import is_log, read_log
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, PROMPT_TOKENS
from openrlhf_ada.simulation.workload import SYNTHETIC, SyntheticRollouts

PROG = "openrlhf-ada plan"

RECORDED = "recorded"
"""The settings of the run that is the source, or of the log's."""

USUAL = (DEFAULT, CONTROL, "reinforce-ada-pos", "reinforce-ada-est", "grpo", "maxrl", "vip", "rated-pos", *EXPERIMENTS)

MOST_PROMPTS = 8192
"""Of a simulated step. Methods take up to half a minute for one of these."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status. Raises ValueError and OSError for bad input."""
    args = build_parser().parse_args(argv)
    if args.json is not None and not args.json.parent.is_dir():
        raise FileNotFoundError(f"--json {args.json}: there is no folder {args.json.parent}")
    if args.calibrate:
        return _calibrate(args.source)
    scenario = _scenario(args)
    names = args.methods or ([RECORDED] if scenario.flags else []) + list(USUAL)
    cases, plans = {name: _case(scenario, name, args.prompts) for name in names}, []
    with Counting() as progress:
        progress.count(f"simulating {', '.join(cases)}", "methods", len(cases))
        for name, case in cases.items():
            plans.append(_plan(scenario, name, *case))
            progress.advance()
    show(plans)
    if args.json:
        rows = [asdict(plan) | {"seconds": plan.seconds, "groups_a_minute": plan.groups_a_minute} for plan in plans]
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, nargs="?", metavar="SOURCE", help="Parquet file of prepare-data, run directory, or log")
    add("--calibrate", action="store_true", help=f"only measure the run's engine, on this machine: {ENGINE_FILE}")
    add("--score", metavar="NAME", help="of a log: the field with the score, where there are several")
    add(
        "--estimator",
        choices=["group_norm", "dr_grpo", "rloo"],
        help="of a log: what its advantages are (default: group_norm, and dr_grpo for prime-rl)",
    )
    add("--beta", type=_pair, metavar="A,B", help="pass rates are Beta(A, B) (default 1.5,1.5)")
    add("--tokens", type=_up_to(), metavar="N", help="mean length of an answer (default: as recorded, or 730)")
    add("--max_tokens", type=_up_to(), metavar="N", help="longest answer (default 4096, or more where --tokens is)")
    add(
        "--methods",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help=f"values of --ada_method, or `{RECORDED}`: the run's own settings (default {','.join(USUAL)})",
    )
    add("--prompts", type=_up_to(MOST_PROMPTS), metavar="N", help="of a step (default: as run or method have them)")
    add(
        "--machine",
        default="1.5b",
        metavar="{1.5b,7b,FILE}",
        help="whose seconds: 1.5b (Qwen2.5-Math-1.5B on 8 H100, default), 7b (Qwen2.5-Math-7B on 8 A100), a file of "
        "tests/gpu/first_run.sh; of a run, its own",
    )
    add("--engine", type=Path, metavar="FILE", help="what --calibrate has measured, instead of the machine's engine")
    add("--engines", type=_up_to(1000), metavar="N", help="number of engines (default: the machine's, or the run's)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser


def _up_to(most: int = sys.maxsize) -> Callable[[str], int]:
    """For argparse: a whole number from 1 on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            limit = f"from 1 to {most:,}" if most < sys.maxsize else "of at least 1"
            raise argparse.ArgumentTypeError(f"{text}: expected a whole number {limit}")
        return int(text)

    return parse


def _pair(text: str) -> tuple[float, float]:
    try:
        a, b = map(float, text.split(","))
    except ValueError:
        a = b = 0.0
    if not (0 < a < float("inf") and 0 < b < float("inf")):
        raise argparse.ArgumentTypeError(f"{text}: expected two numbers above 0, such as 0.5,3.5")
    return a, b


# -- planning ---------------------------------------------------------------------------------------------------------


def _scenario(args: argparse.Namespace) -> Scenario:
    """Raises ValueError for flags that do not go with the source."""
    source: Path | None = args.source
    is_run, of_log = source is not None and source.is_dir(), source is not None and is_log(source)
    for flag in ("beta", "tokens") if is_run or of_log else ("beta",):
        if source and getattr(args, flag) is not None:
            raise ValueError(f"--{flag}: the answers are those of {source}. Leave out one of the two")
    for flag in ("score", "estimator"):
        if not of_log and getattr(args, flag) is not None:
            raise ValueError(f"--{flag} is for a log of another trainer, and {source or 'no SOURCE'} is none")
    if source and of_log:
        log = read_log(source, args.score)
        show_log(source, log)
        usual = "dr_grpo" if log.trainer == "prime-rl" else "group_norm"
        return logged(log, args.estimator or usual, args.machine, args.engine, args.engines)
    if source and is_run:
        return recorded(source, args.engine, args.engines)
    return synthetic(_synthetic_answers(args), args.machine, args.engine, args.engines)


def _synthetic_answers(args: argparse.Namespace) -> SyntheticRollouts:
    rates, tokens = measured_rates(str(args.source), flag="SOURCE") if args.source else ((), None)
    a, b = args.beta or (SYNTHETIC.alpha, SYNTHETIC.beta)
    longer = (args.tokens or tokens or ANSWER_TOKENS) / ANSWER_TOKENS
    longest = args.max_tokens or round(SYNTHETIC.longest * max(longer, 1.0))
    return replace(SYNTHETIC, alpha=a, beta=b, rates=rates, median=SYNTHETIC.median * longer, longest=longest)


def _case(scenario: Scenario, name: str, asked: int | None) -> tuple[Settings, int, int]:
    """(settings, prompts of a step, epochs). Raises ValueError for what is not simulated."""
    flags = scenario.flags if name == RECORDED else namespace(nested(method_named(name).flags))
    if flags is None:
        raise ValueError(f"--methods {RECORDED}: name the folder of a run")
    prompts = int(asked or (scenario.flags or flags).rollout.batch_size)
    settings = settings_of(flags, prompts)
    if settings.refills or settings.reads_critic or settings.in_ppo:
        raise ValueError(
            f"--methods {name}: it replaces prompts or reads a critic, which is not simulated. Name others"
        )
    return settings, prompts, flags.train.max_epochs


def _plan(scenario: Scenario, name: str, settings: Settings, prompts: int, epochs: int) -> Plan:
    """Means of its steps."""
    machine, found = scenario.machine, steps_of(scenario, settings, prompts)
    trained = mean(step.trained_tokens + step.trained * PROMPT_TOKENS for step in found)
    raised = mean(step.raised_tokens + step.raised * PROMPT_TOKENS for step in found)
    whole = [settings.trains_wrong(epoch) or not settings.skips_zeros for epoch in range(epochs)]
    return Plan(
        method=name,
        prompts=prompts,
        rollouts=mean(step.rollouts for step in found),
        tokens=mean(step.tokens for step in found),
        wasted=sum(step.wasted_tokens for step in found) / sum(step.tokens for step in found),
        trained=mean(step.trained for step in found),
        signal=mean(step.signal_share for step in found),
        weights=_weights(settings),
        sampling_s=machine.sampling * mean(step.seconds for step in found),
        training_s=machine.per_token * sum(trained if is_whole else raised for is_whole in whole),
        fixed_s=machine.fixed,
    )


def _weights(settings: Settings) -> tuple[float, ...] | None:
    """Of prompts of RATES, beside one of pass rate 1/2; None where they cannot be enumerated in a moment."""
    if settings.policy or not settings.is_enumerable or settings.max_samples > LARGEST_CAP:
        return None
    *found, half = (weight.effective for weight in weights_of(settings, (*RATES, 0.5)))
    return tuple(value / half for value in found)


# -- measuring --------------------------------------------------------------------------------------------------------


def _calibrate(run_dir: Path | None) -> int:
    """Measure the run's engine with its model and data. Raises ValueError for a run whose engine cannot be asked."""
    if run_dir is None:
        raise ValueError("--calibrate needs the folder of a run: it measures that run's engine")
    from openrlhf_ada.cli.train_ppo_ray import quiet
    from openrlhf_ada.platforms.session import ray_session

    host = namespace(read_run(run_dir).config)
    if host.ada.mode == "off":
        raise ValueError(f"{run_dir} was made with --ada_mode off, whose engines are asked in another way")
    host.ada = settings_of(host, host.rollout.batch_size)
    if scored_by_model(host):
        raise ValueError(f"{run_dir} was scored by its reward model, which --calibrate does not start")
    host.ada_events = None
    with quiet(verbose=False):
        print("starting Ray and one engine", file=sys.stderr)
        with ray_session(host, verbose=False):
            from openrlhf_ada.trainer.sampling_only import calibrate

            note = lambda size, slots: print(f"measuring batches of {size} (of {slots})", file=sys.stderr)  # noqa: E731
            engine = calibrate(host, note)
    file = run_dir / ENGINE_FILE
    file.write_text(json.dumps(asdict(engine), indent=1), encoding="utf-8")
    print(file)
    return 0
