"""The documents: links lead somewhere, commands parse, flags, paths and targets exist."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from documents import (
    DOCUMENTS,
    ROOT,
    anchors,
    blocks,
    command_lines,
    links,
    name_of,
    program,
    prose,
    spans,
    tables,
)

from benchmarks.arena.__main__ import VERBS as ARENA_VERBS
from openrlhf_ada.cli import doctor, init
from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.cli.verbs import VERBS
from openrlhf_ada.config.flags import ConfigError, check_value
from openrlhf_ada.config.installed import SETUP_FOR_GPUS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.platforms.resources import required_slots
from openrlhf_ada.trainer.preflight import check_without_files

every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

FOREIGN_FLAGS = {
    "--help",
    "--compile-bytecode",
    "--no-build-isolation",
    "--no-deps",
    "--build-arg",
    "--shm-size",
    "--user",
    "--stop-timeout",
}
FOREIGN_FLAGS |= {
    "--profile",
    "--network",
    "--read-only",
    "--tmpfs",
    "--userns",
    "--runtime-env-json",
    "--gpus",
    "--init",
    "--ulimit",
    "--device",
    "--ipc",
}
FOREIGN_FLAGS |= {"--object-store-memory", "--detach", "--wait", "--file", "--target", "--cap-drop", "--security-opt"}
FOREIGN_FLAGS |= {"--config", "--working-dir", "--no-wait", "--address", "--runtime-env-json"}
"""Of every command, pip, Docker and Ray."""

THEMES = ("gh-light-mode-only", "gh-dark-mode-only")
"""A picture with one of them is shown on light or on dark pages only, on GitHub and on the site."""

# -- links ------------------------------------------------------------------------------------------------------------


@every_document
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            continue
        target = path.parent / parts.path if parts.path else path
        assert target.exists(), f"{link}: there is no such file"
        if target.suffix == ".svg" and parts.fragment in THEMES:
            continue
        if parts.fragment:
            assert parts.fragment in anchors(target.read_text(encoding="utf-8")), f"{link}: there is no such heading"


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def example_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands of the documents name and a reader would have: prompts, a reward file, held-out prompts, a run.

    Training checks that they are there, so they are; nothing is switched off.
    """
    rows = "".join(json.dumps({"input": f"{i}+1=", "label": f"{i + 1}"}) + "\n" for i in range(2048))
    for name in ("prompts.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text(rows, encoding="utf-8")
    reward = "def reward_func(queries, prompts, labels):\n    return [1.0]\n\n\naccuracy = reward_func\n"
    (tmp_path / "reward.py").write_text(reward, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    init.main(["first"])
    (tmp_path / "run.yaml").write_text((tmp_path / "first" / "run.yaml").read_text())
    run = {"ada": {"mode": "seq"}, "actor": {"model_name_or_path": "org/model"}, "vllm": {"num_engines": 1}}
    run |= {"rollout": {"n_samples_per_prompt": 4}, "train": {"batch_size": 512}}
    run |= {"data": {"prompt_dataset": "prompts.jsonl", "label_key": "label"}, "reward": {"remote_url": "math"}}
    for folder in (tmp_path / "runs" / "first", tmp_path / "runs" / "my-run", tmp_path / "model"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(run if folder.parent.name == "runs" else {}))
        (folder / "model.safetensors").touch()


def check_command(words: list[str], *, whole: bool) -> bool:
    """Is it a command that is checked? Fails if it would be refused. `whole`: not only mentioned."""
    match program(words):
        case ["openrlhf-ada" | "python", *_] as command if (ours := _verb(command)) is not None:
            _check_verb(*ours, whole=whole)
        case ["make", *rest]:
            targets = [word for word in rest if "=" not in word]
            assert set(targets) <= TARGETS, f"make has no {targets}"
        case ["python", "-m", "benchmarks.arena", verb, *rest]:
            assert verb in ARENA_VERBS or verb == "--help", f"the arena has no {verb}"
            if rest:
                import_module(f"benchmarks.arena.{ARENA_VERBS[verb][0]}").build_parser("").parse_args(rest)
        case ["python", script, *_] if script.endswith(".py"):
            assert (ROOT / script).is_file(), f"there is no {script}"
        case ["pytest", test, *_]:
            assert (ROOT / test.partition("::")[0]).exists(), f"there is no {test}"
        case ["pip", "install", *rest]:
            wanted = [
                extra for word in rest for names in re.findall(r"^\.\[(.+)\]$", word) for extra in names.split(",")
            ]
            assert set(wanted) <= set(EXTRAS), f"there is no extra {wanted}"
        case ["requirements/setup.sh", *rest]:
            assert rest[:1] == ["--gpu"], "without GPUs it is called by `make setup`"
        case [script, *_] if script.startswith("examples/") and script.endswith(".sh"):
            assert (ROOT / script).is_file(), f"there is no {script}"
        case _:
            return False
    return True


def _verb(command: list[str]) -> tuple[str, list[str]] | None:
    """Verb and arguments, however the command is called."""
    if command[:2] == ["python", "-m"] and len(command) > 2 and command[2].startswith("openrlhf_ada."):
        module = command[2].removeprefix("openrlhf_ada.cli.")
        return ("train", command[3:]) if module == "train_ppo_ray" else (command[3], command[4:])
    return (command[1], command[2:]) if command[0] == "openrlhf-ada" and len(command) > 1 else None


def _check_verb(verb: str, arguments: list[str], *, whole: bool) -> None:
    if verb == "--version" and not arguments:
        return
    assert verb in VERBS, f"openrlhf-ada has no {verb}"
    if arguments == ["--help"] or not (whole or arguments) or (not whole and "..." in arguments):
        return
    if verb == "doctor":
        # Its other flags are those of a training, some of them or all.
        if flags := doctor.build_parser().parse_known_args(arguments)[1]:
            parse(expanded("train", flags))
        return
    if "--config" in arguments:
        arguments = expanded(verb, arguments)
    if verb == "train":
        parse(arguments)
    elif verb == "demo":
        VERBS[verb].build_parser().parse_known_args(arguments)
    else:
        VERBS[verb].build_parser().parse_args(arguments)


@every_document
@pytest.mark.usefixtures("example_files")
def test_commands_are_right(path: Path) -> None:
    """Whole, so that they can be copied: no dots in place of what is left out."""
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language in ("", "bash", "console"):
            for words in command_lines(block.text):
                try:
                    check_command(words, whole=True)
                except (ValueError, SystemExit) as error:
                    pytest.fail(f"{path.name}:{block.line}: {' '.join(words)}\n{error}")


@every_document
@pytest.mark.usefixtures("example_files")
def test_commands_within_text_are_right(path: Path) -> None:
    for span in spans(path.read_text(encoding="utf-8")):
        for words in command_lines(span):
            try:
                check_command(words, whole=False)
            except (ValueError, SystemExit) as error:
                pytest.fail(f"{path.name}: {span}\n{error}")


def trainings(path: Path) -> Iterator[list[str]]:
    """Arguments of each whole command that trains."""
    for block in blocks(path.read_text(encoding="utf-8")):
        for words in command_lines(block.text):
            verb, arguments = _verb(program(words)) or ("", [])
            if verb == "train" and arguments != ["--help"] and "--config" not in arguments:
                yield arguments


@every_document
@pytest.mark.usefixtures("example_files")
def test_no_adaptive_command_divides_by_std(path: Path) -> None:
    """`group_norm` weighs prompts of adaptive groups 20 to 1; readers copy what they find here."""
    for arguments in trainings(path):
        if "group_norm" in arguments:
            assert parse(arguments, check_without_files).ada.mode == "off", " ".join(arguments)


@pytest.mark.usefixtures("example_files")
@pytest.mark.parametrize("page", ["cluster.md", "docker.md"])
def test_recommended_commands_leave_no_gpu_idle(page: str) -> None:
    """In synchronous training, policy and engines on GPUs of their own wait for each other."""
    (arguments,) = trainings(ROOT / "docs" / page)
    args = parse(arguments, check_without_files)
    assert required_slots(args).gpus == args.actor.num_nodes * args.actor.num_gpus_per_node >= 8
    assert args.vllm.enable_sleep and args.ds.enable_sleep and args.ada.method == "reinforce-ada-balance"


@every_document
def test_gpus_are_set_up_by_one_command(path: Path) -> None:
    """install.md alone has another, for those who resolve for themselves."""
    if name_of(path) != "docs/install.md":
        assert not re.search(r"pip install[^`]*\[gpu[],]", path.read_text(encoding="utf-8"))
    if name_of(path) in ("docs/cluster.md", "docs/gpu.md", "docs/install.md"):
        assert SETUP_FOR_GPUS in path.read_text(encoding="utf-8")


def test_a_wrong_command_is_found(example_files: None) -> None:
    wrong = [
        "openrlhf-ada train --data.prompt_dataset nothing.jsonl",
        "openrlhf-ada evaluate",
        "ray job submit -- python -m openrlhf_ada.cli.train_ppo_ray --ada_mod seq",
        "make demo-toys",
        "srun -N 2 .venv/bin/python3.11 -m openrlhf_ada.cli.main plan --enginess 3",
        "docker run --rm openrlhf-ada:cpu openrlhf-ada eval --benchmark math500",
        "python benchmarks/nothing.py",
        "python -m benchmarks.arena real --budgets 3",
        ".venv/bin/pytest tests/unit/test_nothing.py",
        "pip install .[gpus]",
        "N=3 examples/scripts/nothing.sh",
    ]
    for line in wrong:
        with pytest.raises((AssertionError, ValueError, SystemExit)):
            check_command(line.split(), whole=True)


# -- flags and paths that are named ----------------------------------------------------------------------------------


@cache
def known_flags() -> dict[str, list[argparse.Action]]:
    """Of all commands, by name."""
    known: dict[str, list[argparse.Action]] = {}
    for parser in (verb.build_parser() for verb in VERBS.values()):
        for name, action in parser._option_string_actions.items():
            known.setdefault(name, []).append(action)
    return known


def check_flags_of(span: str) -> None:
    """Every flag in it exists, and takes the value behind it. CAPITALS stand for a value, `a|b` for either."""
    words = span.split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("--") or word.partition("=")[0] in FOREIGN_FLAGS:
            continue
        if word.endswith("..."):
            assert any(name.startswith(word.rstrip(".")) for name in known_flags()), f"no flag begins with {word}"
            continue
        assert word in known_flags(), f"there is no flag {word}"
        if after and not after.startswith("--") and not re.fullmatch(r"[A-Z_]+", after):
            for value in after.rstrip(",").split("|"):
                assert any(takes(action, value) for action in known_flags()[word]), f"{word} does not take {value}"


def takes(action: argparse.Action, value: str) -> bool:
    if action.nargs == 0:
        return False
    read: Callable[[str], Any] = action.type if callable(action.type) else str
    try:
        read_value = read(value)
        for field in fields(AdaConfig):
            if action.dest == f"ada.{field.name}":
                check_value(field, read_value, f"--ada_{field.name}")
    except (ValueError, ConfigError, argparse.ArgumentTypeError):
        return False
    return action.choices is None or read_value in action.choices


def theirs(path: Path) -> set[str]:
    """Code in the first columns of migrating.md: names that are not ours."""
    if path.name != "migrating.md":
        return set()
    text = path.read_text(encoding="utf-8")
    foreign = [table for table in tables(text) if table[0][0] in ("flat", "verl", "TRL")]
    return {span for table in foreign for row in table for span in spans(row[0])}


@pytest.mark.slow
@every_document
def test_flags_that_are_named_exist_and_take_their_values(path: Path) -> None:
    for span in spans(path.read_text(encoding="utf-8")):
        # What is generated from the parsers has their words for values.
        if span.startswith("--") and span not in theirs(path) and path.name != "flags.md":
            try:
                check_flags_of(span)
            except AssertionError as error:
                pytest.fail(f"{path.name}: {span}: {error}")


def test_wrong_flags_are_found() -> None:
    check_flags_of("--ada_mode seq|est --ada_budget MEAN --rollout.batch_size 4 --verbose")
    for span in ("--ada_mod seq", "--ada_mode sequential", "--rollout.batch_size four", "--criticism...", "--toy 3"):
        with pytest.raises(AssertionError):
            check_flags_of(span)


@every_document
def test_paths_that_are_named_exist(path: Path) -> None:
    folders = "openrlhf_ada|tests|benchmarks|docs|examples|requirements|typings"
    for span in spans(path.read_text(encoding="utf-8")):
        if re.fullmatch(rf"(?:{folders})/[\w./*-]*", span):
            assert list(ROOT.glob(span.rstrip("/"))), f"{path.name}: there is no {span}"


# -- the whole --------------------------------------------------------------------------------------------------------


def test_the_readme_is_one_screen_and_shows_both_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    commands = [words[:2] for block in blocks(text) for words in command_lines(block.text)]
    assert commands[:2] == [["make", "demo"], ["make", "test"]]
    figures = re.findall(r"(?<![\w.`-])\d[\d.,]*", prose(re.sub(r"^\|.*$|\([^)]*\)", "", text, flags=re.M)))
    assert len(figures) <= 30, figures


def test_the_readme_says_what_the_demo_said_for_and_against() -> None:
    demo = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (signal,), (fewer,) = re.findall(r"\((\d+) % of all here\)", demo), re.findall(r"(\d+)% fewer groups", demo)
    assert f"{signal} % of the groups have signal" in readme
    assert f"{fewer} % fewer groups with signal" in readme


def test_every_document_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links((ROOT / "README.md").read_text(encoding="utf-8"))}
    for path in sorted((ROOT / "docs").glob("*.md")):
        assert name_of(path) in linked, f"nobody finds docs/{path.name}"


@every_document
def test_no_todo_is_left(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|TBD|FIGURE)\b", prose(path.read_text(encoding="utf-8")))
