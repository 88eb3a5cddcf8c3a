"""Make training data of known difficulty from raw problems: drop copies and labels that fail their own check, sample
answers with vLLM (can be resumed), keep a band of pass rates, write Parquet and a dataset card."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    Prompts,
    about_templates,
    add_sampling_flags,
    as_messages,
    check_template,
    longest_context,
    sampling_of,
    scoring_of,
    with_given,
)
from openrlhf_ada.config import program
from openrlhf_ada.config.passed_on import PASSED_ON
from openrlhf_ada.config.visible import without_logins
from openrlhf_ada.data import prepared
from openrlhf_ada.data.benchmarks import DATASETS, name_and_path
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.labels import LabelChecks, about_contradicting
from openrlhf_ada.data.left_out import LeftOut, why_few, write_left_out
from openrlhf_ada.data.prepared import BANDS, Difficulty, parse_band
from openrlhf_ada.data.problems import TASK, Problem, Source, deduplicated, load_problems
from openrlhf_ada.data.row_rewards import RowRewards
from openrlhf_ada.eval.answers import as_text
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.reward.pool import limits_of
from openrlhf_ada.reward.reward_function import MIXED, NAMED, default_threshold

PROG = "openrlhf-ada prepare-data"
DROPPED_FILE = "dropped.jsonl"


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    return sampling_command(PROG, args.out, lambda progress: _prepare(args, progress))


def _prepare(args: argparse.Namespace, progress: Counting) -> Callable[[], None]:
    """Raises ConfigError or DataError."""
    sampling, band = sampling_of(args), parse_band(args.band)
    sources = [source_of(spec, args) for spec in args.source]
    reward, rewards = scoring_for(sources, args)
    progress.phase(f"preparing {', '.join(args.source)} with {args.model}, {about_templates(sources)}")
    args.out.mkdir(parents=True, exist_ok=True)
    problems, facts, dropped = clean(sources, reward, rewards, args, progress)
    check_template(args.template, args.system, problems)
    sampling = sampling_of(args, longest_context([args.model], args.engine_args, trusted=args.trust_remote_code))
    prompts, too_long = fitting_prompts(args.model, problems, args, sampling)
    dropped += [_left_out(p, too_long[p.id], "that leave no room for an answer") for p in problems if p.id in too_long]
    file = args.out / DROPPED_FILE
    write_left_out(dropped, file)
    if not prompts:
        raise DataError(f"no prompt leaves room for an answer: {why_few(dropped, len(dropped), file)}")
    if dropped:
        progress.note(f"SOURCE: {why_few(dropped, len(dropped) + len(prompts), file)}")
    by_id = {problem.id: problem for problem in problems if problem.id in prompts}
    asked = ProblemSet("answers", by_id, reward, args.out / "answers", prompts)
    rows = sample_missing(args.model, [asked], args, sampling, progress)["answers"]
    found, without = group_answers(asked, rows, args.right_above)
    everything = [
        Difficulty(by_id[a.problem], a.n, sum(a.right), sum(a.tokens) / a.n, sum(a.truncated) / a.n) for a in found
    ]
    kept = [d for d in everything if band[0] <= d.pass_rate <= band[1]]
    if not kept:
        counts = Counter(d.pass_rate for d in everything)
        rates = ", ".join(f"{count} at {rate:.3g}" for rate, count in sorted(counts.items())[:20])
        left = f"; {len(dropped):,} rows were left out before ({file})" if dropped else ""
        raise DataError(f"no problem has a pass rate in --band {args.band}; there are {rates}{left}")
    facts |= {
        "prompts that leave no room": f"{len(too_long):,}",
        "prompt": about_templates(sources),
        "model": args.model,
        "answers per problem": f"{sampling.n} at temperature {sampling.temperature:g}, up to "
        f"{sampling.max_new_tokens:,} tokens",
        "answers without a score": f"{without:,}",
        "problems without any score": f"{len(by_id) - len(everything):,}",
        "kept": f"{len(kept):,} with a pass rate from {band[0]:g} to {band[1]:g} (--band {args.band})",
    }
    return lambda: _write(args, everything, kept, facts, args.reward or reward)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    add = parser.add_argument
    add(
        "source",
        nargs="+",
        metavar="SOURCE",
        help=f"{', '.join(DATASETS)}; a hub id, .jsonl, .parquet; reasoning_gym:TASK",
    )
    add("--model", required=True, metavar="PATH", help="folder or hub id of the model that will be trained")
    add("--out", type=Path, required=True, metavar="DIR", help="output folder; if it exists, the run resumes")
    add(
        "--band",
        default="all",
        metavar="BAND",
        help=f"pass rates to keep: {', '.join(BANDS)}, or low:high (default all)",
    )
    add("--split", default="train", help="split of hub data sets (default: train)")
    add(
        "--task_size",
        type=int,
        default=1000,
        metavar="COUNT",
        help="number of problems of a reasoning-gym task (default 1000)",
    )
    add_sampling_flags(parser, n=16)
    return parser


def source_of(spec: str, args: argparse.Namespace) -> Source:
    name, path = name_and_path(spec)
    known = DATASETS.get(name)
    if known is None:
        known = Source((path or spec).rpartition("/")[2].partition(".")[0] or spec, path or spec, args.split)
    elif path:
        known = replace(known, path=path, question_key=None, label_key=None)
    return with_given(replace(known, size=args.task_size, seed=args.seed), args)


def scoring_for(sources: Sequence[Source], args: argparse.Namespace) -> tuple[str, RowRewards | None]:
    """What grades, as the flags say; else what belongs to the sources: `mixed` if that is not the same for all."""
    reward, rewards = scoring_of(args)
    if reward is not None:
        return reward, rewards
    tasks = [source.path.startswith(TASK) for source in sources]
    if all(tasks):
        return "reasoning_gym", None
    if not any(tasks):
        return "math", None
    return MIXED, RowRewards(None, {source.path: "math" for source in sources}, "--")


def clean(
    sources: Sequence[Source],
    reward: str,
    rewards: RowRewards | None,
    args: argparse.Namespace,
    progress: Counting,
) -> tuple[list[Problem], dict[str, str], list[LeftOut]]:
    """Problems without copies whose labels verify themselves, facts for the card, and the rows that were dropped."""
    dropped: list[LeftOut] = []
    file: Path = args.out / DROPPED_FILE
    file.unlink(missing_ok=True)
    rows = [
        problem
        for source in sources
        for problem in load_problems(source, args.limit, dropped, rewards=rewards, note=progress.note)
    ]
    facts = {"rows read": f"{len(rows) + len(dropped):,}", "unfit question or label": f"{len(dropped):,}"}
    if not rows:
        write_left_out(dropped, file)
        raise DataError(f"SOURCE: no row can be used: {why_few(dropped, len(dropped), file)}")
    if reward not in (*NAMED, MIXED):
        problems, copies, contradictory = deduplicated(rows, lambda problem, other: False)
        causes: dict[str, str] = {}
        facts["labels"] = "not checked (the reward is not one of ours)"
    else:
        with LabelChecks(reward, limits_of(args)) as checks:
            problems, copies, contradictory = deduplicated(rows, checks.same)
            progress.count("checking labels", "labels", len(problems))
            causes = checks.unverified(problems, progress.advance)
        facts["labels that do not verify themselves"] = f"{len(causes):,}"
    facts |= {"copies": f"{len(copies):,}", "contradicting labels": f"{len(contradictory):,}"}
    for line in about_contradicting(contradictory, len(rows)):
        progress.note(f"SOURCE: {line}. They are left out")
    good = [problem for problem in problems if problem.id not in causes]
    dropped += [_left_out(problem, "another row has this question", "that are copies") for problem in copies]
    twice = "another row has this question and another label"
    dropped += [_left_out(problem, twice, "that contradict another") for problem in contradictory]
    unverified = "whose label fails its own check"
    dropped += [_left_out(problem, causes[problem.id], unverified) for problem in problems if problem.id in causes]
    if not good:
        write_left_out(dropped, file)
        raise DataError(
            f"SOURCE: no problem is left with --reward {reward}: {why_few(dropped, len(dropped), file)}: correct the "
            f"labels, or name another reward or column"
        )
    return good, facts, dropped


def _left_out(problem: Problem, cause: str, kind: str) -> LeftOut:
    row = {"id": problem.id, "question": problem.question, "label": problem.label}
    return LeftOut(problem.source, problem.place, cause, row, kind)


def _write(
    args: argparse.Namespace, everything: list[Difficulty], kept: list[Difficulty], facts: dict[str, str], reward: str
) -> None:
    problems = [d.problem for d in everything]
    labels = prepared.uniform_labels(problems)
    chat = Prompts(args.model, args).chat
    inputs = _inputs(problems, args, chat=chat)
    prepared.write_parquet(prepared.rows_of(everything, inputs, labels), args.out / prepared.ALL_FILE)
    train = prepared.write_parquet(prepared.rows_of(kept, inputs, labels), args.out / prepared.TRAIN_FILE)
    flags = training_flags(train, reward, args.right_above, chat=chat)
    given = [(name, value) for name in PASSED_ON if (value := getattr(args, name))]
    flags += "".join(f" \\\n    --ada_{name} {shlex.quote(value)}" for name, value in given)
    card = prepared.write_card(args.out, kept=kept, everything=everything, facts=facts, flags=flags)
    for name, value in facts.items():
        print(f"  {name:36} {value}")
    print(f"{card}\n{train}\n\nTrain on it:\n\n{flags}")


def _inputs(problems: Sequence[Problem], args: argparse.Namespace, *, chat: bool) -> dict[str, Any]:
    """Prompts as they were sampled, by id: text, or chat messages where one needs them."""
    prompts = {p.id: p.prompt for p in problems}
    if not chat:
        return {key: as_text(prompt) for key, prompt in prompts.items()}
    if not args.system and all(isinstance(prompt, str) for prompt in prompts.values()):
        return prompts
    return {key: as_messages(prompt, args.system) for key, prompt in prompts.items()}


def training_flags(train: Path, reward: str, threshold: float, *, chat: bool) -> str:
    flags = [
        f"--data.prompt_dataset {train}",
        "--data.input_key input",
        "--data.label_key label",
        *(["--data.apply_chat_template"] if chat else []),
        f"--reward.remote_url {without_logins(reward)}",
        *([f"--ada_positive_threshold {threshold:g}"] if threshold != default_threshold(reward) else []),
        "--ada_known_counts",
    ]
    return " \\\n    ".join([f"{program.called()} train ...", *flags])
