"""OpenRLHF's command line and its version.

OpenRLHF's flags and their validation live in the `__main__` block of one module. We run that very block, with a parser
that also knows our flags, and stop where it would start training. Nothing of OpenRLHF is imported for that, so a wrong
flag is reported in a second, not after half a minute of importing Ray, vLLM and DeepSpeed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

from openrlhf_ada import HOST_VERSION
from openrlhf_ada.config.installed import REMEDY
from openrlhf_ada.config.nearest import did_you_mean, nearest
from openrlhf_ada.config.presets import METHODS

TRAIN_MODULE = "cli/train_ppo_ray.py"
CONFIG_MODULE = "openrlhf.utils.config"


_WRONG_CHOICE = re.compile(r"argument ([^\s:/]+).*: invalid choice: '?(.*?)'? \(choose")


class HostError(RuntimeError):
    """The installed OpenRLHF is not the one this package extends."""


class HostFlagError(ValueError):
    """OpenRLHF's own validation refused the flags."""


def host_root() -> Path:
    """Folder of the installed host package; raises HostError if it is absent or of another version."""
    try:
        version = importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError as error:
        raise HostError(f"OpenRLHF is not installed. {REMEDY}") from error
    if version != HOST_VERSION:
        raise HostError(f"openrlhf {version} is installed, this package needs openrlhf=={HOST_VERSION}. Install that.")
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or spec.origin is None:
        raise HostError("OpenRLHF's metadata is installed but its package is not. Reinstall it.")
    return Path(spec.origin).parent


def parse_host_arguments(
    argv: Sequence[str],
    add_flags: Callable[[argparse.ArgumentParser], None],
    check: Callable[[SimpleNamespace], None],
    *,
    prog: str,
    description: str,
) -> SimpleNamespace:
    """Parse and validate `argv` with OpenRLHF's own code plus our flags; nested by dots (`args.rollout.batch_size`).

    `check` sees the parsed flags before OpenRLHF's validation does, which fails on some bad input in ways that name no
    flag; it may raise.

    Raises SystemExit as argparse does (--help, unknown flag), HostFlagError with OpenRLHF's message when its
    validation refuses a combination.
    """
    parser_class = _parser_class(argv, add_flags, check, prog, description)
    scope: dict[str, Any] = {
        "__name__": "__main__",
        "__builtins__": vars(builtins) | {"__import__": _light_import},
        "argparse": SimpleNamespace(ArgumentParser=parser_class),
        "datetime": datetime,
    }
    try:
        exec(_main_block(), scope)  # OpenRLHF's own, pinned code
    except AssertionError as error:
        raise HostFlagError(str(error)) from error
    return scope["args"]


class _CompleteError(Exception):
    """Carries the parser out of OpenRLHF's block, before anything is parsed."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def training_parser(
    add_flags: Callable[[argparse.ArgumentParser], None], *, prog: str, description: str
) -> argparse.ArgumentParser:
    """The parser of `parse_host_arguments`: OpenRLHF's flags, then ours. For what describes flags, not values."""

    def stop(parser: argparse.ArgumentParser) -> None:
        add_flags(parser)
        raise _CompleteError(parser)

    try:
        parse_host_arguments([], stop, lambda flags: None, prog=prog, description=description)
    except _CompleteError as complete:
        return complete.parser
    raise HostError(f"the __main__ block of OpenRLHF's {TRAIN_MODULE} parses no arguments")


def _parser_class(
    argv: Sequence[str],
    add_flags: Callable[[argparse.ArgumentParser], None],
    check: Callable[[SimpleNamespace], None],
    prog: str,
    description: str,
) -> type[argparse.ArgumentParser]:
    class Parser(argparse.ArgumentParser):
        """OpenRLHF creates it without arguments and calls parse_args() when its own flags are in."""

        def __init__(self) -> None:
            # Abbreviations would let a misspelt flag of ours pass as one of OpenRLHF's.
            super().__init__(prog=prog, description=description, allow_abbrev=False)

        def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
            add_flags(self)
            parsed = super().parse_args(list(argv), namespace)
            check(_light_import(CONFIG_MODULE).hierarchize(parsed))
            return parsed

        def error(self, message: str) -> NoReturn:
            # argparse would print the usage of all two hundred flags first.
            hint = _did_you_mean(message, self._option_string_actions)
            self.exit(2, f"{prog}: error: {message}.{hint} All flags: {prog} --help\n")

    return Parser


def _did_you_mean(message: str, known: Mapping[str, argparse.Action]) -> str:
    """For argparse's words on a wrong choice or on unknown flags: the nearest that there are."""
    if wrong := _WRONG_CHOICE.match(message):
        near = did_you_mean(wrong[2], map(str, known[wrong[1]].choices or ()))
        return near or did_you_mean(wrong[2], METHODS).replace("mean ", "mean --ada_method ")
    if not message.startswith("unrecognized arguments:"):
        return ""
    unknown = [word.split("=")[0] for word in message.split() if word.startswith("--")]
    near = [match for flag in unknown for match in _nearest(flag, list(known))]
    return f" Did you mean {', '.join(near)}?" if near else ""


RENAMED = {
    "actor_learning_rate": "--actor.adam.lr",
    "critic_learning_rate": "--critic.adam.lr",
    "pretrain": "--actor.model_name_or_path",
    "generate_max_len": "--rollout.max_new_tokens",
    "micro_train_batch_size": "--train.micro_batch_size",
    "micro_rollout_batch_size": "--rollout.micro_batch_size",
    "use_kl_loss": "--algo.kl.use_loss",
    "save_path": "--ckpt.output_dir",
}
"""Flat names of earlier versions of OpenRLHF whose words are others now."""


def _nearest(flag: str, known: Sequence[str]) -> list[str]:
    """All that have this name in a section, since OpenRLHF's flags had none once; else the one most alike."""
    name = flag.removeprefix("--")
    if name in RENAMED:
        return [RENAMED[name]]
    in_sections = [other for other in known if "." in other and other.rpartition(".")[2] == name]
    return in_sections or [near for near in [nearest(flag, known)] if near]


@lru_cache(maxsize=1)
def _main_block() -> CodeType:
    """OpenRLHF's `if __name__ == "__main__":` block without its last statement, `train(args)`."""
    path = host_root() / TRAIN_MODULE
    tree = ast.parse(path.read_text(), filename=str(path))
    block = tree.body[-1]
    if not (isinstance(block, ast.If) and ast.unparse(block.test) == "__name__ == '__main__'"):
        raise HostError(f"{TRAIN_MODULE} of OpenRLHF does not end with its __main__ block")
    if ast.unparse(block.body[-1]) != "train(args)":
        raise HostError(f"the __main__ block of OpenRLHF's {TRAIN_MODULE} does not end with train(args)")
    return compile(ast.Module(body=block.body[:-1], type_ignores=[]), str(path), "exec")


def _light_import(name: str, *args: Any, **kwargs: Any) -> ModuleType:
    """The block imports one small file of OpenRLHF; going through its package would import DeepSpeed and vLLM."""
    if name == CONFIG_MODULE:
        return load_by_path(CONFIG_MODULE)
    return builtins.__import__(name, *args, **kwargs)


@lru_cache(maxsize=8)
def load_by_path(name: str) -> ModuleType:
    """One small file of OpenRLHF, without its package, which would import DeepSpeed and vLLM; raises HostError."""
    path = host_root().joinpath(*name.split(".")[1:]).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"_light.{name}", path)
    if spec is None or spec.loader is None:
        raise HostError(f"OpenRLHF has no {path.name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
