"""Is everything that the flags name really there? Answered from file names and text, before anything heavy loads."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.choosing import check_candidates
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.host_rules import batch_plan, check_against_host
from openrlhf_ada.config.host_values import check_values
from openrlhf_ada.config.schema import AdaConfig, from_namespace
from openrlhf_ada.config.settings import make_policy, settings_of
from openrlhf_ada.config.weight_rules import shares_gpus
from openrlhf_ada.data.checks import UNKNOWN, Columns, check_prompt_datasets
from openrlhf_ada.data.prepared import check_counts
from openrlhf_ada.eval.held_out import best_metric_names
from openrlhf_ada.host.checkpoints import policy_checkpoints
from openrlhf_ada.reporting.run_log import METRICS_FILE
from openrlhf_ada.reward.reward_function import NAMED, RIGHT_OR_WRONG, path_of

MODEL_FLAGS = ("actor", "critic", "reward")


def check_flags(args: SimpleNamespace) -> None:
    """All of our checks, on the parsed flags; raises ConfigError or DataError."""
    check_without_files(args)
    check_paths(args)
    check_run_dir(from_namespace(args.ada), args)


def check_without_files(args: SimpleNamespace) -> None:
    """What can be said of the flags where the files that they name may be on another machine; raises ConfigError."""
    config = from_namespace(args.ada)
    check_values(args)
    check_against_host(config, args)
    check_required(args)
    _check_format(config)
    _check_best_metric(args)
    _check_labels(args)
    _check_verifier(config, args)


def _check_format(config: AdaConfig) -> None:
    if (config.format == "none") != (config.format_bonus == 0.0):
        raise ConfigError(
            "--ada_format_bonus",
            config.format_bonus,
            f"it goes with --ada_format, which is {config.format}",
            "Give both or neither",
        )


def _check_best_metric(args: SimpleNamespace) -> None:
    """The host would look for a name that no evaluation has, and never keep a best checkpoint."""
    key, n = args.ckpt.best_metric_key, args.eval.n_samples_per_prompt
    ours = best_metric_names(n)
    if key and key not in ("none", *ours) and not key.startswith(("accuracy/", "eval_")):
        raise ConfigError(
            "--ckpt.best_metric_key",
            key,
            "no evaluation has a figure of that name",
            f"Use {', '.join(ours)}, accuracy/<datasource>, eval_<datasource>_pass1, or none",
        )


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
    if args.use_ms and importlib.util.find_spec("modelscope") is None:
        raise ConfigError(
            "--use_ms", True, "the package modelscope is not installed", "pip install modelscope, or drop the flag"
        )
    if args.ada.eval_ends and not args.eval.dataset:
        raise ConfigError("--ada_eval_ends", True, "there is no evaluation set", "Give --eval.dataset")


def check_paths(args: SimpleNamespace) -> None:
    """Models, reward files and prompt files; raises ConfigError or DataError."""
    for name in MODEL_FLAGS:
        path = getattr(args, name).model_name_or_path
        if path is not None:
            check_model(f"--{name}.model_name_or_path", path)
    _check_heads(args)
    _check_experts(args)
    check_reward_urls(args.reward.remote_url)
    if args.train.agent_func_path:
        _check_python_file("--train.agent_func_path", args.train.agent_func_path, "AgentExecutor")
    if args.ada.policy:
        _check_policy(args)
    check_data(args)


def _check_policy(args: SimpleNamespace) -> None:
    _check_python_file("--ada_policy", args.ada.policy, "make_policy")
    try:
        make_policy(settings_of(args))
    except Exception as error:
        raise ConfigError(
            "--ada_policy", args.ada.policy, f"it makes no policy ({type(error).__name__}: {error})", "Fix the file"
        ) from error


def _check_heads(args: SimpleNamespace) -> None:
    """vLLM refuses to split a model's heads unevenly, when it has started the engine's processes."""
    workers = args.vllm.tensor_parallel_size
    heads = _config_of_policy(args).get("num_attention_heads") if workers > 1 else None
    if heads is not None and heads % workers:
        raise ConfigError(
            "--vllm.tensor_parallel_size",
            workers,
            f"the model has {heads} attention heads, which so many GPUs cannot share evenly",
            f"Use a divisor of {heads}",
        )


EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Where a model's config.json says how many experts a layer has: the names that vLLM reads."""


def _check_experts(args: SimpleNamespace) -> None:
    """OpenRLHF's way through shared GPU memory loads into the tensors that an engine computes with. Some of vLLM's
    kernels for experts have packed these in another order, and no checksum sees what becomes of them.
    """
    if not shares_gpus(args):
        return
    config = _config_of_policy(args)
    # Models whose layers differ say it per layer.
    found = [section.get(name) for section in [config, *config.get("block_configs", [])] for name in EXPERTS]
    if any(found):
        raise ConfigError(
            "--train.colocate_all",
            True,
            f"{args.actor.model_name_or_path} is a mixture of experts. On shared GPUs OpenRLHF writes new weights "
            f"over those that vLLM has packed for its kernels, and nobody has shown that experts survive that",
            "Leave it out: on GPUs of their own, engines load experts through vLLM's reload, and checksums are "
            "compared",
        )


def _config_of_policy(args: SimpleNamespace) -> dict[str, Any]:
    """The language model's part of config.json; empty for a model that is not a folder."""
    flag, file = "--actor.model_name_or_path", Path(args.actor.model_name_or_path) / "config.json"
    if not file.is_file():
        return {}
    try:
        with _readable(flag, str(file)):
            config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(flag, str(file), f"it is not valid JSON ({error})", "Fix the file") from error
    return config.get("text_config", config)


def _check_labels(args: SimpleNamespace) -> None:
    named = [name for name in (args.reward.remote_url or "").split(",") if name in NAMED]
    if named and args.data.label_key is None:
        raise ConfigError(
            "--data.label_key",
            None,
            f"--reward.remote_url {named[0]} compares answers with labels",
            "Name the column that holds them",
        )


def _check_verifier(config: AdaConfig, args: SimpleNamespace) -> None:
    right_or_wrong = [name for name in (args.reward.remote_url or "").split(",") if name in RIGHT_OR_WRONG]
    if config.positive_quantile is not None and right_or_wrong:
        raise ConfigError(
            "--ada_positive_quantile",
            config.positive_quantile,
            f"--reward.remote_url {right_or_wrong[0]} gives scores of 0 and 1, and so is every quantile of them",
            "Leave it out",
        )


def check_data(args: SimpleNamespace) -> None:
    """Prompt files, their number of rows and their mixture; raises ConfigError or DataError."""
    flag, spec = "--data.prompt_dataset", args.data.prompt_dataset
    columns = Columns(args.data.input_key, args.data.label_key, chat=args.data.apply_chat_template)
    rows = check_prompt_datasets(spec, flag=flag, columns=columns)
    if args.ada.known_counts:
        check_counts(spec, flag=flag)
    if args.eval.dataset:
        check_prompt_datasets(args.eval.dataset, flag="--eval.dataset", columns=columns)
    if args.data.prompt_probs is not None:
        _check_probabilities(args.data.prompt_probs, num_datasets=len(spec.split(",")))
    elif rows != UNKNOWN:
        prompts = min(rows, args.data.max_samples)
        _check_enough(args, prompts)
        if args.ada.mode != "off":
            check_candidates(settings_of(args), args.rollout.batch_size, prompts)


def _check_enough(args: SimpleNamespace, prompts: int) -> None:
    """Mode off: a batch needs as many prompts as it has. An adaptive mode carries an episode's rest to the next."""
    off = args.ada.mode == "off"
    enough = prompts >= args.rollout.batch_size if off else batch_plan(args).steps(prompts * args.train.num_episodes)
    if not enough:
        raise ConfigError(
            "--data.prompt_dataset",
            args.data.prompt_dataset,
            f"its {prompts} prompts cannot fill one batch of --rollout.batch_size {args.rollout.batch_size}, so "
            f"nothing would be trained",
            "Give more prompts (or a larger --data.max_samples), or lower --rollout.batch_size",
        )


def _check_probabilities(value: str, num_datasets: int) -> None:
    try:
        probabilities = [float(part) for part in value.split(",")]
    except ValueError:
        probabilities = []
    if len(probabilities) != num_datasets or not all(p > 0 for p in probabilities):
        raise ConfigError(
            "--data.prompt_probs",
            value,
            f"expected one positive number for each of the {num_datasets} sets of --data.prompt_dataset",
            "Give as many numbers as data sets, separated by commas",
        )


def check_reward_urls(value: str | None, flag: str = "--reward.remote_url") -> None:
    """Names, Python files and URLs, separated by commas; raises ConfigError."""
    for path in map(path_of, value.split(",") if value else ()):
        if path.endswith(".py"):
            _check_python_file(flag, path, "reward_func")
        elif not path.startswith(("http://", "https://")):
            raise ConfigError(
                flag,
                path,
                f"it is neither a Python file (.py), a URL (http://, https://) nor one of {', '.join(NAMED)}",
                "Give a file that defines reward_func, the URL of a reward server or one of these names",
            )


def check_run_dir(config: AdaConfig, args: SimpleNamespace) -> None:
    """Refuse to write a second run into a directory that holds one, unless it is being resumed."""
    run_dir = config.resolved_run_dir(args.logger.wandb.run_name)
    in_the_way = next((path for path in (run_dir, *run_dir.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way:
        raise ConfigError(
            "--ada_run_dir", str(run_dir), f"{in_the_way} is a file, not a folder", "Name another directory"
        )
    if (run_dir / METRICS_FILE).exists() and not resumes(args):
        raise ConfigError(
            "--ada_run_dir",
            str(run_dir),
            "it holds the record of another run",
            f"Name another directory, or resume that run with --ckpt.load_enable from its checkpoints (there are none "
            f"in --ckpt.path {args.ckpt.path})"
            if args.ckpt.load_enable
            else "Name another directory, or resume that run with --ckpt.load_enable",
        )


def resumes(args: SimpleNamespace) -> bool:
    """Is there a checkpoint to go on from? Without one the host starts at step 0."""
    return args.ckpt.load_enable and policy_checkpoints(args.ckpt.path).exists()


def check_model(flag: str, value: str) -> None:
    """A local folder must hold a checkpoint; hub ids pass. Raises ConfigError."""
    path = Path(value)
    looks_local = value.startswith(("/", "./", "../", "~")) or path.exists() or value.count("/") > 1
    if not looks_local:
        return
    if not path.is_dir():
        raise ConfigError(flag, value, "there is no such folder", "Check the path, or give a hub id (owner/name)")
    with _readable(flag, value):
        has_config = (path / "config.json").is_file()
    if not has_config:
        raise ConfigError(
            flag, value, "the folder holds no config.json", "Give the folder of a Hugging Face checkpoint"
        )


def _check_python_file(flag: str, value: str, name: str) -> None:
    path = Path(value)
    if not path.is_file():
        raise ConfigError(flag, value, "there is no such file", f"Give a Python file that defines {name}")
    try:
        with _readable(flag, value):
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=value)
    except (SyntaxError, ValueError) as error:  # ValueError: not UTF-8, or null bytes in older Pythons
        raise ConfigError(flag, value, f"it is not valid Python ({error})", "Fix the file") from error
    if name not in _top_level_names(tree):
        raise ConfigError(
            flag, value, f"it does not define {name}", f"Define {name} at the top level of the file (see the README)"
        )


@contextmanager
def _readable(flag: str, value: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(flag, value, f"it cannot be read ({error.strerror})", "Check its permissions") from error


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
