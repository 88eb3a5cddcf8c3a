"""--config FILE, for every command: flags from a YAML file, or from the config.json of a run. Given flags win."""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.cli.verbs import VERBS
from openrlhf_ada.config.flags import ConfigError, actions_of, dotted, words_by_flag
from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.config.visible import REMOVED
from openrlhf_ada.config.yaml_file import read_yaml
from openrlhf_ada.reporting.run_log import CONFIG_FILE, METRICS_FILE

logger = logging.getLogger(__name__)

FLAG = "--config"

OWN_FOLDERS = {"ada.run_dir": "", "ckpt.path": "ckpt", "ckpt.output_dir": "model"}
"""What a run writes to, and where a repetition has it in its folder. It must not write to the folders of the first."""

RESUMED, NAME = "ckpt.load_enable", "logger.wandb.run_name"

DEFAULT_NAME = re.compile(r"\w+_\d{4}T\d{2}:\d{2}")
"""OpenRLHF names a run by its time. A repetition has its own."""

DEEPEST = 8
"""Sections within each other, with room to spare."""

Flat = dict[str, Any]
"""Values by the names of flags, without their dashes."""


def words_of(command: str, config: Mapping[str, Any], others: Sequence[str] = ()) -> list[str]:
    """The words of a command for these flags, nested or flat, and `others`, which win over them.

    Raises ConfigError for a name that is no flag.
    """
    flat = _in_given_run_dir(dict(_leaves(config, "")), others)
    return [*_words(VERBS[command].build_parser(), flat, "the configuration", others)]


def expanded(command: str, words: Sequence[str]) -> list[str]:
    """The words of a command, with those of its --config file first. Raises ConfigError for a file that is wrong."""
    files, others = _taken_out(words)
    if not files:
        return others
    if "" in files:
        raise ConfigError(FLAG, "", "it needs a file", "Name a YAML file, or the config.json of a run")
    if len(files) > 1:
        raise ConfigError(FLAG, " ".join(files), "one file at a time", "Put all flags into one file")
    flat, file = _flat(Path(files[0])), Path(files[0])
    flat = _resumed_or_repeated(flat, file.parent, others) if _is_of_a_run(file) else _in_given_run_dir(flat, others)
    return [*_words(VERBS[command].build_parser(), flat, files[0], others)]


def _taken_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(files, all other words)."""
    files: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == FLAG:
            files.append(next(rest, ""))
        elif word.startswith(f"{FLAG}="):
            files.append(word.removeprefix(f"{FLAG}="))
        else:
            others.append(word)
    return files, others


# -- the file ----------------------------------------------------------------------------------------------------


def _flat(file: Path) -> Flat:
    """Its flags, sections joined by dots. Values of YAML are text, since the parser of the flags knows their types."""
    if file.suffix != ".json":
        return dict(_leaves(read_yaml(file, FLAG, typed=False)[0], ""))
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ConfigError(FLAG, str(file), "it is nested too deeply", "Mend it") from error
    except OSError as error:
        rule = f"it cannot be read ({error.strerror})"
        raise ConfigError(FLAG, str(file), rule, "Name the record of a run") from error
    except ValueError as error:
        raise ConfigError(FLAG, str(file), f"it is not valid JSON: {error}", "Mend it") from error
    if not isinstance(content, Mapping):
        raise ConfigError(FLAG, str(file), "it must hold one `name: value` for each flag", "Name the record of a run")
    return dict(_leaves(content, ""))


def _leaves(content: Mapping[Any, Any], section: str) -> Iterator[tuple[str, Any]]:
    if section.count(".") > DEEPEST:
        raise ConfigError(FLAG, f"{section}...", f"sections of flags are {DEEPEST} deep at most", "Mend it")
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


# -- the configuration of a run ------------------------------------------------------------------------------------


def unused(folder: Path) -> Path:
    """The folder, or one with a number behind its name where it holds a run."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in range(1, 1000))
    return next(name for name in names if not (name / METRICS_FILE).exists())


def _is_of_a_run(file: Path) -> bool:
    return file.name == CONFIG_FILE and (file.parent / METRICS_FILE).exists()


def _resumed_or_repeated(flat: Flat, run_dir: Path, words: Sequence[str]) -> Flat:
    """The flags that resume this run, if `words` ask for that, or else repeat it in a folder of its own.

    A run is resumed in the folder that has its file, which may have been moved since.
    """
    given = dict(words_by_flag(words))
    if f"--{RESUMED}" in given:
        return flat | _moved(flat, run_dir, run_dir)
    target = Path(given["--ada_run_dir"][0]) if given.get("--ada_run_dir") else unused(run_dir)
    logger.info("%s is repeated in %s (with --%s it would be resumed)", run_dir, target, RESUMED)
    folders = {name: str(target / inside) for name, inside in OWN_FOLDERS.items()} | _moved(flat, run_dir, target)
    dropped = {RESUMED} | ({NAME} if DEFAULT_NAME.fullmatch(str(flat.get(NAME))) else set())
    return {name: value for name, value in flat.items() if name not in dropped} | folders


def _in_given_run_dir(flat: Flat, words: Sequence[str]) -> Flat:
    """The same flags. Where `words` name another run directory, what lies in this one goes there: two runs must not
    write one model."""
    given = dict(words_by_flag(words)).get("--ada_run_dir")
    named = flat.get("ada_run_dir") or flat.get("ada.run_dir")
    if not given or not named:
        return flat
    moved = _moved({**flat, "ada.run_dir": named}, Path(named), Path(given[0]))
    return flat | {name: folder for name, folder in moved.items() if name != "ada.run_dir"}


def _moved(flat: Flat, run_dir: Path, target: Path) -> Flat:
    """Those of OWN_FOLDERS that lie in the run's folder, in another one."""
    recorded = Path(flat["ada.run_dir"]) if flat.get("ada.run_dir") else run_dir
    moved: Flat = {}
    for name in OWN_FOLDERS:
        folder = run_dir if name == "ada.run_dir" else Path(flat[name]) if flat.get(name) else None
        for root in (recorded, run_dir):
            if folder is not None and folder.resolve().is_relative_to(root.resolve()):
                moved[name] = str(target / folder.resolve().relative_to(root.resolve()))
                break
    return moved


# -- the words ----------------------------------------------------------------------------------------------------


def _words(parser: argparse.ArgumentParser, flat: Flat, file: str, others: Sequence[str]) -> Iterator[str]:
    """Of the file's flags, then `others`; what a parser takes without a flag comes last."""
    actions = _by_name(parser)
    positional: list[str] = []
    for name, value in flat.items():
        action = actions.get(name.removeprefix("--"))
        if action is None:
            raise ConfigError(name, value, f"no flag has this name ({file})", _meant(name, actions))
        if value == REMOVED:
            raise ConfigError(name, value, f"{file} does not hold secrets", f"Give --{name} on the command line")
        if action.option_strings:
            yield from _flag_words(action, name, value, file)
        else:
            positional += [str(part) for part in (value if isinstance(value, list) else [value])]
    yield from others
    yield from positional


def _by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What a parser takes, by name without dashes: of our flags in both forms, ada_mode and ada.mode."""
    return {
        name: action
        for action in actions_of(parser)
        for option in action.option_strings or [action.dest]
        for name in (option.lstrip("-"), dotted(option))
    }


EMPTY = (None, "", "null", "~")

NEVER = ("inf", math.inf)
"""What OpenRLHF makes of a number of steps of -1, and so what the record of a run has."""
SWITCHED = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}


def _flag_words(action: argparse.Action, name: str, value: Any, file: str) -> Iterator[str]:
    """An empty value is a flag that is not given."""
    flag = action.option_strings[0]
    if action.nargs == 0:
        if value not in EMPTY and str(value).lower() not in SWITCHED:
            raise ConfigError(name, value, f"it is a switch in {file}", "Write true or false")
        if SWITCHED.get(str(value).lower(), False):
            yield flag
    elif action.nargs is not None and value == action.default:
        # Such a default may be one word, which cannot be said on a command line: a word there makes a list.
        return
    elif isinstance(value, list):
        several = [str(part) for part in value]
        yield from [flag, *several] if action.nargs is not None else [f"{flag}={','.join(several)}"]
    elif action.type is int and value in NEVER:
        yield f"{flag}=-1"
    elif value not in EMPTY:
        yield f"{flag}={value}"


def _meant(name: str, known: Mapping[str, object]) -> str:
    in_sections = [other for other in known if "." in other and other.rpartition(".")[2] == name]
    near = ", ".join(in_sections) or nearest(name, known)
    return f"Did you mean {near}" if near else "See --help of the command"
