"""Every row that a run will use is read before anything starts, as OpenRLHF will read it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.examples import DataSets, Example, read_examples
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.handover import HandedOver, PromptRoom, hand_over
from openrlhf_ada.data.labels import ReadLabels, about_contradicting, contradicting, read_labels
from openrlhf_ada.data.left_out import LeftOut, counted, lines_about, write_left_out
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
from openrlhf_ada.reward.reward_function import MIXED, NAMED, grades_labels
from openrlhf_ada.reward.trial import ROWS, Row, rows_for
from openrlhf_ada.trainer.checkpoints import Origin
from openrlhf_ada.trainer.preflight import check_rows

logger = logging.getLogger(__name__)

FOLDER, LIST, FORGEABLE_LIST = "data", "left_out.jsonl", "forgeable.jsonl"
"""In the run directory: data sets that were written anew, rows that were left out, and rows with tests that a program
could pass without being right."""

MIXED_ROWS = 200
"""Among which each row's own grader is tried."""

BATCH = 1000
"""Prompts that are turned into tokens at a time."""


def prepare_training_data(args: SimpleNamespace) -> list[str]:
    """Read all rows, and let `args` name data sets that OpenRLHF reads as they are. Returns lines to show.

    `args` also gets the `ada_origin` of its checkpoints, by which a resumed run knows that they are of the same run.

    Rows whose prompt is too long, or whose label no grader of ours can read, are left out and listed in the run
    directory. `args`: as the host has parsed them; its data sets may be changed.

    Raises:
        ConfigError, DataError: a row that no run can use, or too few rows.
    """
    run_dir = args.ada.resolved_run_dir(args.logger.wandb.run_name)
    rewards = row_rewards(args)
    lines: list[str] = []
    left_out: list[LeftOut] = []
    forgeable: list[LeftOut] = []
    prompts = ""
    # All rows first: without a hub, the library that reads them must not be imported before that is known.
    found = [(sets, put, read_examples(sets)) for sets, put in _data_sets(args, rewards)]
    check_rows(args, len(found[0][2]))
    room = _room(args)
    for sets, put, examples in found:
        handed = _handed(sets, examples, args, room, run_dir)
        left_out += handed.left_out
        forgeable += handed.forgeable
        lines += lines_about(handed.left_out, sets.flag, len(examples), run_dir / LIST)
        lines += [*_notes(sets, handed), *_forgeable_lines(sets, handed, run_dir / FORGEABLE_LIST)]
        out = {(one.source, one.place) for one in handed.left_out}
        kept = [example for example in examples if (example.source, example.place) not in out]
        lines += [f"{sets.flag}: {line}" for line in _contradictions(kept, args)]
        if sets.flag == "--data.prompt_dataset":
            _check_enough(args, handed, len(examples))
            prompts = fingerprint(examples)
        put(handed.spec)
    for rows, name in ((left_out, LIST), (forgeable, FORGEABLE_LIST)):
        (run_dir / name).unlink(missing_ok=True)
        if rows:
            run_dir.mkdir(parents=True, exist_ok=True)
            write_left_out(rows, run_dir / name)
    args.ada_origin = Origin(dict(flat(redact(plain(args)))), prompts)
    return lines


def fingerprint(examples: Sequence[Example]) -> str:
    """Of prompts and reference answers, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.question, example.label], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def trial_rows(args: SimpleNamespace, rewards: RowRewards | None = None) -> dict[str, list[Row]]:
    """What the user's rewards are asked about before anything starts: the first rows of the first data set, as
    OpenRLHF makes prompts of them. `rewards`: of data that `prepare_training_data` has not written anew.

    Raises ConfigError and DataError.
    """
    names = split_names(args.reward.remote_url)
    if args.train.agent_func_path or set(names) <= set(NAMED):
        return {}
    sets = replace(
        _data_sets(args, rewards)[0][0],
        spec=args.data.prompt_dataset.split(",")[0],
        most_rows=min(MIXED_ROWS if MIXED in names else ROWS, args.data.max_samples),
    )
    make, end = _prompt_maker(args)
    examples = read_examples(sets)
    asked = [(_prompt(make, e, args, sets.flag), "" if e.label is None else e.label) for e in examples]
    return rows_for(names, asked, end)


def row_rewards(args: SimpleNamespace) -> RowRewards | None:
    """Where each row names its grader: which column does. Raises ConfigError."""
    if MIXED not in split_names(args.reward.remote_url):
        return None
    return RowRewards(args.ada.reward_key or KEY, parse_map(args.ada.reward_map, "--ada_reward_map"))


def _check_enough(args: SimpleNamespace, handed: HandedOver, total: int) -> None:
    """Raises ConfigError, which says why rows are few."""
    try:
        check_rows(args, handed.rows)
    except ConfigError as error:
        if not handed.left_out:
            raise
        first = handed.left_out[0]
        why = f"{counted(handed.left_out, total)}; the first is {first.source} {first.place}: {first.cause}"
        raise ConfigError(error.flag, error.value, f"{why}. So {error.rule}", error.remedy) from error


def _contradictions(examples: Sequence[Example], args: SimpleNamespace) -> list[str]:
    problems: list[Problem] = []
    for example in examples:
        # Questions of different images may be the same.
        if args.data.label_key is not None and not example.others.get(args.data.image_key):
            reward, label = named_label(example.label) or (None, example.label)
            problems.append(Problem("", example.question, final_part(label), example.source, example.place, reward))
    reward = next(iter(split_names(args.reward.remote_url)), "")
    return about_contradicting(contradicting(problems, reward, limits_of(args.ada)), len(examples))


def _handed(
    sets: DataSets,
    examples: Sequence[Example],
    args: SimpleNamespace,
    room: PromptRoom,
    run_dir: Path,
) -> HandedOver:
    named = [name for name in split_names(args.reward.remote_url) if name in (*NAMED, MIXED)]
    limits = limits_of(args.ada)

    def read(examples: Sequence[Example]) -> ReadLabels:
        # The labels that `prepare-data` has written can be read; which tests can be forged it does not write.
        asked = [
            p for p, example in enumerate(examples) if DRAWS not in example.others or {"code", MIXED} & set(named)
        ]
        labels = [examples[position].label for position in asked]
        own = labels if sets.rewards is None else [(named_label(label) or (None, label))[1] for label in labels]
        found = [read_labels(labels if name == MIXED else own, name, limits) for name in reversed(named)]
        return ReadLabels(
            {asked[position]: cause for one in found for position, cause in one.unreadable.items()},
            frozenset(asked[position] for one in found for position in one.forgeable),
        )

    if not leaves_out_long_prompts(args):
        _warn_of_cuts(sets, examples, room)
    return hand_over(
        sets,
        examples,
        run_dir / FOLDER,
        read=read if named else None,
        prompts=room if leaves_out_long_prompts(args) else None,
    )


def leaves_out_long_prompts(args: SimpleNamespace) -> bool:
    """OpenRLHF cuts long prompts at their beginning, and mode off keeps that. What is cut cannot be graded by our
    functions, and in the adaptive modes nobody wants it. Agents make prompts of their own."""
    if args.train.agent_func_path:
        return False
    return args.ada.mode != "off" or any(map(grades_labels, split_names(args.reward.remote_url)))


def _warn_of_cuts(sets: DataSets, examples: Sequence[Example], room: PromptRoom) -> None:
    counts = room.tokens(examples, sets.flag)
    cut = [example for example, count in zip(examples, counts, strict=True) if count > room.room]
    if cut:
        logger.warning(
            "%s: OpenRLHF cuts the beginning of %d of %d prompts, which have more than %d tokens (%s); the first: %s "
            "%s",
            sets.flag, len(cut), len(examples), room.room, room.rule, cut[0].source, cut[0].place,
        )  # fmt: skip


def _notes(sets: DataSets, handed: HandedOver) -> list[str]:
    if not handed.is_rewritten or handed.left_out:
        return []
    if sets.rewards is not None:
        return [f"{sets.flag}: each row with its grader: {handed.spec}"]
    return [
        f"{sets.flag}: OpenRLHF's loader would change values of {sets.spec} or cannot read it; it gets the same rows "
        f"from {handed.spec}"
    ]


def _forgeable_lines(sets: DataSets, handed: HandedOver, file: Path) -> list[str]:
    if not handed.forgeable:
        return []
    return [
        f"{sets.flag}: at least {len(handed.forgeable):,} of {handed.rows:,} rows have tests that a program could "
        f"pass without being right (docs/rewards.md says which; some show it only when they run). Their scores count, "
        f"and are marked as forgeable. All are listed in {file}"
    ]


def _data_sets(args: SimpleNamespace, rewards: RowRewards | None) -> list[tuple[DataSets, Callable[[str], None]]]:
    """Those of the flags, and how to put others in their place."""
    common: dict[str, Any] = {
        "columns": Columns(args.data.input_key, args.data.label_key, chat=args.data.apply_chat_template),
        "image_key": args.data.image_key,
        "most_rows": args.data.max_samples,
        "use_ms": args.use_ms,
        "rewards": rewards,
    }

    def train_on(spec: str) -> None:
        args.data.prompt_dataset = spec

    def evaluate_on(spec: str) -> None:
        args.eval.dataset = spec

    flag, blended = "--data.prompt_dataset", args.data.prompt_probs is not None
    prompts = DataSets(flag, args.data.prompt_dataset, split=args.data.prompt_split, blended=blended, **common)
    if not args.eval.dataset:
        return [(prompts, train_on)]
    held_out = DataSets("--eval.dataset", args.eval.dataset, split=args.eval.split, **common)
    return [(prompts, train_on), (held_out, evaluate_on)]


# -- the length of prompts ----------------------------------------------------------------------------------------


def _room(args: SimpleNamespace) -> PromptRoom:
    """OpenRLHF's rule: a prompt and --rollout.max_new_tokens fit into --data.max_len; without that flag, a prompt and
    one token do."""
    new = args.rollout.max_new_tokens
    rule = f"--data.max_len {args.data.max_len}" + (f" less --rollout.max_new_tokens {new}" if new else "")
    if args.train.agent_func_path:
        return PromptRoom(lambda examples, flag: [0] * len(examples), 1, rule)
    return PromptRoom(_token_counter(args), args.data.max_len - (new or 1), rule)


def _token_counter(args: SimpleNamespace) -> Callable[[Sequence[Example], str], list[int]]:
    tokenizer = _tokenizer(args)
    make, _ = _prompt_maker(args)
    sees_images = hasattr(tokenizer, "image_processor")

    def count(examples: Sequence[Example], flag: str) -> list[int]:
        counts: list[int] = []
        for start in range(0, len(examples), BATCH):
            batch = examples[start : start + BATCH]
            # OpenRLHF refuses, by itself, a prompt with images that is too long: their tokens are known then.
            images = [_has_image(example, args, flag, sees_images=sees_images) for example in batch]
            texts = [_prompt(make, example, args, flag) for example in batch]
            tokens = tokenizer(text=texts, add_special_tokens=False)["input_ids"]
            counts += [0 if skip else len(ids) for skip, ids in zip(images, tokens, strict=True)]
        return counts

    return count


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
    tokenizer = _tokenizer(args)
    chat = tokenizer.apply_chat_template if args.data.apply_chat_template else None
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
