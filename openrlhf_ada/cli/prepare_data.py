"""From raw problems to training data of known difficulty: drop copies and labels that fail themselves, sample answers
with vLLM (resumable), keep a band of pass rates, write Parquet and a card."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.answer_runs import Run, progress_bar, sample_missing
from openrlhf_ada.cli.sampling_flags import Sampling, add_sampling_flags, as_messages, as_text, filled, sampling_of
from openrlhf_ada.data import prepared
from openrlhf_ada.data.benchmarks import BOXED, DATASETS
from openrlhf_ada.data.checks import DataError
from openrlhf_ada.data.difficulty import BANDS, Difficulty, in_band, parse_band
from openrlhf_ada.data.problems import Problem, Source, deduplicated, load_problems
from openrlhf_ada.data.verification import unverified
from openrlhf_ada.eval.answers import answered
from openrlhf_ada.flags import ConfigError
from openrlhf_ada.reward.pool import Limits
from openrlhf_ada.reward.reward_function import NAMED

PROG = "openrlhf-ada prepare-data"
POSITIVE_ABOVE = 0.5
TEMPLATES = {"math": BOXED}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = _parser().parse_args(argv)
    try:
        sampling, band = sampling_of(args), parse_band(args.band)
        sources = [_source(spec, args) for spec in args.source]
        reward = args.reward or _reward(args.source)
        template = args.template or TEMPLATES.get(reward, "{}")
        args.out.mkdir(parents=True, exist_ok=True)
        problems, facts = _clean(sources, reward, args)
        everything, without = _measure(problems, reward, template, args, sampling)
        kept = [d for d in everything if in_band(d, band)]
        if not kept:
            raise DataError(f"no problem has a pass rate in --band {args.band}; {_spread(everything)}")
    except (ConfigError, DataError, ValueError) as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    facts |= {
        "model": args.model,
        "answers per problem": f"{sampling.n} at temperature {sampling.temperature:g}, up to "
        f"{sampling.max_new_tokens:,} tokens",
        "answers without a verdict": f"{without:,}",
        "kept": f"{len(kept):,} with a pass rate from {band[0]:g} to {band[1]:g} (--band {args.band})",
    }
    _write(args, everything, kept, band, facts, reward, template)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    add = parser.add_argument
    add(
        "source",
        nargs="+",
        metavar="SOURCE",
        help=f"{', '.join(DATASETS)}; a hub id, .jsonl, .parquet; reasoning_gym:TASK",
    )
    add("--model", required=True, metavar="PATH", help="folder or hub id of the model that will be trained")
    add("--out", type=Path, required=True, metavar="DIR", help="one that exists is gone on with")
    add(
        "--band",
        default="all",
        metavar="BAND",
        help=f"pass rates to keep: {', '.join(BANDS)}, or low:high (default all)",
    )
    add("--reward", metavar="NAME", help=f"{', '.join(NAMED)}, a reward file or a URL (default: math)")
    add("--limit", type=int, metavar="COUNT", help="first rows of each source (default: all)")
    add("--split", default="train", help="of hub data sets (default: train)")
    add("--task_size", type=int, default=1000, metavar="COUNT", help="problems of a reasoning-gym task (default 1000)")
    add("--input_key", metavar="COLUMN", help="the question's; dots for nested ones (default: recognised)")
    add("--label_key", metavar="COLUMN", help="the reference answer's (default: recognised)")
    add_sampling_flags(parser, n=16)
    return parser


def _source(spec: str, args: argparse.Namespace) -> Source:
    name, _, path = spec.partition("=")
    known = DATASETS.get(name)
    if known is None:
        known = Source(spec.rpartition("/")[2].partition(".")[0] or spec, spec, args.split)
    elif path:
        known = replace(known, path=path, question_key=None, label_key=None)
    return replace(
        known,
        question_key=args.input_key or known.question_key,
        label_key=args.label_key or known.label_key,
        size=args.task_size,
        seed=args.seed,
    )


def _reward(specs: Sequence[str]) -> str:
    kinds = {"reasoning_gym" if spec.startswith("reasoning_gym:") else "math" for spec in specs}
    if len(kinds) > 1:
        raise ConfigError("SOURCE", " ".join(specs), "they need different rewards", "Prepare them one after the other")
    return kinds.pop()


def _clean(sources: Sequence[Source], reward: str, args: argparse.Namespace) -> tuple[list[Problem], dict[str, str]]:
    """Problems without copies and with labels that verify themselves; what was dropped is in dropped.jsonl."""
    unfit: list[str] = []
    rows = [problem for source in sources for problem in load_problems(source, args.limit, unfit)]
    problems, copies, contradictory = deduplicated(rows)
    facts = {
        "rows read": f"{len(rows) + len(unfit):,}",
        "without question or label": f"{len(unfit):,}",
        "copies": f"{copies:,}",
        "contradicting labels": f"{contradictory:,}",
    }
    if reward not in NAMED:
        return problems, facts | {"labels": "not checked (the reward is not one of ours)"}
    with progress_bar(len(problems), " labels") as bar:
        causes = unverified(problems, reward, Limits(args.reward_timeout, args.reward_memory), bar.update)
    with (args.out / "dropped.jsonl").open("w", encoding="utf-8") as stream:
        for problem in problems:
            if problem.id in causes:
                row = {
                    "id": problem.id,
                    "label": problem.label,
                    "cause": causes[problem.id],
                    "question": problem.question,
                }
                stream.write(json.dumps(row, default=str) + "\n")
    good = [problem for problem in problems if problem.id not in causes]
    if not good:
        raise DataError(f"no label verifies itself with --reward {reward}; the first: {next(iter(causes.values()))}")
    return good, facts | {"labels that do not verify themselves": f"{len(causes):,} (dropped.jsonl)"}


def _measure(
    problems: Sequence[Problem], reward: str, template: str, args: argparse.Namespace, sampling: Sampling
) -> tuple[list[Difficulty], int]:
    """Difficulties in the order of the problems, and how many answers came to no verdict."""
    run = Run("answers", args.out / "answers", problems, reward, template)
    rows = sample_missing(args.model, [run], args, sampling)[run.name]
    found, without = answered(rows, [problem.id for problem in problems], positive_above=POSITIVE_ABOVE)
    by_id = {problem.id: problem for problem in problems}
    return [
        Difficulty(by_id[a.problem], a.n, sum(a.right), sum(a.tokens) / a.n, sum(a.truncated) / a.n) for a in found
    ], without


def _spread(everything: Sequence[Difficulty]) -> str:
    counts = Counter(d.pass_rate for d in everything)
    return "there are " + ", ".join(f"{count} at {rate:.3g}" for rate, count in sorted(counts.items())[:20])


def _write(
    args: argparse.Namespace,
    everything: Sequence[Difficulty],
    kept: Sequence[Difficulty],
    band: tuple[float, float],
    facts: dict[str, Any],
    reward: str,
    template: str,
) -> None:
    problems = [d.problem for d in everything]
    labels = prepared.uniform_labels(problems)
    chat = _has_chat(args)
    inputs = _inputs(problems, template, args, chat=chat)
    prepared.write_parquet(prepared.rows_of(everything, inputs, labels), args.out / prepared.ALL_FILE)
    train = prepared.write_parquet(prepared.rows_of(kept, inputs, labels), args.out / prepared.TRAIN_FILE)
    prepared.plot_difficulty(everything, band, args.out / prepared.PLOT_FILE)
    flags = _training_flags(train, reward, chat=chat)
    card = prepared.write_card(args.out, kept=kept, everything=everything, facts=facts, flags=flags)
    for name, value in facts.items():
        print(f"  {name:36} {value}")
    print(f"{card}\n{train}\n\nTrain on it:\n\n{flags}")


def _inputs(problems: Sequence[Problem], template: str, args: argparse.Namespace, *, chat: bool) -> dict[str, Any]:
    """Prompts as they were sampled, by id: text, or chat messages where one needs them."""
    prompts = {p.id: filled(template, p.question) for p in problems}
    if not chat:
        return {key: as_text(prompt) for key, prompt in prompts.items()}
    if not args.system and all(isinstance(prompt, str) for prompt in prompts.values()):
        return prompts
    return {key: as_messages(prompt, args.system) for key, prompt in prompts.items()}


def _has_chat(args: argparse.Namespace) -> bool:
    from openrlhf_ada.rollout.shared_tokenizer import load_tokenizer

    return bool(load_tokenizer(args.model, True).chat_template) and not args.no_chat


def _training_flags(train: Path, reward: str, *, chat: bool) -> str:
    flags = [
        f"--data.prompt_dataset {train}",
        "--data.input_key input",
        "--data.label_key label",
        *(["--data.apply_chat_template"] if chat else []),
        f"--reward.remote_url {reward}",
        "--ada_known_counts",
    ]
    return " \\\n    ".join(["openrlhf-ada train ...", *flags])
