"""What the flags of a training name: model, data and reward, by the checks that a training makes at its start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
from openrlhf_ada.data.checks import UNKNOWN, Columns, check_prompt_datasets, is_local
from openrlhf_ada.data.examples import DataSets, Example, read_examples
from openrlhf_ada.data.hub import HUB_S, check_hub_table, go_offline_without_hub, hub_address
from openrlhf_ada.data.verification import reference_response
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding
from openrlhf_ada.platforms.resources import Slots, required_slots
from openrlhf_ada.platforms.session import check_this_machine, cluster_to_join
from openrlhf_ada.platforms.stack_check import usable_gpus
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.names import check_rewards, split_names
from openrlhf_ada.reward.pool import GraderError, GraderPool, limits_of
from openrlhf_ada.reward.reward_function import GRADERS, MIXED, NAMED, grader_of
from openrlhf_ada.reward.trial import ROWS, Trials, Verdict
from openrlhf_ada.trainer.preflight import (
    MODEL_FLAGS,
    check_hub_model,
    check_model,
    check_outputs,
    check_without_files,
)
from openrlhf_ada.trainer.training_data import contradictions_in, row_rewards, trial_rows

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
        args = parse(words, check_without_files)
        check_outputs(args)
        check_this_machine(args)
        slots = required_slots(args)
        _check_slots(slots)
    except USER_ERRORS as error:
        return Finding("flags", ERROR, str(error))
    said = f"they make a run of mode {args.ada.mode}, which takes {slots.gpus} GPU slots: {slots.describe()}"
    return Finding("flags", OK, said)


def _check_slots(slots: Slots) -> None:
    """Has this machine as many GPUs? On a CPU slots are logical; a cluster's are counted when it is joined.

    Raises MissingResourcesError.
    """
    gpus = usable_gpus()
    if gpus and not without_gpu.is_needed() and cluster_to_join() is None:
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
            for line in contradictions_in(flag, flags):
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
    flag = "--reward.remote_url"
    names = split_names(flags.reward.remote_url)
    try:
        check_rewards(flags.reward.remote_url, flag)
        examples = _first_rows(flags)
        rows = trial_rows(flags, row_rewards(flags)) if examples else {}
    except USER_ERRORS as error:
        yield Finding("reward", ERROR, str(error))
        return
    with Trials(flag, names) as trials:
        yield from map(_finding, trials.verdicts(rows))
    for name in (name for name in names if name in (*NAMED, MIXED)):
        try:
            with GraderPool(grader_of(name), limits_of(flags.ada), 1) as pool:
                grades = [pool.grade(_reference(name, example.label), example.label) for example in examples]
            yield _finding(Verdict(flag, name, grades=grades))
        except GraderError as error:
            yield Finding("reward", ERROR, str(error))


def _finding(verdict: Verdict) -> Finding:
    if error := verdict.error():
        return Finding("reward", ERROR, str(error))
    if note := verdict.note():
        return Finding("reward", WARNING, note)
    if not verdict.grades:
        return Finding("reward", OK, f"{verdict.name}: there; no local rows to try it on")
    scores = ", ".join(f"{grade.score:g}" for grade in verdict.grades)
    rows = f"the labels of the first {len(verdict.grades)} rows"
    return Finding("reward", OK, f"{verdict.name} gives {scores} to {rows} as answers")


def _first_rows(flags: SimpleNamespace) -> list[Example]:
    """Of a local file; none of what a hub has."""
    path = next(iter(_paths(flags.data.prompt_dataset)), None)
    if path is None or not is_local(path, "--data.prompt_dataset"):
        return []
    rewards = row_rewards(flags)
    sets = DataSets("--data.prompt_dataset", path, _columns(flags), most_rows=ROWS, rewards=rewards)
    return read_examples(sets)


def _reference(name: str, label: Any) -> str:
    """An answer that should be right, as far as one is known."""
    grader, own = (named_label(label) or (name, label)) if name == MIXED else (name, label)
    return reference_response(grader, own) if grader in GRADERS else str(own)
