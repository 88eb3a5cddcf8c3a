"""Evaluate models on benchmarks with vLLM: avg@n, pass@k, maj@k and lengths, with intervals. Can be resumed."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from openrlhf_ada.cli.sample_answers import POSITIVE_ABOVE, ProblemSet, fitting_prompts, group_answers, sample_missing
from openrlhf_ada.cli.sampling_flags import (
    Sampling,
    add_sampling_flags,
    check_template,
    longest_context,
    sampling_of,
    scoring_of,
)
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.benchmarks import BENCHMARKS, Benchmark, find_benchmark
from openrlhf_ada.data.checks import DataError
from openrlhf_ada.data.problems import Problem, load_problems
from openrlhf_ada.data.row_rewards import RowRewards
from openrlhf_ada.eval.plots import plot_curves
from openrlhf_ada.eval.results import ModelResults, as_json, difference_lines, ks_up_to, table_rows
from openrlhf_ada.platforms.session import TerminatedError
from openrlhf_ada.reward.arithmetic import parse_answer
from openrlhf_ada.reward.math_notation import simplified
from openrlhf_ada.reward.math_text import find_answers, unfenced
from openrlhf_ada.reward.reasoning_answers import find_answer

PROG = "openrlhf-ada eval"
SIGNAL_GROUP = 4
"""Group size for which the table shows the share of groups without a signal."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One benchmark, loaded. `reward`: what grades it."""

    benchmark: Benchmark
    problems: list[Problem]
    reward: str

    @property
    def name(self) -> str:
        return self.benchmark.source.name


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    try:
        ks = check_flags(args)
        reward, rewards = scoring_of(args)
        suites = _load(args, reward, rewards)
        sampling = sampling_of(args, longest_context(args.model))
        results = [_evaluate(model, suites, args, sampling, ks) for model in args.model]
    except (ConfigError, DataError, ValueError) as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, TerminatedError):
        print(f"{PROG}: interrupted; repeat the call with --out {args.out} to resume", file=sys.stderr)
        return 130
    _show(results, args, sampling, ks)
    return 0


def check_flags(args: argparse.Namespace) -> list[int]:
    """The k of pass@k; raises ConfigError or ValueError for values out of range."""
    return _ks(args.k, sampling_of(args).n)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    add = parser.add_argument
    add("--model", nargs="+", required=True, metavar="PATH", help="folders or hub ids of models; several are compared")
    add(
        "--benchmark",
        nargs="+",
        required=True,
        metavar="NAME",
        help=f"{', '.join(BENCHMARKS)}; NAME=FILE for a local copy; reasoning_gym:TASK; or a .jsonl or .parquet file",
    )
    add("--k", metavar="K,...", help="values of k for pass@k and maj@k (default: 1, 2, 4, ... up to --n)")
    add(
        "--out",
        type=Path,
        default=Path("runs") / time.strftime("eval-%m%d-%H%M%S"),
        metavar="DIR",
        help="output folder; if it exists, the evaluation resumes (default: runs/eval-<time>)",
    )
    add_sampling_flags(parser, n=8)
    return parser


def _ks(text: str | None, n: int) -> list[int]:
    """The k of --k, and those that the table and the curves need."""
    if text is None:
        return ks_up_to(n)
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError("--k", text, "expected whole numbers separated by commas", "Try --k 1,4,8")
    if max(map(int, parts)) > n:
        raise ConfigError("--k", text, f"pass@k needs k answers per problem, and --n is {n}", "Raise --n")
    return sorted(set(map(int, parts)) | {1, min(SIGNAL_GROUP, n)})


def _load(args: argparse.Namespace, reward: str | None, rewards: RowRewards | None) -> list[Suite]:
    suites: list[Suite] = []
    for spec in args.benchmark:
        benchmark = find_benchmark(spec)
        source = benchmark.source
        source = replace(
            source,
            question_key=args.input_key or source.question_key,
            label_key=args.label_key or source.label_key,
        )
        of_rows = rewards and replace(rewards, names={**benchmark.own_reward(), **rewards.names})
        problems = load_problems(source, args.limit, flag="--benchmark", rewards=of_rows)
        check_template(args.template, problems)
        distinct = list({problem.id: problem for problem in problems}.values())
        if len(distinct) < len(problems):
            print(f"{source.name}: {len(problems) - len(distinct)} copies of problems are left out", file=sys.stderr)
        suites.append(Suite(benchmark, distinct, reward or benchmark.reward))
    names = [suite.name for suite in suites]
    if len(set(names)) < len(names):
        raise ConfigError("--benchmark", " ".join(args.benchmark), "two have the same name", "Name files differently")
    return suites


def _evaluate(
    model: str, suites: Sequence[Suite], args: argparse.Namespace, sampling: Sampling, ks: Sequence[int]
) -> ModelResults:
    problem_sets = [_problem_set(model, suite, args, sampling) for suite in suites]
    rows = sample_missing(model, problem_sets, args, sampling)
    result = ModelResults(model)
    for problem_set in problem_sets:
        same = SAME_ANSWER.get(problem_set.reward)
        found, without = group_answers(problem_set, rows[problem_set.name], same)
        result.add(problem_set.name, found, sampling.n, ks, without)
    return result


def _problem_set(model: str, suite: Suite, args: argparse.Namespace, sampling: Sampling) -> ProblemSet:
    template = args.template or suite.benchmark.template
    prompts, too_long = fitting_prompts(model, suite.problems, template, args, sampling)
    if too_long:
        raise DataError(
            f"{suite.name}: {len(too_long)} problems do not fit, which leaves no fair figure; the first: "
            f"{next(iter(too_long.values()))}"
        )
    return ProblemSet(
        name=suite.name,
        folder=args.out / slug(model) / slug(suite.name),
        problems=suite.problems,
        reward=suite.reward,
        template=template,
        prompts=prompts,
    )


def slug(text: str) -> str:
    """A readable folder name, different for every text."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.")
    return plain if plain == text else f"{plain[-80:]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _mathematical(text: str) -> str:
    found = find_answers(text)
    # The last is the most complete: all boxes of the last line.
    return simplified(unfenced(found[-1].text)) if found else ""


SAME_ANSWER: dict[str, Callable[[str], str]] = {
    "math": _mathematical,
    "reasoning_gym": find_answer,
    "arithmetic": lambda text: str(parse_answer(text)),
}
"""For maj@k, by reward: text -> a name for its answer, equal for the same answers. Programs are not compared."""


def _show(results: Sequence[ModelResults], args: argparse.Namespace, sampling: Sampling, ks: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table

    header, *rows = table_rows(results, sampling.n, max(ks), min(SIGNAL_GROUP, sampling.n))
    table = Table(box=None, title=f"answers at temperature {sampling.temperature:g}, per cent", title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # In a file, lines are not wrapped to the width of a terminal.
    console.width = console.width if console.is_terminal else 160
    console.print(table)
    for line in difference_lines(results):
        console.print(line, highlight=False)
    missing = sum(sum(result.no_score.values()) for result in results)
    if missing:
        console.print(f"{missing} answers have no score and are in no figure; answers.jsonl has the causes.")
    settings = asdict(sampling) | {"benchmark": args.benchmark, "k": list(ks), "positive_above": POSITIVE_ABOVE}
    file = args.out / "results.json"
    file.write_text(json.dumps(as_json(results, settings), indent=1), encoding="utf-8")
    whole = list(results[0].tables())[-1]
    print(plot_curves(results, whole, args.out / "curves.png"))
    print(file)
