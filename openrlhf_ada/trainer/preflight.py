"""Is everything that the flags name really there? Answered from file names and text, before anything heavy loads."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ada.config import ConfigError
from openrlhf_ada.data.checks import check_prompt_datasets

MODEL_FLAGS = ("actor", "critic", "reward")


def check_paths(args: SimpleNamespace) -> None:
    """Models, reward files and prompt files; raises ConfigError or DataError."""
    if args.actor.model_name_or_path is None:
        raise ConfigError(
            "--actor.model_name_or_path", None, "there is no model to train", "Give a local folder or a hub id"
        )
    for name in MODEL_FLAGS:
        path = getattr(args, name).model_name_or_path
        if path is not None:
            _check_model(f"--{name}.model_name_or_path", path)
    for path in args.reward.remote_url or []:
        if path.endswith(".py"):
            _check_python_file("--reward.remote_url", path, "reward_func")
    if args.train.agent_func_path:
        _check_python_file("--train.agent_func_path", args.train.agent_func_path, "AgentExecutor")
    _check_data(args)


def _check_data(args: SimpleNamespace) -> None:
    if args.data.prompt_dataset is None:
        raise ConfigError(
            "--data.prompt_dataset", None, "there are no prompts to train on", "Give a .jsonl file or a hub id"
        )
    keys = {"input_key": args.data.input_key, "label_key": args.data.label_key}
    check_prompt_datasets(args.data.prompt_dataset, flag="--data.prompt_dataset", **keys)
    if args.eval.dataset:
        check_prompt_datasets(args.eval.dataset, flag="--eval.dataset", **keys)
    elif args.ada.eval_ends:
        raise ConfigError("--ada_eval_ends", True, "there is no evaluation set", "Give --eval.dataset")


def _check_model(flag: str, value: str) -> None:
    path = Path(value)
    looks_local = value.startswith(("/", "./", "../", "~")) or path.exists() or value.count("/") > 1
    if not looks_local:
        return
    if not path.is_dir():
        raise ConfigError(flag, value, "there is no such folder", "Check the path, or give a hub id (owner/name)")
    if not (path / "config.json").is_file():
        raise ConfigError(
            flag, value, "the folder holds no config.json", "Give the folder of a Hugging Face checkpoint"
        )


def _check_python_file(flag: str, value: str, name: str) -> None:
    path = Path(value)
    if not path.is_file():
        raise ConfigError(flag, value, "there is no such file", f"Give a Python file that defines {name}")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=value)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(flag, value, f"it is not valid Python ({error})", "Fix the file") from error
    if name not in _top_level_names(tree):
        raise ConfigError(
            flag, value, f"it does not define {name}", f"Define {name} at the top level of the file (see the README)"
        )


def _top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names
