"""Is everything that the flags name really there? Answered from file names and text, before anything heavy loads."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ada.config.choosing import check_candidates
from openrlhf_ada.config.flags import ConfigError, Problem, raise_all, raise_first
from openrlhf_ada.config.host_rules import check_against_host
from openrlhf_ada.config.host_values import batch_plan
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.data.files import check_names
from openrlhf_ada.data.prepared import check_counts
from openrlhf_ada.eval.held_out import best_metric_names
from openrlhf_ada.host.engine_options import check_in_training
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
    raise_all(_required(args))
    check_against_host(args.ada, args)
    raise_first(chain(_rewards(args), _others(args)))
    check_in_training(args)


def _required(args: SimpleNamespace) -> Iterator[Problem]:
    """What every run needs, and OpenRLHF would miss only later, in other words."""
    engines = args.vllm.num_engines
    a_reward = "Give a reward file or URL, a reward model (--reward.model_name_or_path) or --train.agent_func_path"
    if args.actor.model_name_or_path is None:
        yield "--actor.model_name_or_path", None, "there is no model to train", "Give a folder or a hub id"
    if args.data.prompt_dataset is None:
        yield "--data.prompt_dataset", None, "there are no prompts to train on", "Give a .jsonl or a hub id"
    if not engines or engines < 0:
        remedy = "Use --vllm.num_engines 1, or without a GPU --ada_device cpu, which sets all that a CPU needs"
        yield "--vllm.num_engines", engines, "vLLM samples", remedy
    if not (args.reward.remote_url or args.reward.model_name_or_path or args.train.agent_func_path):
        yield "--reward.remote_url", None, "nothing says what a good answer is", a_reward
    if args.use_ms and importlib.util.find_spec("modelscope") is None:
        yield "--use_ms", True, "modelscope is not installed", "pip install modelscope, or leave it out"
    if args.ada.eval_ends and not args.eval.dataset:
        yield "--ada_eval_ends", True, "there is no evaluation set", "Give --eval.dataset"


def _rewards(args: SimpleNamespace) -> Iterator[Problem]:
    settings: Settings = args.ada
    flag, names = "--reward.remote_url", split_names(args.reward.remote_url)
    labelled = [name for name in names if grades_labels(name)]
    if labelled and args.data.label_key is None:
        rule = f"{flag} {labelled[0]} compares answers with labels"
        yield "--data.label_key", None, rule, "Name the column that holds them"
    for name in ("code_imports", "code_partial"):
        value = getattr(settings, name)
        if names and not {"code", MIXED} & set(names) and value not in ("none", False):
            yield f"--ada_{name}", value, f"only {flag} code reads it, which is {','.join(names)}", "Leave it out"
    # The first reward is the score.
    partial = ["code"] if settings.code_partial else []
    if settings.positive_quantile is not None and names and names[0] in RIGHT_OR_WRONG and names[0] not in partial:
        rule = f"{flag} {names[0]} gives scores of 0 and 1, and so is every quantile of them"
        yield "--ada_positive_quantile", settings.positive_quantile, rule, "Leave it out"
    if settings.reward_weights is None and len(names) > 1 and not any(map(is_url, names)):
        remedy = f"Add --ada_reward_weights {','.join(['1', *['0.2'] * (len(names) - 1)])}; the first is the score"
        yield flag, args.reward.remote_url, "it names several rewards, and nothing says how much each counts", remedy
    if settings.reward_weights is not None:
        yield from _weights(settings, names, in_ppo=args.algo.advantage.estimator == "gae")
    for name in ("reward_key", "reward_map"):
        if getattr(settings, name) is not None and MIXED not in names:
            rule = f"rows name their grader with {flag} {MIXED} only"
            yield f"--ada_{name}", getattr(settings, name), rule, f"Use that, or leave --ada_{name} out"
    if (settings.format == "none") != (settings.format_bonus == 0.0):
        rule = f"it goes with --ada_format, which is {settings.format}"
        yield "--ada_format_bonus", settings.format_bonus, rule, "Give both or neither"


def _weights(settings: Settings, names: list[str], *, in_ppo: bool) -> Iterator[Problem]:
    flag, given = "--ada_reward_weights", settings.reward_weights
    if len(parse_weights(given or "")) != len(names) or any(map(is_url, names)):
        rule = (
            f"expected one number for each reward function of --reward.remote_url, which is {','.join(names) or None}"
        )
        yield flag, given, rule, "Give as many numbers as rewards, separated by commas"
    if settings.mode != "off" and settings.estimator == "critic" and in_ppo:
        rule = "with --ada_estimator critic PPO's value of a prompt must be its pass rate, so the reward is the score"
        yield flag, given, rule, "Leave one of the two out"


def parse_weights(text: str) -> list[float]:
    """Of --ada_reward_weights; empty where it is no list of finite numbers other than 0."""
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return weights if all(weight and math.isfinite(weight) for weight in weights) else []


def _others(args: SimpleNamespace) -> Iterator[Problem]:
    # OpenRLHF would look for a name that no evaluation has, and never keep a best checkpoint.
    key, ours = args.ckpt.best_metric_key, best_metric_names(args.eval.n_samples_per_prompt)
    if key and key not in ("none", *ours) and not key.startswith(("accuracy/", "eval_")):
        remedy = f"Use {', '.join(ours)}, accuracy/<datasource>, eval_<datasource>_pass1, or none"
        yield "--ckpt.best_metric_key", key, "no evaluation has a figure of that name", remedy
    if args.ada.chat_template_args and not args.data.apply_chat_template:
        rule, remedy = "a chat template would read it", "Add --data.apply_chat_template, or leave it out"
        yield "--ada_chat_template_args", args.ada.chat_template_args, rule, remedy
    if args.ada.dead_after <= args.ada.silence:
        rule = f"a run that waits must say so before it ends, and --ada_silence is {args.ada.silence:g}"
        yield "--ada_dead_after", args.ada.dead_after, rule, "Make it longer than that"


def check_paths(args: SimpleNamespace) -> None:
    """Models, reward files and prompt files; raises ConfigError or DataError."""
    for name in MODEL_FLAGS:
        path = getattr(args, name).model_name_or_path
        if path is not None:
            check_model(f"--{name}.model_name_or_path", path, trusted=args.ada.trust_remote_code)
    check_rewards(args.reward.remote_url, "--reward.remote_url")
    raise_first(_experts(args))
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
        rule = f"it makes no policy ({type(error).__name__}: {error})"
        raise ConfigError("--ada_policy", args.ada.policy, rule, "Fix the file") from error


def _experts(args: SimpleNamespace) -> Iterator[Problem]:
    """Some of vLLM's kernels pack experts in another order."""
    flag, model = "--actor.model_name_or_path", args.actor.model_name_or_path
    if args.ada.verify_sync == "off" and Path(model).is_dir() and has_experts(read_config(flag, model) or {}):
        rule = f"{model} is a mixture of experts, which vLLM may pack wrongly without a word. Only these checks see it"
        yield "--ada_verify_sync", "off", rule, "Leave it out"


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
    size, plan = args.rollout.batch_size, batch_plan(args, args.ada)
    if prompts < size if args.ada.mode == "off" else not plan.steps(prompts * args.train.num_episodes):
        rule = f"its {prompts} prompts cannot fill one batch of --rollout.batch_size {size}: nothing would be trained"
        remedy = "Give more prompts (or a larger --data.max_samples), or lower --rollout.batch_size"
        raise ConfigError("--data.prompt_dataset", args.data.prompt_dataset, rule, remedy)


def _check_probabilities(value: str, num_datasets: int) -> None:
    probabilities = parse_weights(value)
    if len(probabilities) != num_datasets or min(probabilities) < 0:
        rule = f"expected one positive number for each of the {num_datasets} sets of --data.prompt_dataset"
        raise ConfigError("--data.prompt_probs", value, rule, "Give as many numbers as sets, separated by commas")


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
        remedy = "Name another folder, or change its permissions"
        raise ConfigError(flag, folder, f"{there} cannot be written to", remedy)


def _check_run_dir(args: SimpleNamespace) -> None:
    """Refuse to write a second run into a directory that holds one, unless it is being resumed."""
    name = Path(args.logger.wandb.run_name)
    if not name.parts or name.is_absolute() or ".." in name.parts:
        rule, remedy = "it must name a folder within runs/", "Use --ada_run_dir for others"
        raise ConfigError("--logger.wandb.run_name", str(name), rule, remedy)
    run_dir = args.ada.resolved_run_dir(args.logger.wandb.run_name)
    _check_folder("--ada_run_dir", str(run_dir))
    if (run_dir / METRICS_FILE).exists() and not resumes(args):
        remedy = "Name another directory, or resume that run with --ckpt.load_enable"
        if args.ckpt.load_enable:
            remedy += f" from its checkpoints (there are none in --ckpt.path {args.ckpt.path})"
        raise ConfigError("--ada_run_dir", str(run_dir), "it holds the record of another run", remedy)


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
        raise ConfigError(flag, value, "the folder holds no config.json", "Give that of a Hugging Face checkpoint")
    if not any(next(path.glob(pattern), None) for pattern in WEIGHTS):
        raise ConfigError(flag, value, "the folder has a config.json and no weights", "Give a whole checkpoint")
    check_model_code(flag, value, trusted=trusted)


def check_hub_models(args: SimpleNamespace) -> None:
    """Models of the hub bring no code along that was not asked for. Downloads configurations; raises ConfigError."""
    for name in MODEL_FLAGS:
        model = getattr(args, name).model_name_or_path
        if model is not None and not Path(model).is_dir():
            check_model_code(f"--{name}.model_name_or_path", model, trusted=args.ada.trust_remote_code)
