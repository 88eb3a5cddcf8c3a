"""What a step of each method takes and gives, before anything is trained.

Pass rates and lengths come from SOURCE (data of prepare-data, or the run directory of a run in mode seq or est) or
from --beta. Sampling is simulated on engines in virtual time, and training takes its seconds by the token. A run's own
engine is measured once with --calibrate. How well a policy learns from such steps is not simulated: what is
recommended rests on published results, and the lines under the table say on which.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean

from openrlhf_ada.cli.plan_tables import CONTROL, DEFAULT, EXPERIMENTS, RATES, Plan, show
from openrlhf_ada.cli.scenario import (
    ENGINE_FILE,
    Scenario,
    at_least,
    method_settings,
    names_of,
    namespace,
    read_engine,
    recorded,
    run_settings,
    steps_of,
    synthetic,
)
from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.config.objective_notes import LARGEST_CAP, weights_of
from openrlhf_ada.config.presets import METHODS, Flags
from openrlhf_ada.core.scheduling import SCHEDULERS, SchedulerName
from openrlhf_ada.data.prepared import measured_rates
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, PROMPT_TOKENS, STEP_MODELS, StepModel
from openrlhf_ada.simulation.workload import SYNTHETIC, SyntheticRollouts

PROG = "openrlhf-ada plan"

RECORDED = "recorded"
"""The settings of the run that is the source."""

USUAL = (DEFAULT, CONTROL, "reinforce-ada-pos", "reinforce-ada-est", "grpo", "maxrl", "vip", "rated-pos", *EXPERIMENTS)

PLANNED = tuple(
    name
    for name, method in METHODS.items()
    if method.flags.get("ada.unresolved") != "refill"
    and method.flags.get("ada.estimator") != "critic"
    and method.flags["algo.advantage.estimator"] != "gae"
)
"""Methods that replace no prompts and read no critic: what others take is not simulated."""

NOT_PLANNED = dict.fromkeys(set(METHODS) - set(PLANNED), "replaces prompts or reads a critic, which is not simulated")

LEARNING_STEPS = 3
"""Steps of a method that learns from step to step, and last steps of a recorded run."""

CUT = 0.9
"""Least share of --tokens that is left where long answers are cut off."""

MOST_PROMPTS = 8192
"""Of a simulated step. Methods take up to half a minute for one of these."""

_TIMES = ("ada/kept", "ada/kept_tokens", "ada/step_s", "timing/generation")
"""What a run's seconds of training are worked out from."""

_OF_BUDGET = """
For {seconds:g} s a step. They make different numbers of updates: compare runs at equal ones (--train.batch_size)."""

TRIED, CLOSE = 5, 0.02
"""Numbers of prompts that are tried to meet a budget; how close is enough."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status. Raises ValueError and OSError for bad input."""
    args = build_parser().parse_args(argv)
    if args.json is not None and not args.json.parent.is_dir():
        raise FileNotFoundError(f"--json {args.json}: there is no folder {args.json.parent}")
    if args.calibrate:
        return _calibrate(args.source)
    planner = Planner(args)
    cases, plans = list(planner.cases()), []
    with Counting() as progress:
        progress.count("simulating", "cases", len(cases))
        for case in cases:
            plans.append(planner.planned(case))
            progress.advance()
    show(plans)
    if args.budget:
        print("\n".join([_OF_BUDGET.format(seconds=args.budget), *map(_flags, plans)]))
    if args.json:
        rows = [asdict(plan) | {"seconds": plan.seconds} for plan in plans]
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, nargs="?", metavar="SOURCE", help="Parquet file of prepare-data, or run directory")
    add(
        "--calibrate", action="store_true", help=f"only measure the run's engine on this machine: SOURCE/{ENGINE_FILE}"
    )
    add("--beta", type=_pair, metavar="A,B", help="pass rates are Beta(A, B) (default 1.5,1.5)")
    add("--tokens", type=at_least(1), metavar="N", help="mean length of an answer (default: as recorded, or 730)")
    add("--max_tokens", type=at_least(1), default=SYNTHETIC.longest, metavar="N", help="longest answer (default 4096)")
    add(
        "--methods",
        type=names_of((RECORDED, *PLANNED), NOT_PLANNED),
        metavar="NAME,...",
        help=f"names of --ada_method, or `{RECORDED}`: the run's own settings (default {','.join(USUAL)}; all: every "
        "one that can be planned)",
    )
    add("--prompts", type=at_least(1), metavar="N", help="prompts of a step (default: as the method has them)")
    add(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help="take as many prompts as a step of so many seconds has time for, and show the flags",
    )
    add(
        "--machine",
        choices=STEP_MODELS,
        default="1.5b",
        help="whose seconds: 1.5b (Qwen2.5-Math-1.5B on 8 H100, default) or 7b (Qwen2.5-Math-7B on 8 A100); of a run, "
        "its own",
    )
    add(
        "--engine", type=Path, metavar="FILE", help="an engine that --calibrate has measured, instead of the machine's"
    )
    add("--engines", type=_counts, metavar="N,...", help="numbers of engines (default 8; with a run: as there)")
    add(
        "--schedulers",
        type=names_of(SCHEDULERS),
        default=["stream"],
        metavar="NAME,...",
        help=f"values of --ada_scheduler: {','.join(SCHEDULERS)} (default stream)",
    )
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 1000 for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers from 1 to 1000")
    return [int(part) for part in parts]


def _pair(text: str) -> tuple[float, float]:
    a, b = (_seconds(part) for part in text.split(",")) if text.count(",") == 1 else (None, None)
    if a is None or b is None:
        raise argparse.ArgumentTypeError(f"{text}: expected two numbers above 0, such as 0.5,3.5")
    return a, b


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


# -- planning ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A line of the table. `engines`: None for as many as the source has."""

    method: str
    scheduler: SchedulerName
    engines: int | None

    def __str__(self) -> str:
        return self.method


class Planner:
    """Steps of methods on one machine. Raises ValueError for flags that do not go with the source."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._is_run = args.source is not None and args.source.is_dir()
        self._names: list[str] = args.methods or ([RECORDED] if self._is_run else []) + list(USUAL)
        for flag in ("beta", "tokens") if self._is_run else ("beta",):
            if args.source and getattr(args, flag) is not None:
                raise ValueError(f"--{flag}: the answers are those of {args.source}. Leave out one of the two")
        if args.prompts and args.prompts > MOST_PROMPTS:
            raise ValueError(
                f"--prompts {args.prompts:,}: steps of more than {MOST_PROMPTS:,} prompts are not simulated"
            )
        if RECORDED in self._names and (not self._is_run or args.budget):
            raise ValueError(f"--methods {RECORDED}: name the folder of a run, and no --budget")
        if args.budget and len(self._args.schedulers) * len(args.engines or [0]) > 1:
            raise ValueError("--budget: for one of --schedulers and one of --engines at a time")
        if args.engine:
            read_engine(args.engine)
        self._answer = None if self._is_run else self._synthetic_answers()
        self._machine = self._machine_of_steps()
        self._known: dict[tuple[Case, int, int], Plan] = {}

    def cases(self) -> Iterator[Case]:
        """In the order of the table."""
        for engines in self._args.engines or [None]:
            for name in self._names:
                for scheduler in self._args.schedulers:
                    yield Case(name, scheduler, engines)

    def planned(self, case: Case) -> Plan:
        return self.within(case, self._args.budget) if self._args.budget else self.plan(case)

    def _synthetic_answers(self) -> SyntheticRollouts:
        args = self._args
        rates, tokens = measured_rates(str(args.source), flag="SOURCE") if args.source else ((), None)
        a, b = args.beta or (SYNTHETIC.alpha, SYNTHETIC.beta)
        median = SYNTHETIC.median * (args.tokens or tokens or ANSWER_TOKENS) / ANSWER_TOKENS
        answers = replace(SYNTHETIC, alpha=a, beta=b, rates=rates, median=median, longest=args.max_tokens)
        if args.tokens and answers.mean < CUT * args.tokens:
            raise ValueError(
                f"--tokens {args.tokens:,}: where none is longer than --max_tokens {args.max_tokens:,}, answers would "
                f"have a mean of {answers.mean:,.0f}. Give --max_tokens {4 * args.tokens} or more"
            )
        return answers

    def _machine_of_steps(self) -> StepModel:
        """With the seconds of the run's own steps. A measured engine needs no factor."""
        args, machine = self._args, STEP_MODELS[self._args.machine]
        if args.engine or self._is_run:
            machine = replace(machine, sampling=1.0)
        if self._is_run:
            machine = replace(machine, per_token=_recorded_per_token(args.source), fixed=0.0)
        return machine

    def _scenario(self, prompts: int | None, steps: int) -> Scenario:
        if self._answer is None:
            return recorded(self._args.source, self._args.engine, prompts, steps)
        return synthetic(self._answer, self._args.engine, prompts or 0)

    def plan(self, case: Case, prompts: int | None = None, steps: int = LEARNING_STEPS) -> Plan:
        """A step with so many prompts; None: as many as --prompts, the method or the run says. `steps`: to take the
        mean of."""
        prompts = prompts or self._args.prompts
        if case.method == RECORDED:
            return self._planned(case, self._scenario(prompts, steps), steps)
        prompts = int(prompts or METHODS[case.method].flags["rollout.batch_size"])
        if self._answer is not None and not method_settings(case.method, prompts).remembers:
            # All steps are alike.
            steps = 1
        if (case, prompts, steps) not in self._known:
            self._known[case, prompts, steps] = self._planned(case, self._scenario(prompts, steps), steps)
        return self._known[case, prompts, steps]

    def _planned(self, case: Case, scenario: Scenario, num_steps: int) -> Plan:
        engines, machine = case.engines or scenario.num_engines, self._machine
        is_own = case.method == RECORDED
        settings = scenario.settings if is_own else method_settings(case.method, scenario.prompts)
        epochs = scenario.epochs if is_own else METHODS[case.method].flags["train.max_epochs"]
        scheduler: SchedulerName = "rounds" if settings.decides_together else case.scheduler
        found = steps_of(scenario, settings, scheduler, engines, num_steps)
        trained = mean(step.trained_tokens + step.trained * PROMPT_TOKENS for step in found)
        return Plan(
            method=case.method,
            scheduler=scheduler,
            engines=engines,
            prompts=scenario.prompts,
            rollouts=mean(step.rollouts for step in found),
            tokens=mean(step.tokens for step in found),
            wasted=sum(step.wasted_tokens for step in found) / sum(step.tokens for step in found),
            trained=mean(step.trained for step in found),
            signal=mean(step.signal_share for step in found),
            weights=None if is_own else _weights(case.method),
            sampling_s=machine.sampling * mean(step.seconds for step in found),
            training_s=machine.per_token * epochs * trained,
            fixed_s=machine.fixed,
        )

    def within(self, case: Case, budget: float) -> Plan:
        """With as many prompts as `budget` seconds have time for. Raises ValueError where that is none, or too many
        to simulate."""
        # Single steps lead to the number of prompts, and methods that learn take more steps at the end.
        plan = self.plan(case, steps=1)
        for steps in (1, LEARNING_STEPS):
            plan, other = self.plan(case, plan.prompts, steps), None
            for _ in range(TRIED):
                if plan.prompts == 1 or abs(plan.seconds / budget - 1) < CLOSE:
                    break
                plan, other = self.plan(case, _fitting(plan, other, budget), steps), plan
        while plan.seconds > budget and plan.prompts > 1:
            plan = self.plan(case, min(plan.prompts - 1, _fitting(plan, None, budget)))
        if plan.seconds > budget:
            raise ValueError(
                f"--budget {budget:g}: a step of {plan.method} with one prompt takes {plan.seconds:.3g} s, of which "
                f"{plan.fixed_s:.3g} s are fixed. Give more seconds, more --engines, or shorter answers (--max_tokens)"
            )
        return plan


def _fitting(plan: Plan, other: Plan | None, budget: float) -> int:
    """Prompts, if seconds grew as between these two; without another, if those beyond the fixed part were proportional
    to prompts."""
    seconds, prompts = (plan.fixed_s, 0) if other is None else (other.seconds, other.prompts)
    if other is not None and (plan.seconds - seconds) * (plan.prompts - prompts) <= 0:
        return _fitting(plan, None, budget)
    found = plan.prompts + (budget - plan.seconds) * (plan.prompts - prompts) / (plan.seconds - seconds)
    if found > MOST_PROMPTS:
        raise ValueError(
            f"--budget {budget:g}: a step of {plan.method} would have more than {MOST_PROMPTS:,} prompts, which "
            "are not simulated. Give fewer seconds"
        )
    return max(1, int(found))


def _recorded_per_token(run_dir: Path) -> float:
    """Seconds of a run's steps outside sampling, for each trained token. Raises ValueError where none was recorded."""
    rows = [row for row in read_run(run_dir).steps if all(row.get(name) is not None for name in _TIMES)]
    tokens = sum(row["ada/kept_tokens"] + row["ada/kept"] * PROMPT_TOKENS for row in rows)
    if not tokens:
        raise ValueError(
            f"{run_dir} has no finished step of --ada_mode seq or est. Name a run that has one, or give pass rates "
            "by --beta"
        )
    return sum(row["ada/step_s"] - row["timing/generation"] for row in rows) / tokens


@lru_cache
def _weights(name: str) -> tuple[float, ...] | None:
    """Of prompts of RATES, beside one of pass rate 1/2; None where they cannot be enumerated in a moment."""
    settings = method_settings(name, METHODS[name].flags["rollout.batch_size"])
    if not settings.is_enumerable or settings.max_samples > LARGEST_CAP:
        return None
    *found, half = (weight.effective for weight in weights_of(settings, (*RATES, 0.5)))
    return tuple(value / half for value in found)


def _flags(plan: Plan) -> str:
    """A line: flags of a step of this size, with what the method is here as a comment."""
    kinds = {DEFAULT: "recommended", CONTROL: "control"} | dict.fromkeys(EXPERIMENTS, "experiment")
    words = (f"--{name} {value}" for name, value in _sizes(plan).items())
    kind = f"  # {kinds[plan.method]}" if plan.method in kinds else ""
    return f"  --ada_method {plan.method} {' '.join(words)}{kind}"


def _sizes(plan: Plan) -> Flags:
    """--rollout.batch_size, in whole updates of the weights; where not even one is full, --train.batch_size too."""
    preset = METHODS[plan.method].flags
    n, update = preset["rollout.n_samples_per_prompt"], preset["train.batch_size"]
    if plan.prompts * n < update:
        return {"rollout.batch_size": plan.prompts, "train.batch_size": plan.prompts * n}
    if method_settings(plan.method, plan.prompts).trains_varying:
        return {"rollout.batch_size": plan.prompts}
    return {"rollout.batch_size": plan.prompts * n // update * update // n}


# -- measuring --------------------------------------------------------------------------------------------------------


def _calibrate(run_dir: Path | None) -> int:
    """Measure the run's engine with its model and data. Raises ValueError for a run whose engine cannot be asked."""
    if run_dir is None:
        raise ValueError("--calibrate needs the folder of a run: it measures that run's engine")
    from openrlhf_ada.cli.train_ppo_ray import quiet
    from openrlhf_ada.platforms.session import ray_session

    host = namespace(read_run(run_dir).config)
    host.ada = run_settings(host, run_dir)
    if host.ada.mode == "off":
        raise ValueError(f"{run_dir} was made with --ada_mode off, whose engines are asked in another way")
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
