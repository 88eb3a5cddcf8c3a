"""What a step of each method takes and gives, before anything is trained.

Pass rates come from SOURCE (data of prepare-data, or the run directory of a run in mode seq or est) or from --beta.
Sampling is simulated on engines in virtual time, and training takes its seconds by the token. How well a policy learns
from such steps is not simulated: what is recommended rests on published results, and the lines under the table say on
which.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean

from openrlhf_ada.cli.plan_tables import CONTROL, DEFAULT, EXPERIMENTS, RATES, Plan, draw, show
from openrlhf_ada.cli.scenario import (
    at_least,
    check_folders,
    method_settings,
    names_of,
    read_engine,
    recorded,
    steps_of,
    synthetic,
)
from openrlhf_ada.config import program
from openrlhf_ada.config.objective_notes import LARGEST_CAP, weights_of
from openrlhf_ada.config.presets import METHODS, Flags
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.data.prepared import measured_rates
from openrlhf_ada.reporting.display import on_each
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.simulation.forecast import Forecast
from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, PROMPT_TOKENS, STEP_MODELS, StepModel
from openrlhf_ada.simulation.workload import SYNTHETIC, SyntheticRollouts

PROG = "openrlhf-ada plan"

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

PICTURES = (".png", ".svg", ".pdf")

RECORDED = ("ada/kept", "ada/kept_tokens", "ada/step_s", "timing/generation")
"""What a run's seconds of training are worked out from."""

_OF_BUDGET = """
For {seconds:g} s a step. They make different numbers of updates: compare runs at equal ones (--train.batch_size)."""

TRIED, CLOSE = 5, 0.02
"""Numbers of prompts that are tried to meet a budget; how close is enough."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status. Raises ValueError and OSError for bad input."""
    args = build_parser().parse_args(argv)
    _check_outputs(args)
    planner, budget = Planner(args), args.budget
    plans = on_each(args.methods, "simulating", lambda n: planner.within(n, budget) if budget else planner.plan(n))
    show(plans)
    if args.budget:
        print("\n".join([_OF_BUDGET.format(seconds=args.budget), *map(_flags, plans)]))
    if args.json:
        rows = [asdict(plan) | {"seconds": plan.seconds} for plan in plans]
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if args.plot:
        draw(plans, args.plot)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Before anything is simulated. Raises FileNotFoundError and ValueError."""
    check_folders(json=args.json, plot=args.plot)
    if args.plot is not None and args.plot.suffix not in PICTURES:
        raise ValueError(f"--plot {args.plot}: expected a name that ends in {', '.join(PICTURES)}")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, nargs="?", metavar="SOURCE", help="Parquet file of prepare-data, or run directory")
    add("--beta", type=_pair, metavar="A,B", help="pass rates are Beta(A, B) (default 1.5,1.5)")
    add("--tokens", type=at_least(1), metavar="N", help="mean length of an answer (default: as recorded, or 730)")
    add("--max_tokens", type=at_least(1), default=SYNTHETIC.longest, metavar="N", help="longest answer (default 4096)")
    add(
        "--methods",
        type=names_of(PLANNED, NOT_PLANNED),
        default=list(USUAL),
        metavar="NAME,...",
        help=f"names of --ada_method (default {','.join(USUAL)}; all: every one that can be planned)",
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
        help="whose seconds: 1.5b (Qwen2.5-Math-1.5B on 8 H100, default) or 7b (Qwen2.5-Math-7B on 8 A100)",
    )
    add(
        "--engine", type=Path, metavar="FILE", help="engine measured by `simulate --calibrate`, instead of --machine's"
    )
    add("--engines", type=at_least(1), metavar="N", help="number of engines (default 8; with a run: as there)")
    add("--per_token", type=_seconds, metavar="SECONDS", help="of training, for each trained token")
    add("--fixed", type=_seconds, metavar="SECONDS", help="of every step, whatever it trains")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    add("--plot", type=Path, metavar="FILE", help="also draw them: .png, .svg or .pdf")
    return parser


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


class Planner:
    """Steps of methods on one machine. Raises ValueError for flags that do not go with the source."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._is_run = args.source is not None and args.source.is_dir()
        for flag in ("beta", "tokens") if self._is_run else ("beta",):
            if args.source and getattr(args, flag) is not None:
                raise ValueError(f"--{flag}: the answers are those of {args.source}. Leave out one of the two")
        if args.prompts and args.prompts > MOST_PROMPTS:
            raise ValueError(
                f"--prompts {args.prompts:,}: steps of more than {MOST_PROMPTS:,} prompts are not simulated"
            )
        if args.engine:
            read_engine(args.engine)
        self._answer = None if self._is_run else self._synthetic_answers()
        self._machine = self._machine_of_steps()
        self._known: dict[tuple[str, int, int], Plan] = {}

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
        """With the seconds that flags or the run's own steps give. A measured engine needs no factor."""
        args, machine = self._args, STEP_MODELS[self._args.machine]
        if args.engine or self._is_run:
            machine = replace(machine, sampling=1.0)
        if self._is_run:
            machine = replace(machine, per_token=_recorded_per_token(args.source), fixed=0.0)
        given = {name: value for name in ("per_token", "fixed") if (value := getattr(args, name)) is not None}
        return replace(machine, **given)

    def _steps(self, settings: Settings, prompts: int, count: int) -> list[Forecast]:
        args = self._args
        if self._answer is None:
            scenario = recorded(args.source, args.engine, prompts, count, f"{program.called()} simulate --calibrate")
        else:
            scenario = synthetic(self._answer, args.engine, prompts)
        cluster = scenario.cluster(args.engines or scenario.num_engines, None)
        return steps_of(scenario, settings, "rounds" if settings.decides_together else "stream", cluster, count)

    def plan(self, name: str, prompts: int | None = None, steps: int = LEARNING_STEPS) -> Plan:
        """A step with so many prompts; None: as many as --prompts or the method says. `steps`: to take the mean of."""
        prompts = int(prompts or self._args.prompts or METHODS[name].flags["rollout.batch_size"])
        settings = method_settings(name, prompts)
        if self._answer is not None and not settings.remembers:
            # All steps are alike.
            steps = 1
        if (name, prompts, steps) not in self._known:
            self._known[name, prompts, steps] = self._planned(name, settings, prompts, steps)
        return self._known[name, prompts, steps]

    def _planned(self, name: str, settings: Settings, prompts: int, steps: int) -> Plan:
        found, machine = self._steps(settings, prompts, steps), self._machine
        tokens = mean(step.trained_tokens + step.trained * PROMPT_TOKENS for step in found)
        return Plan(
            method=name,
            prompts=prompts,
            rollouts=mean(step.rollouts for step in found),
            tokens=mean(step.tokens for step in found),
            trained=mean(step.trained for step in found),
            signal=mean(step.signal_share for step in found),
            weights=_weights(name),
            sampling_s=machine.sampling * mean(step.seconds for step in found),
            training_s=machine.per_token * METHODS[name].flags["train.max_epochs"] * tokens,
            fixed_s=machine.fixed,
        )

    def within(self, name: str, budget: float) -> Plan:
        """With as many prompts as `budget` seconds have time for. Raises ValueError where that is none, or too many
        to simulate."""
        # Single steps lead to the number of prompts, and methods that learn take more steps at the end.
        plan = self.plan(name, steps=1)
        for steps in (1, LEARNING_STEPS):
            plan, other = self.plan(name, plan.prompts, steps), None
            for _ in range(TRIED):
                if plan.prompts == 1 or abs(plan.seconds / budget - 1) < CLOSE:
                    break
                plan, other = self.plan(name, _fitting(plan, other, budget), steps), plan
        while plan.seconds > budget and plan.prompts > 1:
            plan = self.plan(name, min(plan.prompts - 1, _fitting(plan, None, budget)))
        if plan.seconds > budget:
            raise ValueError(
                f"--budget {budget:g}: a step of {name} with one prompt takes {plan.seconds:.3g} s, of which "
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
    rows = [row for row in read_run(run_dir).steps if all(row.get(name) is not None for name in RECORDED)]
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
