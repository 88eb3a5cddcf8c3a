"""Every row that a run will use is read before anything starts, as OpenRLHF will read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.passed_on import arguments_of, check_known
from openrlhf_ada.data.examples import DataSets, Example, read_examples
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.handover import HandedOver, PromptRoom, Reader, hand_over
from openrlhf_ada.data.labels import about_contradicting, contradicting, read_labels
from openrlhf_ada.data.left_out import LeftOut, lines_about, why_few
from openrlhf_ada.data.prepared import DRAWS
from openrlhf_ada.data.problems import Problem, final_part
from openrlhf_ada.data.questions import Columns, has_image, rendered
from openrlhf_ada.data.row_rewards import KEY, RowRewards, parse_map
from openrlhf_ada.host.rows import prompt_maker
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.reporting.recorded_flags import flat
from openrlhf_ada.reporting.redaction import plain, redact
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.names import split_names
from openrlhf_ada.reward.pool import limits_of
from openrlhf_ada.reward.reward_function import MIXED, NAMED
from openrlhf_ada.reward.trial import ROWS, Row, rows_for
from openrlhf_ada.trainer.checkpoints import Origin
from openrlhf_ada.trainer.preflight import check_rows

FOLDER, LIST = "data", "left_out.jsonl"
"""In the run directory: data sets that were written anew, and rows that were left out."""

MIXED_ROWS = 200
"""Among which each row's own grader is tried."""

BATCH = 1000
"""Prompts that are turned into tokens at a time."""


def prepare_training_data(args: SimpleNamespace) -> list[str]:
    """Read all rows, and let `args` name data sets that OpenRLHF reads as they are. Returns lines to show.

    `args` also gets the `ada_origin` of its checkpoints, by which a resumed run knows that they are of the same run.

    Rows whose prompt is too long, or whose label no grader of ours can read, are left out and listed in the run
    directory. `args`: as OpenRLHF has parsed them; its data sets may be changed.

    Raises:
        ConfigError, DataError: a row that no run can use, or too few rows.
    """
    run_dir = args.ada.resolved_run_dir(args.logger.wandb.run_name)
    lines: list[str] = []
    (run_dir / LIST).unlink(missing_ok=True)
    rewards = None
    if MIXED in split_names(args.reward.remote_url):
        rewards = RowRewards(args.ada.reward_key or KEY, parse_map(args.ada.reward_map, "--ada_reward_map"))
    # All rows first: without a hub, the library that reads them must not be imported before that is known.
    found = [(sets, read_examples(sets)) for sets in _data_sets(args, rewards)]
    check_rows(args, len(found[0][1]))
    if args.ada.chat_template_args or args.ada.sampling_args:
        check_known(_tokenizer(args), args.ada, "--ada_")
    # Agents make prompts of their own.
    room = None if args.train.agent_func_path else _room(args)
    for sets, examples in found:
        reader = _label_reader(sets, args)
        handed = hand_over(sets, examples, run_dir / FOLDER, read=reader, prompts=room, listed=run_dir / LIST)
        lines += lines_about(handed.left_out, sets.flag, len(examples), run_dir / LIST)
        if handed.spec != sets.spec and not handed.left_out:
            why = "OpenRLHF's loader would change values" if sets.rewards is None else "each row with its grader"
            lines.append(f"{sets.flag}: the rows of {sets.spec} are read from {handed.spec} ({why})")
        lines += [f"{sets.flag}: {line}" for line in _contradictions(examples, handed.left_out, args)]
        section, name = sets.flag.removeprefix("--").split(".")
        if section == "data":
            _check_enough(args, handed, len(examples), run_dir / LIST)
            args.ada_origin = Origin(dict(flat(redact(plain(args)))), fingerprint(examples))
        setattr(getattr(args, section), name, handed.spec)
    return lines


def _contradictions(examples: Sequence[Example], left_out: Sequence[LeftOut], args: SimpleNamespace) -> list[str]:
    """Of the rows that are kept. Questions of different images may be the same."""
    if args.data.label_key is None:
        return []
    out = {(one.source, one.place) for one in left_out}
    problems: list[Problem] = []
    for example in examples:
        if (example.source, example.place) not in out and not example.others.get(args.data.image_key):
            reward, label = named_label(example.label) or (None, example.label)
            problems.append(Problem("", example.question, final_part(label), example.source, example.place, reward))
    reward = next(iter(split_names(args.reward.remote_url)), "")
    return about_contradicting(contradicting(problems, reward, limits_of(args.ada)), len(examples))


def fingerprint(examples: Sequence[Example]) -> str:
    """Of prompts and reference answers, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.question, example.label], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def trial_rows(args: SimpleNamespace) -> dict[str, list[Row]]:
    """What the user's rewards are asked about before anything starts: the first rows of the first data set, as
    OpenRLHF makes prompts of them. Raises ConfigError and DataError."""
    names = split_names(args.reward.remote_url)
    if args.train.agent_func_path or set(names) <= set(NAMED):
        return {}
    sets = replace(
        _data_sets(args, None)[0],
        spec=args.data.prompt_dataset.split(",")[0],
        most_rows=min(MIXED_ROWS if MIXED in names else ROWS, args.data.max_samples),
    )
    make, end = _prompt_maker(args)
    examples = read_examples(sets)
    asked = [(_prompt(make, e, args, sets.flag), "" if e.label is None else e.label) for e in examples]
    return rows_for(names, asked, end)


def _check_enough(args: SimpleNamespace, handed: HandedOver, total: int, file: Path) -> None:
    """Raises ConfigError, which says why rows are few."""
    try:
        check_rows(args, handed.rows)
    except ConfigError as error:
        if not handed.left_out:
            raise
        rule = f"{why_few(handed.left_out, total, file)}. So {error.rule}"
        raise ConfigError(error.flag, error.value, rule, error.remedy) from error


def _label_reader(sets: DataSets, args: SimpleNamespace) -> Reader | None:
    """Of our graders; None where there are none."""
    named = [name for name in split_names(args.reward.remote_url) if name in (*NAMED, MIXED)]

    def read(examples: Sequence[Example]) -> dict[int, str]:
        # The labels that `prepare-data` has written can be read.
        asked = [position for position, example in enumerate(examples) if DRAWS not in example.others]
        labels = [examples[position].label for position in asked]
        own = labels if sets.rewards is None else [(named_label(label) or (None, label))[1] for label in labels]
        found = [read_labels(labels if name == MIXED else own, name, limits_of(args.ada)) for name in reversed(named)]
        return {asked[position]: cause for one in found for position, cause in one.items()}

    return read if named else None


def _data_sets(args: SimpleNamespace, rewards: RowRewards | None) -> list[DataSets]:
    """Those of the flags: prompts, and held-out prompts if there are any."""
    common: dict[str, Any] = {
        "columns": Columns(args.data.input_key, args.data.label_key, chat=args.data.apply_chat_template),
        "image_key": args.data.image_key,
        "most_rows": args.data.max_samples,
        "use_ms": args.use_ms,
        "rewards": rewards,
    }
    flag, blended = "--data.prompt_dataset", args.data.prompt_probs is not None
    found = [DataSets(flag, args.data.prompt_dataset, split=args.data.prompt_split, blended=blended, **common)]
    if args.eval.dataset:
        found.append(DataSets("--eval.dataset", args.eval.dataset, split=args.eval.split, **common))
    return found


# -- the length of prompts ----------------------------------------------------------------------------------------


def _room(args: SimpleNamespace) -> PromptRoom:
    """OpenRLHF's rule: a prompt and --rollout.max_new_tokens, or one token without it, fit into --data.max_len."""
    new = args.rollout.max_new_tokens
    rule = f"--data.max_len {args.data.max_len}" + (f" less --rollout.max_new_tokens {new}" if new else "")
    tokenizer = _tokenizer(args)
    make, _ = _prompt_maker(args)
    sees_images = hasattr(tokenizer, "image_processor")

    def count(examples: Sequence[Example], flag: str) -> list[int]:
        counts: list[int] = []
        for batch in (examples[start : start + BATCH] for start in range(0, len(examples), BATCH)):
            # OpenRLHF refuses, by itself, a prompt with images that is too long: their tokens are known then.
            images = [_has_image(example, args, flag, sees_images=sees_images) for example in batch]
            texts = [_prompt(make, example, args, flag) for example in batch]
            tokens = tokenizer(text=texts, add_special_tokens=False)["input_ids"]
            counts += [0 if skip else len(ids) for skip, ids in zip(images, tokens, strict=True)]
        return counts

    return PromptRoom(count, args.data.max_len - (new or 1), rule)


def _has_image(example: Example, args: SimpleNamespace, flag: str, *, sees_images: bool) -> bool:
    """Raises DataError for an image that the model would never see."""
    images = bool(example.others.get(args.data.image_key))
    if not sees_images and (images or has_image(example.question, marked=args.data.apply_chat_template)):
        raise DataError(
            f"{flag}: {example.source} {example.place} has an image (--data.image_key {args.data.image_key}, or a "
            f"place for one in its prompt), and {args.actor.model_name_or_path} reads text only: remove it, or name "
            f"another column"
        )
    return images


def _prompt_maker(args: SimpleNamespace) -> tuple[Callable[[Any], str], str]:
    """(from the question of a row to its prompt, the text of the token that ends an answer)."""
    if args.actor.model_name_or_path is None:
        return lambda question: question if isinstance(question, str) else json.dumps(question), ""
    tokenizer, given = _tokenizer(args), arguments_of(args.ada.chat_template_args)
    chat = partial(tokenizer.apply_chat_template, **given) if args.data.apply_chat_template else None
    return prompt_maker(args.data.input_template, chat), getattr(tokenizer, "eos_token", None) or ""


def _prompt(make: Callable[[Any], str], example: Example, args: SimpleNamespace, flag: str) -> str:
    where = f"{flag}: {example.source} {example.place}"
    try:
        return rendered(example.question, make, where)
    except DataError:
        raise
    except (KeyError, IndexError, ValueError, TypeError) as error:
        if args.data.input_template is None or args.data.apply_chat_template:
            raise DataError(f"{where} makes no prompt ({error!r}): correct the row") from error
        raise ConfigError(
            "--data.input_template",
            args.data.input_template,
            f"it cannot be filled with a prompt ({error!r}); {{}} stands for the prompt, and other braces are doubled",
            "Correct it",
        ) from error


def _tokenizer(args: SimpleNamespace) -> Any:
    if without_gpu.is_needed():
        without_gpu.activate()
    from openrlhf_ada.host.tokenizer import load_tokenizer

    model = args.actor.model_name_or_path
    try:
        return load_tokenizer(model, not args.data.disable_fast_tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "--actor.model_name_or_path",
            model,
            f"its tokenizer cannot be loaded ({(str(error).splitlines() or ['no message'])[0]})",
            "Check the name, or give the folder of a checkpoint with its tokenizer",
        ) from error
