"""Have a model answer sets of problems, going on where an earlier call stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.sampling_flags import Prompts, Sampling, open_sampler
from openrlhf_ada.cli.train_ppo_ray import quiet
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.eval.answers import AnswerFile, AnswerRow
from openrlhf_ada.flags import ConfigError
from openrlhf_ada.platforms import cpu
from openrlhf_ada.reward.mixed_answers import label_of
from openrlhf_ada.reward.reward_function import MIXED, NAMED

LINES_EVERY_S = 20.0
"""Seconds between lines of progress where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Run:
    """One set of problems. `folder`: of its answers; `reward`: a name of NAMED, a reward file or a URL."""

    name: str
    folder: Path
    problems: Sequence[Problem]
    reward: str
    template: str

    def label(self, problem: Problem) -> Any:
        return label_of(self.reward, problem.label) if self.reward in NAMED else problem.label


def sample_missing(
    model: str, runs: Sequence[Run], args: argparse.Namespace, sampling: Sampling
) -> dict[str, list[AnswerRow]]:
    """All answers by the name of the run; engines start only if some are missing.

    Raises:
        ConfigError: a prompt is too long, or runs with different reward files.
        OtherSettingsError: a folder holds answers of other settings.
    """
    if cpu.is_needed():
        cpu.activate()
    reward_file = _one_reward(runs)
    with ExitStack() as stack:
        stack.enter_context(quiet(args.verbose))
        _check_length(model, sampling)
        files = {
            run.name: stack.enter_context(AnswerFile(run.folder, _settings(model, run, args, sampling)))
            for run in runs
        }
        wanted = _wanted(model, runs, files, args, sampling)
        if wanted:
            by_problem = {asked.problem: name for name, asked in wanted}
            note = lambda text: print(text, file=sys.stderr)  # noqa: E731
            note(f"{model}: starting engines, {len(wanted)} answers to sample")
            sampler = stack.enter_context(open_sampler(model, reward_file, args, sampling, note))
            bar = stack.enter_context(progress_bar(len(wanted), " answers"))

            def keep(row: AnswerRow) -> None:
                files[by_problem[row.problem]].add(row)
                bar.update()

            sampler.sample([asked for _, asked in wanted], keep)
        n = sampling.n
        return {name: [row for row in file.rows if row.index < n] for name, file in files.items()}


def _check_length(model: str, sampling: Sampling) -> None:
    """vLLM would refuse it after half a minute, in a page of text."""
    from transformers.models.auto.configuration_auto import AutoConfig

    longest = AutoConfig.from_pretrained(model).get_text_config().max_position_embeddings
    if sampling.max_len > longest:
        raise ConfigError(
            "--max_len", sampling.max_len, f"{model} takes {longest} tokens at most", "Lower it, and --max_new_tokens"
        )


def _one_reward(runs: Sequence[Run]) -> str:
    """An engine has one reward file; that of the named rewards serves all of them."""
    needed = {MIXED if run.reward in NAMED else run.reward for run in runs}
    if len(needed) > 1:
        raise ConfigError("--reward", sorted(needed)[0], "all problems of a call share one reward file", "Call twice")
    return needed.pop()


def _settings(model: str, run: Run, args: argparse.Namespace, sampling: Sampling) -> dict[str, Any]:
    """What an answer depends on. Not how many there are: more may be added."""
    return {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "max_len": sampling.max_len,
        "seed": sampling.seed,
        "template": run.template,
        "system": args.system,
        "chat": not args.no_chat,
        "reward": run.reward,
    }


def _wanted(
    model: str, runs: Sequence[Run], files: dict[str, AnswerFile], args: argparse.Namespace, sampling: Sampling
) -> list[tuple[str, Any]]:
    missing = {run.name: files[run.name].missing([p.id for p in run.problems], sampling.n) for run in runs}
    if not any(missing.values()):
        return []
    from openrlhf_ada.rollout.answering import Asked

    wanted: list[tuple[str, Any]] = []
    for run in runs:
        prompts = Prompts(model, run.template, args)
        room = sampling.max_len - sampling.max_new_tokens
        by_id = {problem.id: problem for problem in run.problems}
        texts = {problem: prompts.checked(by_id[problem], room) for problem, _ in missing[run.name]}
        wanted += [
            (run.name, Asked(problem, index, texts[problem], run.label(by_id[problem])))
            for problem, index in missing[run.name]
        ]
    return wanted


def progress_bar(total: int, unit: str) -> Any:
    """A tqdm bar on a terminal, and lines elsewhere."""
    from tqdm import tqdm

    interval = 0.2 if sys.stderr.isatty() else LINES_EVERY_S
    return tqdm(total=total, unit=unit, file=sys.stderr, mininterval=interval, miniters=1, dynamic_ncols=True)
