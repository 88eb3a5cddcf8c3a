"""Rollouts that another trainer has logged: verl, TRL, prime-rl and slime.

verl: `trainer.rollout_data_dir`, a JSONL file a step. TRL: `log_completions`, a Parquet file each time it logs.
prime-rl: `rollouts/step_N/train/all/traces.jsonl`. slime: `--save-debug-rollout-data`, a file of torch a step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_ada.reporting.jsonl import read_rows
from openrlhf_ada.reporting.run_log import CONFIG_FILE
from openrlhf_ada.reporting.run_record import is_number

CHARS_PER_TOKEN = 4.0
"""Where a log has texts and no lengths."""

POSITIVE_ABOVE = 0.5
"""A rollout is right above this score, if the log has more than two scores."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One that was logged. `prompt`: the same for all rollouts of a prompt in a step. `score`: NaN if it has none."""

    step: int
    prompt: str
    score: float
    tokens: float


@dataclass(slots=True)
class Log:
    """`groups`: rollouts with a score of each prompt of each step. `unscored`: rollouts without one, left out."""

    trainer: str
    counts_tokens: bool
    groups: dict[tuple[int, str], list[Rollout]] = field(default_factory=dict)
    unscored: int = 0

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups.values() for rollout in group]

    @property
    def steps(self) -> int:
        return len({step for step, _ in self.groups})

    @property
    def positive_above(self) -> float:
        """The score above which a rollout is right: the lower of two, if there are no more."""
        found = sorted({rollout.score for rollout in self.rollouts})
        return found[0] if len(found) == 2 else POSITIVE_ABOVE

    @property
    def usual_size(self) -> int:
        """Rollouts of a prompt: the most frequent number."""
        return Counter(len(group) for group in self.groups.values()).most_common(1)[0][0]


def is_log(path: Path) -> bool:
    """Is it a log that `read_log` may know, rather than a run of ours?"""
    return path.exists() and not (path / CONFIG_FILE).exists() and bool(_files(path))


def read_log(path: Path, score: str | None = None) -> Log:
    """A folder of a log, or one of its files. `score`: the field that has it, where the trainer logs several.

    Raises ValueError for what is no such log, and for one without a score; ModuleNotFoundError where TRL's or slime's
    files cannot be read without pandas or torch.
    """
    found = _files(path)
    if not found:
        raise ValueError(
            f"{path} is no log of {', '.join(_FORMS)}: name verl's rollout_data_dir, TRL's folder `completions`, "
            "prime-rl's folder `rollouts` or the files of slime's --save-debug-rollout-data"
        )
    trainer, files = found
    log = Log(trainer, counts_tokens=trainer in ("prime-rl", "slime"))
    for rollout in _FORMS[trainer].read(files, score):
        if math.isnan(rollout.score):
            log.unscored += 1
        else:
            log.groups.setdefault((rollout.step, rollout.prompt), []).append(rollout)
    if not log.groups:
        raise ValueError(f"{path}: none of its {log.unscored:,} rollouts has a score")
    return log


def _wrong(path: Path, what: str, line: int = 0) -> ValueError:
    place = f"{path}, line {line}" if line else str(path)
    return ValueError(f"{place}: {what}. Name the log of a trainer as it was written, or leave this file out")


def _number(value: Any, name: str, path: Path, line: int) -> float:
    """Raises ValueError for anything else. None is NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or is_number(value):
        return float(value)
    raise _wrong(path, f"{name!r} is {value!r}, expected a number", line)


# -- verl -------------------------------------------------------------------------------------------------------------


def _verl(files: Sequence[Path], score: str | None) -> Iterator[Rollout]:
    for path in files:
        for line, row in read_rows(path):
            missing = [name for name in ("input", "output", "step", score or "score") if name not in row]
            if missing:
                raise _wrong(path, f"no {missing[0]!r}", line)
            # Where it is there: PROMPT_ROLLOUT_OUTPUT. The same text may be in a step twice.
            prompt = str(row["uid"]).rsplit("_", 2)[0] if "uid" in row else str(row["input"])
            value = _number(row[score or "score"], score or "score", path, line)
            tokens = len(str(row["output"])) / CHARS_PER_TOKEN
            yield Rollout(int(_number(row["step"], "step", path, line)), prompt, value, tokens)


# -- TRL --------------------------------------------------------------------------------------------------------------

_TRL_FIELDS = ("step", "prompt", "completion", "advantage")


def _trl(files: Sequence[Path], score: str | None) -> Iterator[Rollout]:
    """Its last batch is logged again until there is a new one: what was seen is left out."""
    import pandas as pd

    seen: set[int] = set()
    for path in files:
        table = pd.read_parquet(path)
        if missing := [name for name in _TRL_FIELDS if name not in table]:
            raise _wrong(path, f"no column {missing[0]!r}")
        column = score or _score_column(path, table)
        if column not in table:
            raise _wrong(path, f"no column {column!r}")
        prompts, texts = ([_text(value) for value in table[name]] for name in ("prompt", "completion"))
        batch = hash((*prompts, *texts))
        if batch in seen:
            continue
        seen.add(batch)
        for number, row in enumerate(table.to_dict("records")):
            value = math.nan if row[column] is None else float(row[column])
            yield Rollout(int(row["step"]), prompts[number], value, len(texts[number]) / CHARS_PER_TOKEN)


def _text(value: Any) -> str:
    """Of a prompt or an answer, which may be messages."""
    return value if isinstance(value, str) else "\n".join(str(message.get("content")) for message in value)


def _score_column(path: Path, table: Any) -> str:
    """Raises ValueError where several may be the score: TRL weights its rewards, and does not log how."""
    found = [str(name) for name in table.columns if name not in _TRL_FIELDS and table[name].dtype.kind in "fiub"]
    if len(found) != 1:
        said = f"rewards {', '.join(found)}" if found else "no rewards"
        raise ValueError(f"{path} has {said}. Say by --score NAME which of its columns is the score")
    return found[0]


# -- prime-rl ---------------------------------------------------------------------------------------------------------


def _prime_rl(files: Sequence[Path], score: str | None) -> Iterator[Rollout]:
    for path in files:
        found = [part for part in path.absolute().parts if _STEP.fullmatch(part)]
        if not found:
            raise _wrong(path, "no folder step_N above it, where prime-rl writes it")
        step = int(found[-1].removeprefix("step_"))
        for line, row in read_rows(path):
            group, traces = row.get("group"), row.get("traces")
            if not isinstance(group, dict) or "id" not in group or not isinstance(traces, list):
                raise _wrong(path, "no group.id and traces, as episodes of prime-rl have", line)
            for trace in traces:
                # Agents of an episode have groups of their own.
                agent = str((trace.get("agent") or {}).get("name", ""))
                tokens = _number(trace.get("num_output_tokens", 0), "num_output_tokens", path, line)
                yield Rollout(step, f"{group['id']} {agent}", _traced(trace, score, path, line), tokens)


_STEP = re.compile(r"step_\d+")


def _traced(trace: Row, score: str | None, path: Path, line: int) -> float:
    """The sum of the weighted rewards of a trace; NaN where one is missing."""
    rewards = trace.get("rewards") or {}
    if score is not None and score not in rewards:
        raise _wrong(path, f"no reward {score!r}", line)
    found = [rewards[score]] if score is not None else list(rewards.values())
    if not found or any(reward is None for reward in found):
        return math.nan
    return sum(_number(r["score"], "score", path, line) * float(r.get("weight", 1.0)) for r in found)


# -- slime ------------------------------------------------------------------------------------------------------------


def _slime(files: Sequence[Path], score: str | None) -> Iterator[Rollout]:
    import pickle

    import torch

    for path in files:
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
        if not isinstance(held, dict) or not isinstance(held.get("samples"), list):
            raise _wrong(path, "no 'samples'")
        for number, sample in enumerate(held["samples"], start=1):
            reward, length = sample.get("reward"), sample.get("response_length")
            if isinstance(reward, dict):
                if score not in reward:
                    names = ", ".join(map(str, reward))
                    raise ValueError(f"{path}: a reward has {names}. Say by --score NAME which is the score")
                reward = reward[score]
            if length is None:
                raise _wrong(path, "no 'response_length'", number)
            group = sample.get("group_index")
            prompt = str(sample.get("prompt") if group is None else group)
            yield Rollout(
                int(held.get("rollout_id", 0)), prompt, _number(reward, "reward", path, number), float(length)
            )


# -- which it is ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """`names`: of files, below the folder that is named. `of_a_step`: the names of those that are of training."""

    names: str
    of_a_step: re.Pattern[str]
    read: Callable[[Sequence[Path], str | None], Iterator[Rollout]]


_FORMS = {
    "verl": _Form("*.jsonl", re.compile(r"\d+\.jsonl"), _verl),
    "TRL": _Form("*.parquet", re.compile(r"completions_\d+\.parquet"), _trl),
    "prime-rl": _Form("**/step_*/train/all/traces.jsonl", re.compile(r"traces\.jsonl"), _prime_rl),
    "slime": _Form("*.pt", re.compile(r"\d+\.pt"), _slime),
}


def _files(path: Path) -> tuple[str, list[Path]] | None:
    """(trainer, files in the order of their steps), by their names."""
    for trainer, form in _FORMS.items():
        found = [path] if path.is_file() else list(path.glob(form.names))
        found = [file for file in found if form.of_a_step.fullmatch(file.name)]
        if found:
            return trainer, sorted(found, key=_numbers)
    return None


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", "/".join(path.parts[-5:]))]


# -- what it says -----------------------------------------------------------------------------------------------------


def shares(log: Log) -> tuple[float, float, float]:
    """Of prompts: all rollouts wrong, all right, with different scores."""
    equal = [group[0].score for group in log.groups.values() if _is_equal(group)]
    right = sum(score > log.positive_above for score in equal)
    total = len(log.groups)
    return (len(equal) - right) / total, right / total, 1 - len(equal) / total


def equal_rollouts(log: Log) -> int:
    """Of prompts whose rollouts have one score only."""
    return sum(len(group) for group in log.groups.values() if _is_equal(group))


def _is_equal(group: Sequence[Rollout]) -> bool:
    return len({rollout.score for rollout in group}) == 1
