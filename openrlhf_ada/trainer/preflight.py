"""Is everything that the flags name really there? Answered from file names and text, before anything heavy loads."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.batch_rules import batch_plan
from openrlhf_ada.config.choosing import check_candidates
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.host_rules import check_against_host
from openrlhf_ada.config.host_values import check_values, goes_over_ipc
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.data.files import check_names
from openrlhf_ada.data.prepared import check_counts
from openrlhf_ada.eval.held_out import best_metric_names
from openrlhf_ada.host.model_code import check_model_code, has_experts, read_config
from openrlhf_ada.reporting.run_log import METRICS_FILE
from openrlhf_ada.reporting.wandb_run import check_key
from openrlhf_ada.reward.names import check_python_file, check_rewards, readable, split_names
from openrlhf_ada.reward.reward_function import MIXED, RIGHT_OR_WRONG, grades_labels, is_url
from openrlhf_ada.trainer.resume import resumes

MODEL_FLAGS = ("actor", "critic", "reward")

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "adapter_config.json")


def check_flags(args: SimpleNamespace) -> None:
    """All of our checks, on the parsed flags; raises ConfigError or DataError."""
    check_without_files(args)
    check_paths(args)
    check_outputs(args)


def check_without_files(args: SimpleNamespace) -> None:
    """What can be said of the flags where the files that they name may be on another machine; raises ConfigError."""
    check_values(args)
    check_against_host(args.ada, args)
    check_required(args)
    _check_format(args.ada)
    _check_best_metric(args)
    _check_labels(args)
    _check_verifier(args)
    _check_weights(args)
    _check_row_rewards(args)
    if args.ada.dead_after <= args.ada.silence:
        rule = f"a run that waits must say so before it ends, and --ada_silence is {args.ada.silence:g}"
        raise ConfigError("--ada_dead_after", args.ada.dead_after, rule, "Make it longer than that")


def _check_format(settings: Settings) -> None:
    if (settings.format == "none") != (settings.format_bonus == 0.0):
        raise ConfigError(
            "--ada_format_bonus",
            settings.format_bonus,
            f"it goes with --ada_format, which is {settings.format}",
            "Give both or neither",
        )


def _check_best_metric(args: SimpleNamespace) -> None:
    """OpenRLHF would look for a name that no evaluation has, and never keep a best checkpoint."""
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
    """What every run needs, and OpenRLHF would miss only later, in other words; raises ConfigError."""
    scores = args.reward.remote_url or args.reward.model_name_or_path or args.train.agent_func_path
    has_engines = args.vllm.num_engines and args.vllm.num_engines > 0
    lacks_modelscope = args.use_ms and importlib.util.find_spec("modelscope") is None
    no_evaluation = args.ada.eval_ends and not args.eval.dataset
    a_reward = "Give a reward file or URL, a reward model (--reward.model_name_or_path) or an agent"
    model, data = args.actor.model_name_or_path, args.data.prompt_dataset
    rules = (
        (model is None, "--actor.model_name_or_path", None, "there is no model to train", "Give a folder or a hub id"),
        (data is None, "--data.prompt_dataset", None, "there are no prompts to train on", "Give a .jsonl or a hub id"),
        (not has_engines, "--vllm.num_engines", args.vllm.num_engines, "vLLM samples", "Use --vllm.num_engines 1"),
        (not scores, "--reward.remote_url", None, "nothing says what a good answer is", a_reward),
        (lacks_modelscope, "--use_ms", True, "modelscope is not installed", "pip install modelscope, or leave it out"),
        (no_evaluation, "--ada_eval_ends", True, "there is no evaluation set", "Give --eval.dataset"),
    )
    for is_wrong, flag, value, rule, remedy in rules:
        if is_wrong:
            raise ConfigError(flag, value, rule, remedy)


def check_paths(args: SimpleNamespace) -> None:
    """Models, reward files and prompt files; raises ConfigError or DataError."""
    for name in MODEL_FLAGS:
        path = getattr(args, name).model_name_or_path
        if path is not None:
            check_model(f"--{name}.model_name_or_path", path, trusted=args.ada.trust_remote_code)
    check_rewards(args.reward.remote_url, "--reward.remote_url")
    _check_experts(args)
    if args.train.agent_func_path:
        check_python_file("--train.agent_func_path", args.train.agent_func_path, "AgentExecutor")
    if args.ada.policy:
        _check_policy(args)
    check_data(args)


def _check_policy(args: SimpleNamespace) -> None:
    check_python_file("--ada_policy", args.ada.policy, "make_policy")
    try:
        make_policy(args.ada)
    except Exception as error:
        raise ConfigError(
            "--ada_policy", args.ada.policy, f"it makes no policy ({type(error).__name__}: {error})", "Fix the file"
        ) from error


def _check_experts(args: SimpleNamespace) -> None:
    """OpenRLHF's way through shared GPU memory loads into the tensors that an engine computes with. Some of vLLM's
    kernels for experts have packed these in another order, and no checksum sees what becomes of them.
    """
    if not has_experts(_config_of_policy(args)):
        return
    if args.ada.verify_sync == "off":
        raise ConfigError(
            "--ada_verify_sync",
            "off",
            f"{args.actor.model_name_or_path} is a mixture of experts. vLLM may keep or pack experts wrongly without "
            f"a word, which only the checks of the first update see",
            "Leave it out",
        )
    if goes_over_ipc(args):
        raise ConfigError(
            "--train.colocate_all",
            True,
            f"{args.actor.model_name_or_path} is a mixture of experts. On shared GPUs OpenRLHF writes new weights "
            f"over those that vLLM has packed for its kernels, and nobody has shown that experts survive that",
            "Leave it out: on GPUs of their own, engines load experts through vLLM's reload, and what they hold after "
            "the first update is compared",
        )


def _config_of_policy(args: SimpleNamespace) -> dict[str, Any]:
    """The language model's part of config.json; empty for a model that is not a folder."""
    model = args.actor.model_name_or_path
    config = read_config("--actor.model_name_or_path", model) if Path(model).is_dir() else None
    return {} if config is None else config.get("text_config", config)


def _check_labels(args: SimpleNamespace) -> None:
    named = [name for name in split_names(args.reward.remote_url) if grades_labels(name)]
    if named and args.data.label_key is None:
        raise ConfigError(
            "--data.label_key",
            None,
            f"--reward.remote_url {named[0]} compares answers with labels",
            "Name the column that holds them",
        )


def _check_verifier(args: SimpleNamespace) -> None:
    settings: Settings = args.ada
    names = split_names(args.reward.remote_url)
    for flag, value in (("--ada_code_imports", settings.code_imports), ("--ada_code_partial", settings.code_partial)):
        if names and not {"code", MIXED} & set(names) and value not in ("none", False):
            raise ConfigError(
                flag, value, f"only --reward.remote_url code reads it, which is {','.join(names)}", "Leave it out"
            )
    partial = ["code"] if settings.code_partial else []
    # The first reward is the score.
    right_or_wrong = [name for name in names[:1] if name in RIGHT_OR_WRONG and name not in partial]
    if settings.positive_quantile is not None and right_or_wrong:
        raise ConfigError(
            "--ada_positive_quantile",
            settings.positive_quantile,
            f"--reward.remote_url {right_or_wrong[0]} gives scores of 0 and 1, and so is every quantile of them",
            "Leave it out",
        )


def _check_weights(args: SimpleNamespace) -> None:
    settings: Settings = args.ada
    flag, names = "--ada_reward_weights", split_names(args.reward.remote_url)
    if settings.reward_weights is None:
        if len(names) > 1 and not any(map(is_url, names)):
            raise ConfigError(
                "--reward.remote_url",
                args.reward.remote_url,
                "it names several rewards, and nothing says how much each counts",
                f"Add {flag}, such as {flag} {','.join(['1', *['0.2'] * (len(names) - 1)])}; the first is the score",
            )
        return
    weights = parse_weights(settings.reward_weights)
    if len(weights) != len(names) or any(map(is_url, names)):
        raise ConfigError(
            flag,
            settings.reward_weights,
            f"expected one number for each reward function of --reward.remote_url, which is {args.reward.remote_url}",
            "Give as many numbers as rewards, separated by commas",
        )
    if settings.mode != "off" and settings.estimator == "critic" and args.algo.advantage.estimator == "gae":
        raise ConfigError(
            flag,
            settings.reward_weights,
            "with --ada_estimator critic PPO's value of a prompt must be its pass rate, so the reward is the score",
            "Leave one of the two out",
        )


def parse_weights(text: str) -> list[float]:
    """Of --ada_reward_weights; empty where it is no list of finite numbers other than 0."""
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return weights if all(weight and math.isfinite(weight) for weight in weights) else []


def _check_row_rewards(args: SimpleNamespace) -> None:
    if MIXED in split_names(args.reward.remote_url):
        return
    for name, value in (("reward_key", args.ada.reward_key), ("reward_map", args.ada.reward_map)):
        if value is not None:
            raise ConfigError(
                f"--ada_{name}",
                value,
                f"rows name their grader with --reward.remote_url {MIXED} only",
                f"Use that, or leave --ada_{name} out",
            )


def check_data(args: SimpleNamespace) -> None:
    """Names of prompt files and their mixture; raises ConfigError or DataError. `training_data` reads the rows."""
    flag, spec = "--data.prompt_dataset", args.data.prompt_dataset
    check_names(spec, flag)
    if args.ada.known_counts:
        check_counts(spec, flag=flag)
    if args.eval.dataset:
        check_names(args.eval.dataset, "--eval.dataset")
    if args.data.prompt_probs is not None:
        _check_probabilities(args.data.prompt_probs, num_datasets=len(spec.split(",")))


def check_rows(args: SimpleNamespace, rows: int) -> None:
    """Are so many rows enough? Data sets that are mixed by probabilities repeat rows. Raises ConfigError."""
    if args.data.prompt_probs is not None:
        return
    prompts = min(rows, args.data.max_samples)
    _check_enough(args, prompts)
    if args.ada.mode != "off":
        check_candidates(args.ada, args.rollout.batch_size, prompts)


def _check_enough(args: SimpleNamespace, prompts: int) -> None:
    """Mode off: a batch needs as many prompts as it has. An adaptive mode carries an episode's rest to the next."""
    off = args.ada.mode == "off"
    enough = (
        prompts >= args.rollout.batch_size
        if off
        else batch_plan(args, args.ada).steps(prompts * args.train.num_episodes)
    )
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


def check_outputs(args: SimpleNamespace) -> None:
    """Trackers and folders that a run writes to; raises ConfigError."""
    if args.logger.wandb.key:
        check_key(args.logger.wandb.key)
    if args.logger.tensorboard_dir:
        _check_folder("--logger.tensorboard_dir", args.logger.tensorboard_dir)
    _check_run_dir(args)
    for flag, folder in (("--ckpt.path", args.ckpt.path), ("--ckpt.output_dir", args.ckpt.output_dir)):
        _check_folder(flag, folder, may_be_elsewhere=True)


def _check_folder(flag: str, folder: str, *, may_be_elsewhere: bool = False) -> None:
    """It can be written to, or made. `may_be_elsewhere`: storage of the nodes that train, which the driver's lacks."""
    path = Path(folder).absolute()
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ConfigError(flag, folder, f"{there} is no folder", "Name another folder")
    if may_be_elsewhere and there == Path(path.anchor):
        return
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigError(
            flag, folder, f"{there} cannot be written to", "Name another folder, or change its permissions"
        )


def _check_run_dir(args: SimpleNamespace) -> None:
    """Refuse to write a second run into a directory that holds one, unless it is being resumed."""
    name = Path(args.logger.wandb.run_name)
    if not name.parts or name.is_absolute() or ".." in name.parts:
        raise ConfigError(
            "--logger.wandb.run_name", str(name), "it must name a folder within runs/", "Use --ada_run_dir for others"
        )
    run_dir = args.ada.resolved_run_dir(args.logger.wandb.run_name)
    _check_folder("--ada_run_dir", str(run_dir))
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


def check_model(flag: str, value: str, *, trusted: bool) -> None:
    """A local folder must hold a checkpoint, and no code that is not `trusted`; hub ids pass (`check_hub_models`).

    Raises ConfigError.
    """
    path = Path(value)
    looks_local = value.startswith(("/", "./", "../", "~")) or path.exists() or value.count("/") > 1
    if not looks_local:
        return
    if not path.is_dir():
        raise ConfigError(flag, value, "there is no such folder", "Check the path, or give a hub id (owner/name)")
    with readable(flag, value):
        has_config = (path / "config.json").is_file()
    if not has_config:
        raise ConfigError(
            flag, value, "the folder holds no config.json", "Give the folder of a Hugging Face checkpoint"
        )
    if not any(next(path.glob(pattern), None) for pattern in WEIGHTS):
        raise ConfigError(flag, value, "the folder has a config.json and no weights", "Give a whole checkpoint")
    check_model_code(flag, value, trusted=trusted)


def check_hub_models(args: SimpleNamespace) -> None:
    """Models of the hub bring no code along that was not asked for. Downloads configurations; raises ConfigError."""
    for name in MODEL_FLAGS:
        model = getattr(args, name).model_name_or_path
        if model is not None and not Path(model).is_dir():
            check_model_code(f"--{name}.model_name_or_path", model, trusted=args.ada.trust_remote_code)
