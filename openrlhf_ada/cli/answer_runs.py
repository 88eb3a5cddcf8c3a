"""Have a model answer sets of problems, going on where an earlier call stopped."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.sampling_flags import Prompts, Sampling, open_sampler
from openrlhf_ada.cli.train_ppo_ray import quiet
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.checks import DataError
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.eval.answers import AnswerFile, AnswerRow, answered
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.reward.mixed import label_of
from openrlhf_ada.reward.reward_function import MIXED, NAMED

LINES_EVERY_S = 20.0
"""Seconds between lines of progress where there is no terminal."""

POSITIVE_ABOVE = 0.5
"""As --ada_positive_threshold: an answer with partial credit is right if it has more than half."""

WEIGHTS = ("*.safetensors", "*.bin", "config.json")


@dataclass(frozen=True, slots=True)
class Run:
    """One set of problems, each once. `folder`: of its answers; `reward`: a name of NAMED, a reward file or a URL;
    `prompts`: by problem id, as the model gets them."""

    name: str
    folder: Path
    problems: Sequence[Problem]
    reward: str
    template: str
    prompts: dict[str, str]

    def label(self, problem: Problem) -> Any:
        return label_of(self.reward, problem.label) if self.reward in NAMED else problem.label


def fitting_prompts(
    model: str, problems: Sequence[Problem], template: str, args: argparse.Namespace, sampling: Sampling
) -> tuple[dict[str, str], dict[str, str]]:
    """(prompts by problem id; of those that leave no room for an answer, what is wrong).

    Raises:
        ConfigError: the template has no place for a question, or there is no chat template for --system.
    """
    with quiet(args.verbose):
        prompts = Prompts(model, template, args)
    room = sampling.max_len - sampling.max_new_tokens
    texts: dict[str, str] = {}
    too_long: dict[str, str] = {}
    for problem in problems:
        text = prompts(problem)
        tokens = prompts.num_tokens(text)
        if tokens > room:
            too_long[problem.id] = (
                f"the prompt has {tokens} tokens, and --max_len {sampling.max_len} less --max_new_tokens "
                f"{sampling.max_new_tokens} leaves {room}"
            )
        else:
            texts[problem.id] = text
    return texts, too_long


def sample_missing(
    model: str, runs: Sequence[Run], args: argparse.Namespace, sampling: Sampling
) -> dict[str, list[AnswerRow]]:
    """All answers by the name of the run; engines start only if some are missing.

    Raises:
        ConfigError: runs with different reward files.
        OtherSettingsError: a folder holds answers of other settings.
    """
    reward_file = _one_reward(runs)
    with ExitStack() as stack:
        files = {
            run.name: stack.enter_context(AnswerFile(run.folder, _settings(model, run, args, sampling)))
            for run in runs
        }
        wanted = _wanted(runs, files, sampling.n)
        if wanted:
            stack.enter_context(quiet(args.verbose))
            note = lambda text: print(text, file=sys.stderr)  # noqa: E731
            note(f"{model}: starting engines, {len(wanted)} answers to sample")
            sampler = stack.enter_context(open_sampler(model, reward_file, args, sampling, note))
            bar = stack.enter_context(progress_bar(len(wanted), " answers"))

            def keep(asked: Any, row: AnswerRow) -> None:
                files[asked.run].add(row)
                bar.update()

            sampler.sample(wanted, keep)
        n = sampling.n
        return {name: [row for row in file.rows if row.index < n] for name, file in files.items()}


def judged(
    run: Run, rows: Sequence[AnswerRow], same: Callable[[str], str] | None = None
) -> tuple[list[Answered], int]:
    """The answers that have a score, by problem, and how many have none (see `eval.answers.answered`).

    Raises:
        DataError: none has one.
    """
    order = [problem.id for problem in run.problems]
    found, without = answered(rows, order, positive_above=POSITIVE_ABOVE, same=same)
    if not found:
        ((cause, _),) = Counter(row.cause for row in rows).most_common(1)
        raise DataError(f"{run.name}: no answer has a score; the commonest cause: {cause}")
    return found, without


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
        "model_files": _fingerprint(model),
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
        "reward_file": hashlib.sha256(Path(run.reward).read_bytes()).hexdigest() if run.reward.endswith(".py") else "",
    }


def _fingerprint(model: str) -> str:
    """Of a local folder's weights: names, sizes and times. A checkpoint may be written anew in the same place."""
    files = sorted(path for pattern in WEIGHTS for path in Path(model).glob(pattern))
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16] if stats else ""


def _wanted(runs: Sequence[Run], files: dict[str, AnswerFile], n: int) -> list[Any]:
    missing = {run.name: files[run.name].missing([p.id for p in run.problems], n) for run in runs}
    if not any(missing.values()):
        return []
    from openrlhf_ada.rollout.answering import Asked

    wanted: list[Any] = []
    for run in runs:
        by_id = {problem.id: problem for problem in run.problems}
        wanted += [
            Asked(run.name, key, index, run.prompts[key], run.label(by_id[key])) for key, index in missing[run.name]
        ]
    return wanted


def progress_bar(total: int, unit: str) -> Any:
    """A tqdm bar on a terminal, and lines elsewhere."""
    from tqdm import tqdm

    interval = 0.2 if sys.stderr.isatty() else LINES_EVERY_S
    return tqdm(total=total, unit=unit, file=sys.stderr, mininterval=interval, miniters=1, dynamic_ncols=True)
