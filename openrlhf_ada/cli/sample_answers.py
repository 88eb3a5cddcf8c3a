"""Sample a model's answers to sets of problems, on engines or from a server. Answers of an earlier, interrupted call
are kept."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.sampling_flags import Prompts, Sampling, as_text, grading_of, open_sampler
from openrlhf_ada.cli.server_flags import base_url_of, server_of
from openrlhf_ada.cli.train_ppo_ray import EXIT_BAD_INPUT, USER_ERRORS, quiet
from openrlhf_ada.config.passed_on import PASSED_ON
from openrlhf_ada.config.visible import without_logins
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.eval.answers import AnswerFile, AnswerRow, Asked, Sampled, answered
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.host.engine_options import recorded
from openrlhf_ada.platforms.signals import TerminatedError, status_of
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.reward.extraction import VOTING, answer_name, extracted
from openrlhf_ada.reward.mixed import label_of
from openrlhf_ada.reward.names import split_names
from openrlhf_ada.reward.reward_function import MIXED, file_and_function, grades_labels
from openrlhf_ada.reward.trial import Trials, rows_for

WEIGHTS = ("*.safetensors", "*.bin", "config.json")


def sampling_command(prog: str, out: Path, work: Callable[[Counting], Callable[[], None]]) -> int:
    """Do the work, then what it returns, which shows its results; returns the exit status (2: bad input)."""
    try:
        with Counting() as progress:
            show = work(progress)
    except (*USER_ERRORS, ValueError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (KeyboardInterrupt, TerminatedError) as error:
        print(f"{prog}: interrupted; the same command with --out {out} goes on", file=sys.stderr)
        return status_of(error)
    show()
    return 0


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """`problems`: distinct, by id. `reward`: a grader of labels, a reward file or URLs. Of the model that is asked:
    `folder` of its answers, and `prompts` by problem id, as it gets them (for a server also chat messages)."""

    name: str
    problems: Mapping[str, Problem]
    reward: str
    folder: Path = Path()
    prompts: Mapping[str, Any] = field(default_factory=dict)

    def asked(self, key: str, index: int) -> Asked:
        """The `index`-th answer to the problem of this id."""
        problem, label = self.problems[key], self.problems[key].label
        if grades_labels(self.reward):
            label = label_of(problem.reward or self.reward, label)
        return Asked(self.name, key, index, self.prompts[key], label)

    def row(self, asked: Asked, sampled: Sampled) -> AnswerRow:
        problem = self.problems[asked.problem]
        return AnswerRow(
            **asdict(sampled),
            problem=problem.id,
            index=asked.index,
            question=problem.question,
            prompt=asked.prompt,
            label=problem.label,
            answer=extracted(problem.reward or self.reward, sampled.response, truncated=sampled.truncated),
        )


def fitting_prompts(
    model: str, problems: Iterable[Problem], args: argparse.Namespace, sampling: Sampling
) -> tuple[dict[str, str], dict[str, str]]:
    """(prompts by problem id; of those that leave no room for an answer, what is wrong)."""
    with quiet(args.verbose):
        prompts = Prompts(model, args)
    room = sampling.max_len - sampling.max_new_tokens
    texts: dict[str, str] = {}
    too_long: dict[str, str] = {}
    for problem in problems:
        text = prompts(problem)
        tokens = prompts.num_tokens(text)
        if tokens > room:
            too_long[problem.id] = (
                f"the prompt has {tokens} tokens (template {problem.template!r}), and --max_len {sampling.max_len} "
                f"less --max_new_tokens {sampling.max_new_tokens} leaves {room}"
            )
        else:
            texts[problem.id] = text
    return texts, too_long


def sample_missing(
    model: str, problem_sets: Sequence[ProblemSet], args: argparse.Namespace, sampling: Sampling, progress: Counting
) -> dict[str, list[AnswerRow]]:
    """All answers by the name of the set; engines start, or a server is asked, only if some are missing.

    Raises ConfigError for a reward that cannot grade, OtherSettingsError and ServerError.
    """
    sets = {problem_set.name: problem_set for problem_set in problem_sets}
    # Engines have one reward file: that of a user, or the one that serves all graders of labels.
    reward = MIXED if grades_labels(problem_sets[0].reward) else problem_sets[0].reward
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(closing(AnswerFile(one.folder, _settings(model, one, args, sampling))))
            for name, one in sets.items()
        }
        wanted = [
            one.asked(*missing)
            for name, one in sets.items()
            for missing in files[name].missing(one.problems, sampling.n)
        ]

        def keep(asked: Asked, sampled: Sampled) -> None:
            files[asked.problem_set].add(sets[asked.problem_set].row(asked, sampled))
            progress.advance(sampled.score is not None and sampled.score > args.right_above)

        _try_reward(reward, wanted, progress)
        if wanted and getattr(args, "base_url", None):
            _ask_server(model, reward, wanted, args, sampling, progress, keep)
        elif wanted:
            stack.enter_context(quiet(args.verbose))
            progress.phase(f"{model}: starting engines, {len(wanted):,} answers to sample")
            sampler = stack.enter_context(open_sampler(model, reward, args, sampling, progress.note))
            progress.count(model, "answers", len(wanted))
            sampler.sample(wanted, keep)
        else:
            progress.note(f"{model}: all answers are there, nothing is sampled")
        return {name: [row for row in file.rows if row.index < sampling.n] for name, file in files.items()}


def _try_reward(reward: str, wanted: Sequence[Asked], progress: Counting) -> None:
    """Before anything starts, as `train` does. Raises ConfigError."""
    first = {(asked.problem_set, asked.problem): asked for asked in wanted}.values()
    rows = rows_for(split_names(reward), [(as_text(asked.prompt), asked.label) for asked in first])
    with Trials("--reward", rows) as trials:
        for verdict in trials.verdicts(rows):
            if error := verdict.error():
                raise error
            if line := verdict.note():
                progress.note(line)


def _ask_server(
    model: str,
    reward: str,
    wanted: Sequence[Asked],
    args: argparse.Namespace,
    sampling: Sampling,
    progress: Counting,
    keep: Callable[[Asked, Sampled], None],
) -> None:
    progress.phase(f"{model}: {len(wanted):,} answers to sample from {base_url_of(args.base_url)}")
    with quiet(args.verbose):
        from openrlhf_ada.eval.served_answers import Grader, sample_from_server

        server = server_of(model, args, sampling, progress.note)
        with Grader(reward, grading_of(args), args.timeout) as grader:
            progress.count(model, "answers", len(wanted))
            sample_from_server(
                wanted, server, grader, seed=sampling.seed, concurrency=args.concurrency, on_answer=keep
            )


def group_answers(
    problem_set: ProblemSet, rows: Sequence[AnswerRow], right_above: float
) -> tuple[list[Answered], int]:
    """As `eval.answers.answered`; raises DataError where no answer has a score."""
    reward = problem_set.reward
    same = (lambda answer: answer_name(reward, answer)) if reward in VOTING else None
    found, without = answered(rows, problem_set.problems, right_above, same)
    if not found:
        ((cause, _),) = Counter(row.cause for row in rows).most_common(1)
        raise DataError(f"{problem_set.name}: no answer has a score; the commonest cause: {cause}")
    return found, without


def _settings(model: str, problem_set: ProblemSet, args: argparse.Namespace, sampling: Sampling) -> dict[str, Any]:
    """Everything that an answer depends on. The number of answers is left out, so more can be added later."""
    url = getattr(args, "base_url", None)
    problems = problem_set.problems.values()
    graders = {problem_set.reward, *(problem.reward for problem in problems if problem.reward)}
    files = sorted({(file_and_function(name) or (name,))[0] for name in graders})
    contents = [Path(file).read_bytes() for file in files if file.endswith(".py")]
    return {
        "model": model,
        "model_files": "" if url else _fingerprint(model),
        "base_url": base_url_of(url) if url else None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "max_len": None if url else sampling.max_len,
        "seed": sampling.seed,
        "engine_args": recorded(args.engine_args, "--engine_args"),
        "template": "\n".join(sorted({problem.template for problem in problems})),
        "system": args.system,
        "chat": not args.no_chat,
        **{name: getattr(sampling, name) for name in PASSED_ON},
        "reward": without_logins(problem_set.reward),
        "reward_file": hashlib.sha256(b"".join(contents)).hexdigest() if contents else "",
    }


def _fingerprint(model: str) -> str:
    """Names, sizes and times of a local model's weight files. A new checkpoint may replace one in the same folder."""
    files = sorted(path for pattern in WEIGHTS for path in Path(model).glob(pattern))
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16] if stats else ""
