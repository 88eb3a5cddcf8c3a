"""Is everything that the flags name really there? Answered from file names and text, before anything heavy loads."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ada.config import AdaConfig, ConfigError, from_namespace
from openrlhf_ada.data.checks import check_prompt_datasets
from openrlhf_ada.reporting.run_log import METRICS_FILE

MODEL_FLAGS = ("actor", "critic", "reward")


def check_flags(args: SimpleNamespace) -> None:
    """All of our checks, on the parsed flags; raises ConfigError or DataError."""
    config = from_namespace(args.ada)
    config.check_against_host(args)
    check_required(args)
    check_paths(args)
    check_run_dir(config, args)


def check_required(args: SimpleNamespace) -> None:
    """What every run needs, and the host would miss only later, in other words; raises ConfigError."""
    if args.actor.model_name_or_path is None:
        raise ConfigError(
            "--actor.model_name_or_path", None, "there is no model to train", "Give a local folder or a hub id"
        )
    if args.data.prompt_dataset is None:
        raise ConfigError(
            "--data.prompt_dataset", None, "there are no prompts to train on", "Give a .jsonl file or a hub id"
        )
    if not (args.vllm.num_engines and args.vllm.num_engines > 0):
        raise ConfigError(
            "--vllm.num_engines", args.vllm.num_engines, "rollouts are sampled by vLLM", "Use --vllm.num_engines 1"
        )
    if not (args.reward.remote_url or args.reward.model_name_or_path or args.train.agent_func_path):
        raise ConfigError(
            "--reward.remote_url",
            None,
            "nothing says what a good answer is",
            "Give a reward file or URL, a reward model (--reward.model_name_or_path) or an agent "
            "(--train.agent_func_path)",
        )
    if args.ada.eval_ends and not args.eval.dataset:
        raise ConfigError("--ada_eval_ends", True, "there is no evaluation set", "Give --eval.dataset")


def check_paths(args: SimpleNamespace) -> None:
    """Models, reward files and prompt files; raises ConfigError or DataError."""
    for name in MODEL_FLAGS:
        path = getattr(args, name).model_name_or_path
        if path is not None:
            _check_model(f"--{name}.model_name_or_path", path)
    for path in (args.reward.remote_url or "").split(","):
        if path.endswith(".py"):
            _check_python_file("--reward.remote_url", path, "reward_func")
    if args.train.agent_func_path:
        _check_python_file("--train.agent_func_path", args.train.agent_func_path, "AgentExecutor")
    keys = {"input_key": args.data.input_key, "label_key": args.data.label_key}
    check_prompt_datasets(args.data.prompt_dataset, flag="--data.prompt_dataset", **keys)
    if args.eval.dataset:
        check_prompt_datasets(args.eval.dataset, flag="--eval.dataset", **keys)


def check_run_dir(config: AdaConfig, args: SimpleNamespace) -> None:
    """Refuse to write a second run into a directory that holds one, unless it is being resumed."""
    run_dir = config.resolved_run_dir(args.logger.wandb.run_name)
    if (run_dir / METRICS_FILE).exists() and not args.ckpt.load_enable:
        raise ConfigError(
            "--ada_run_dir",
            str(run_dir),
            "it holds the record of another run",
            "Name another directory, or resume that run with --ckpt.load_enable",
        )


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
