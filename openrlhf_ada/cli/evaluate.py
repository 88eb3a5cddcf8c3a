"""Evaluate models on benchmarks, with vLLM or from a server: avg@n, maj@n, pass@k and lengths, with intervals. Can be
resumed."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.sample_answers import (
    ProblemSet,
    fitting_prompts,
    group_answers,
    sample_missing,
    sampling_command,
)
from openrlhf_ada.cli.sampling_flags import (
    Sampling,
    about_templates,
    add_sampling_flags,
    check_template,
    longest_context,
    sampling_of,
    scoring_of,
    with_given,
)
from openrlhf_ada.cli.server_flags import add_server_flags, base_url_of, check_server_flags, server_prompts
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.benchmarks import BENCHMARKS, find_benchmark
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.labels import about_contradicting, contradicting
from openrlhf_ada.data.problems import Source, load_problems
from openrlhf_ada.data.row_rewards import RowRewards
from openrlhf_ada.eval.results import (
    ModelResults,
    accuracy_rows,
    as_json,
    detail_rows,
    difference_lines,
    ks_up_to,
    write_results,
)
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.reward.pool import limits_of

PROG = "openrlhf-ada eval"
SIGNAL_GROUP = 4
"""Group size for which the table shows the share of groups without a signal."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    return sampling_command(PROG, args.out, lambda progress: _evaluate(args, progress))


def _evaluate(args: argparse.Namespace, progress: Counting) -> Callable[[], None]:
    ks = check_flags(args)
    reward, rewards = scoring_of(args)
    sources = sources_of(args)
    progress.phase(
        f"evaluating {', '.join(args.model)} on {', '.join(args.benchmark)}, {args.n} answers per problem, "
        f"{about_templates(sources)}"
    )
    suites = load_suites(sources, args, reward, rewards, progress)
    longest = None if args.base_url else longest_context(args.model, args.engine_args, trusted=args.trust_remote_code)
    sampling = sampling_of(args, longest)
    results = [_answers(model, suites, args, sampling, ks, progress) for model in args.model]
    progress.phase("computing intervals")
    return _report(results, args, sampling, ks)


def check_flags(args: argparse.Namespace) -> list[int]:
    """The k of pass@k; raises ConfigError or ValueError for values out of range."""
    check_server_flags(args, build_parser())
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
    add("--k", metavar="K,...", help="values of k for pass@k (default: 1, 2, 4, ... up to --n)")
    add(
        "--out",
        type=Path,
        default=Path("runs") / time.strftime("eval-%m%d-%H%M%S"),
        metavar="DIR",
        help="output folder; if it exists, the evaluation resumes (default: runs/eval-<time>)",
    )
    add_sampling_flags(parser, n=8)
    add_server_flags(parser)
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


def sources_of(args: argparse.Namespace) -> list[Source]:
    """The benchmarks, with what the flags say of them; raises DataError."""
    return [with_given(find_benchmark(spec), args) for spec in args.benchmark]


def load_suites(
    sources: Sequence[Source],
    args: argparse.Namespace,
    reward: str | None,
    rewards: RowRewards | None,
    progress: Counting,
) -> list[ProblemSet]:
    """The problems of each benchmark. `reward`, `rewards`: of `scoring_of`. Raises ConfigError or DataError."""
    suites: list[ProblemSet] = []
    for source in sources:
        own = {source.path: source.reward} if source.reward else {}
        of_rows = rewards and replace(rewards, names={**own, **rewards.names})
        problems = load_problems(source, args.limit, flag="--benchmark", rewards=of_rows, note=progress.note)
        check_template(args.template, args.system, problems)
        of_set = reward or source.reward or "math"
        suite = ProblemSet(source.name, {problem.id: problem for problem in problems}, of_set)
        distinct = list(suite.problems.values())
        if len(distinct) < len(problems):
            progress.note(f"{source.name}: {len(problems) - len(distinct)} copies of problems are left out")
        found = contradicting(distinct, suite.reward, limits_of(args))
        for line in [f"{len(distinct):,} problems", *about_contradicting(found, len(problems))]:
            progress.note(f"{source.name}: {line}")
        suites.append(suite)
    if len({suite.name for suite in suites}) < len(suites):
        raise ConfigError("--benchmark", " ".join(args.benchmark), "two have the same name", "Name files differently")
    return suites


def _answers(
    model: str,
    suites: Sequence[ProblemSet],
    args: argparse.Namespace,
    sampling: Sampling,
    ks: Sequence[int],
    progress: Counting,
) -> ModelResults:
    if not args.base_url:
        progress.phase(f"{model}: making prompts")
    asked = [
        replace(
            suite, folder=args.out / slug(model) / slug(suite.name), prompts=_prompts(model, suite, args, sampling)
        )
        for suite in suites
    ]
    rows = sample_missing(model, asked, args, sampling, progress)
    result = ModelResults(model)
    for suite in asked:
        found, without = group_answers(suite, rows[suite.name], args.right_above)
        result.add(suite.name, found, sampling.n, ks, without)
    return result


def _prompts(model: str, suite: ProblemSet, args: argparse.Namespace, sampling: Sampling) -> dict[str, Any]:
    problems = list(suite.problems.values())
    if args.base_url:
        return server_prompts(problems, args)
    prompts, too_long = fitting_prompts(model, problems, args, sampling)
    if too_long:
        raise DataError(
            f"{suite.name}: {len(too_long)} problems do not fit, which leaves no fair figure; the first: "
            f"{next(iter(too_long.values()))}"
        )
    return prompts


def slug(text: str) -> str:
    """A readable folder name, different for every text."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.")
    return plain if plain == text else f"{plain[-80:]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _report(
    results: Sequence[ModelResults], args: argparse.Namespace, sampling: Sampling, ks: Sequence[int]
) -> Callable[[], None]:
    """Write results.json and results.html. Returns what shows them."""
    lines = [f"an answer is right if its score is above {args.right_above:g} (--right_above)"]
    lines += difference_lines(results)
    missing = sum(sum(result.no_score.values()) for result in results)
    if missing:
        lines.append(
            f"{missing} answers have no score and are in no figure; answers.jsonl has the causes. The same command "
            f"tries them again."
        )
    settings = asdict(sampling) | {"benchmark": args.benchmark, "k": list(ks), "right_above": args.right_above}
    if args.base_url:
        settings |= {"base_url": base_url_of(args.base_url), "max_len": None}
    file = args.out / "results.json"
    file.write_text(json.dumps(as_json(results, settings), indent=1), encoding="utf-8")
    tables = [accuracy_rows(results, sampling.n, max(ks)), detail_rows(results, min(SIGNAL_GROUP, sampling.n))]
    title = f"answers at temperature {sampling.temperature:g}, per cent, with 95 % intervals"
    page = write_results(results, title, tables, lines, args.out / "results.html")
    return lambda: _show(title, tables, [*lines, str(page), str(file)])


def _show(title: str, tables: Sequence[list[list[str]]], lines: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    # In a file, lines are not wrapped to the width of a terminal.
    console.width = console.width if console.is_terminal else 200
    for number, (header, *rows) in enumerate(tables):
        table = Table(box=None, title=None if number else title, title_justify="left")
        for column, name in enumerate(header):
            table.add_column(name, justify="left" if column < 2 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
