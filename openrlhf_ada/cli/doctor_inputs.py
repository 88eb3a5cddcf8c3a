"""What the flags of a training name: model, data and reward, by the checks that a training makes at its start."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse, quiet
from openrlhf_ada.config.schema import AdaConfig, from_namespace
from openrlhf_ada.data.checks import UNKNOWN, Columns, check_prompt_datasets, is_local
from openrlhf_ada.data.examples import DataSets, Example, read_examples
from openrlhf_ada.data.hub import HUB_S, check_hub_table, go_offline_without_hub, hub_address
from openrlhf_ada.data.verification import reference_response
from openrlhf_ada.platforms import cpu
from openrlhf_ada.platforms.findings import ERROR, OK, WARNING, Finding
from openrlhf_ada.platforms.resources import Slots, required_slots
from openrlhf_ada.platforms.session import check_this_machine, cluster_to_join
from openrlhf_ada.platforms.stack_check import usable_gpus
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.names import check_rewards, grades_labels, split_names
from openrlhf_ada.reward.pool import GraderError, GraderPool, limits_of
from openrlhf_ada.reward.reward_function import GRADERS, MIXED, Grading, grader_of
from openrlhf_ada.trainer.preflight import (
    MODEL_FLAGS,
    check_hub_model,
    check_model,
    check_outputs,
    check_without_files,
)
from openrlhf_ada.trainer.training_data import contradictions_in, row_rewards

ROWS = 3
"""That the reward grades."""

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "adapter_config.json")


class _ParsedError(Exception):
    """Carries the flags out of their parser, before anything is required of them."""

    def __init__(self, flags: SimpleNamespace) -> None:
        super().__init__()
        self.flags = flags


def input_findings(words: Sequence[str]) -> Iterator[Finding]:
    """`words`: of `openrlhf-ada train`, some of them or all. Only what they name is looked at."""
    try:
        whole = expanded("train", words)
        flags = flags_of(whole)
    except USER_ERRORS as error:
        yield Finding("flags", ERROR, str(error))
        return
    if _is_whole(flags):
        yield _run(whole)
    yield from _hub(flags)
    for name in MODEL_FLAGS:
        model = getattr(flags, name).model_name_or_path
        if model is not None:
            yield _model(f"--{name}.model_name_or_path", model, trusted=flags.ada.trust_remote_code)
    for flag, spec in (("--data.prompt_dataset", flags.data.prompt_dataset), ("--eval.dataset", flags.eval.dataset)):
        if spec:
            yield from _data(flag, spec, flags)
    if flags.reward.remote_url:
        yield from _rewards(flags)


def flags_of(words: Sequence[str]) -> SimpleNamespace:
    """Parsed, with nothing required of them. Raises ConfigError, and SystemExit for a flag that there is not."""

    def stop(flags: SimpleNamespace) -> NoReturn:
        raise _ParsedError(flags)

    try:
        parse(words, stop)
    except _ParsedError as parsed:
        return parsed.flags
    raise AssertionError("the parser of a training checks its flags")


def _is_whole(flags: SimpleNamespace) -> bool:
    """Do they name all that a training needs?"""
    scorers = (flags.reward.remote_url, flags.reward.model_name_or_path, flags.train.agent_func_path)
    return bool(flags.actor.model_name_or_path and flags.data.prompt_dataset and any(scorers))


def _run(words: Sequence[str]) -> Finding:
    """Do the flags make a run, and does it fit this machine?"""
    try:
        args, config = parse(words, check_without_files)
        check_outputs(args)
        check_this_machine(args)
        slots = required_slots(args)
        _check_slots(slots)
    except USER_ERRORS as error:
        return Finding("flags", ERROR, str(error))
    said = f"they make a run of mode {config.mode}, which takes {slots.gpus} GPU slots: {slots.describe()}"
    return Finding("flags", OK, said)


def _check_slots(slots: Slots) -> None:
    """Has this machine as many GPUs? On a CPU slots are logical; a cluster's are counted when it is joined.

    Raises MissingResourcesError.
    """
    gpus = usable_gpus()
    if gpus and not cpu.is_needed() and cluster_to_join() is None:
        present = {"GPU": gpus, "CPU": len(os.sched_getaffinity(0))}
        slots.check(present, free=present)


def _hub(flags: SimpleNamespace) -> Iterator[Finding]:
    """Asked only where something of it is named."""
    models = [getattr(flags, name).model_name_or_path for name in MODEL_FLAGS]
    sets = [path for spec in (flags.data.prompt_dataset, flags.eval.dataset) for path in _paths(spec)]
    try:
        remote = [model for model in models if model and not Path(model).exists()]
        remote += [path for path in sets if not is_local(path, "") and "://" not in path]
    except USER_ERRORS:
        # The data say so themselves.
        return
    if remote and go_offline_without_hub():
        yield Finding(
            "hub",
            WARNING,
            f"{hub_address()} does not answer within {HUB_S:g} s: only what is in the cache can be used",
            "Give local folders and files, a mirror (HF_ENDPOINT), or a proxy (HTTPS_PROXY)",
        )


def _paths(spec: str | None) -> list[str]:
    return [part.partition("@")[0].strip() for part in (spec or "").split(",") if part.strip()]


def _model(flag: str, model: str, *, trusted: bool) -> Finding:
    try:
        check_model(flag, model, trusted=trusted)
        check_hub_model(flag, model, trusted=trusted)
    except USER_ERRORS as error:
        return Finding("model", ERROR, str(error))
    folder = Path(model)
    if not folder.is_dir():
        return Finding("model", OK, f"{model}: of the hub, its configuration can be read")
    weights = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)})
    if not weights:
        remedy = "Give the folder of a whole checkpoint"
        return Finding("model", ERROR, f"{flag}: {folder} has a config.json and no weights", remedy)
    size = sum(path.stat().st_size for path in weights)
    return Finding("model", OK, f"{folder}: {size / (1 << 20):,.0f} MiB of weights")


def _data(flag: str, spec: str, flags: SimpleNamespace) -> Iterator[Finding]:
    remedy = "Check the name, or give a local file (.jsonl or .parquet)."
    try:
        rows = check_prompt_datasets(spec, columns=_columns(flags), flag=flag)
        if rows != UNKNOWN:
            yield Finding("data", OK, f"{spec}: {rows:,} rows")
            for line in contradictions_in(flag, flags, from_namespace(flags.ada)):
                yield Finding("data", WARNING, line)
            return
        for path in _paths(spec):
            if not is_local(path, flag) and "://" not in path:
                check_hub_table(path, where=f"{flag}: {path}", remedy=remedy)
    except USER_ERRORS as error:
        yield Finding("data", ERROR, str(error))
        return
    yield Finding("data", OK, f"{spec}: there; its rows are read when a training starts")


def _columns(flags: SimpleNamespace) -> Columns:
    return Columns(flags.data.input_key, flags.data.label_key, chat=flags.data.apply_chat_template)


# -- rewards ----------------------------------------------------------------------------------------------------------


def _rewards(flags: SimpleNamespace) -> Iterator[Finding]:
    """Each grades the first rows, with their own labels for answers."""
    config = from_namespace(flags.ada)
    names = split_names(flags.reward.remote_url)
    try:
        check_rewards(flags.reward.remote_url, "--reward.remote_url")
        examples = _first_rows(flags, config)
    except USER_ERRORS as error:
        yield Finding("reward", ERROR, str(error))
        return
    if not examples:
        yield Finding("reward", OK, f"{', '.join(names)}: there; no local rows to try it on")
        return
    for name in names:
        try:
            yield _verdict(name, _graded(name, examples, config))
        except GraderError as error:
            yield Finding("reward", ERROR, str(error))


def _first_rows(flags: SimpleNamespace, config: AdaConfig) -> list[Example]:
    """Of a local file; none of what a hub has."""
    path = next(iter(_paths(flags.data.prompt_dataset)), None)
    if path is None or not is_local(path, "--data.prompt_dataset"):
        return []
    rewards = row_rewards(flags, config)
    sets = DataSets("--data.prompt_dataset", path, _columns(flags), most_rows=ROWS, rewards=rewards)
    return read_examples(sets)


def _graded(name: str, examples: Sequence[Example], config: AdaConfig) -> list[TimedGrade]:
    if not grades_labels(name):
        with quiet(False):
            return asyncio.run(_asked(name, examples, config))
    with GraderPool(grader_of(name), limits_of(config), 1) as pool:
        return [pool.grade(_reference(name, example.label), example.label) for example in examples]


def _reference(name: str, label: Any) -> str:
    """An answer that should be right, as far as one is known."""
    grader, own = (named_label(label) or (name, label)) if name == MIXED else (name, label)
    return reference_response(grader, own) if grader in GRADERS else str(own)


async def _asked(name: str, examples: Sequence[Example], config: AdaConfig) -> list[TimedGrade]:
    """By a reward file or a server, as an engine asks it."""
    if cpu.is_needed():
        cpu.activate()
    from openrlhf_ada.eval.answers import Asked, as_text
    from openrlhf_ada.eval.openai_server import Reply
    from openrlhf_ada.eval.served_answers import Grader

    with Grader(name, Grading(limits_of(config), 1), config.reward_timeout) as grader:
        found: list[TimedGrade] = []
        for number, example in enumerate(examples):
            asked = Asked("doctor", str(number), 0, as_text(example.question), example.label)
            sampled = await grader.grade(asked, Reply(str(example.label), None, truncated=False))
            found.append(TimedGrade(sampled.score, sampled.cause, 0.0))
        return found


def _verdict(name: str, grades: Sequence[TimedGrade]) -> Finding:
    without = next((grade.cause for grade in grades if grade.score is None), None)
    if without is not None:
        remedy = "Correct the reward, or the labels (--data.label_key)"
        return Finding("reward", ERROR, f"{name} gives no score: {without}", remedy)
    scores = ", ".join(f"{grade.score:g}" for grade in grades if grade.score is not None)
    return Finding("reward", OK, f"{name} gives {scores} to the labels of the first {len(grades)} rows as answers")
