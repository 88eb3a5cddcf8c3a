"""The demo: build a model and prompts once, evaluate, train with Ada-Seq-balance, evaluate again."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openrlhf_ada.reward.arithmetic as reward_file
from openrlhf_ada.cli.train_ppo_ray import main as train
from openrlhf_ada.config import program
from openrlhf_ada.config.presets import DEVICES
from openrlhf_ada.platforms import without_gpu


@dataclass(frozen=True, slots=True)
class Recipe:
    """What differs between the two demos."""

    model: str
    num_prompts: int
    episodes: int
    """The toy task has few sums."""
    batch_size: int
    num_heldout: int
    eval_samples: int
    max_new_tokens: int
    learning_rate: float


SMOLLM2 = Recipe("SmolLM2-135M-Instruct", 224, 1, 16, 192, 4, 5, 2e-5)
TOY = Recipe("a toy model of 0.1 M parameters", 256, 2, 32, 100, 8, 4, 3e-4)

GROUP_SIZE = 4
MAX_SAMPLES = 16


def main(argv: Sequence[str]) -> int:
    """Entry point; unknown options go to `openrlhf-ada train` and win over the recipe's."""
    parser = build_parser()
    args, extra = parser.parse_known_args(argv)
    if any(part.split("=")[0] == "--ada_run_dir" for part in extra):
        parser.error("--ada_run_dir is named by --run-dir here: use that")
    recipe = TOY if args.toy else SMOLLM2
    print(f"1/2 {recipe.model} and arithmetic prompts of graded difficulty")
    model, data = prepare_model(args.toy, args.cache_dir), args.cache_dir / f"{'toy' if args.toy else 'smollm2'}-data"
    write_prompts(args.toy, data, num_train=recipe.num_prompts, num_heldout=recipe.num_heldout, seed=0)
    command = [*training_flags(recipe, model, data, args.run_dir), *extra]
    print("2/2 training with Reinforce-Ada's balance, in small steps. The same command line trains on GPUs:\n")
    # One flag per line.
    flags = shlex.join(command).replace(" --", " \\\n    --")
    print(f"  {program.called()} train {flags}\n")
    return train(command)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openrlhf-ada demo", description=__doc__)
    parser.add_argument("--toy", action="store_true", help="use the toy model; takes under two minutes")
    parser.add_argument(
        "--run-dir",
        type=Path,
        default=Path("runs") / time.strftime("demo-%m%d-%H%M%S"),
        help="run directory (default: runs/demo-<time>)",
    )
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"), help="folder for the model and the prompts")
    return parser


def prepare_model(toy: bool, cache: Path) -> Path:
    """Its folder; built on the first call."""
    _choose_platform()
    from openrlhf_ada.demo.model import build_smollm2
    from openrlhf_ada.demo.toy import build_toy_model

    # An answer ends with its line: text after it is neither sampled nor trained.
    folder = cache / f"{'toy' if toy else 'smollm2'}-model"
    return build_toy_model(folder) if toy else build_smollm2(folder, end_at_newline=True)


def write_prompts(toy: bool, folder: Path, *, num_train: int, num_heldout: int, seed: int) -> dict[str, Any]:
    """Write train.jsonl and heldout.jsonl; returns what was written."""
    from openrlhf_ada.demo.arithmetic import write_demo_data
    from openrlhf_ada.demo.toy import write_toy_data

    return (write_toy_data if toy else write_demo_data)(
        folder, num_train=num_train, num_heldout=num_heldout, seed=seed
    )


def _choose_platform() -> None:
    """Use the CPU now if the run will: DeepSpeed, which transformers imports, would complain about a missing GPU."""
    if without_gpu.is_needed():
        without_gpu.activate()


def training_flags(recipe: Recipe, model: Path, data: Path, run_dir: Path) -> list[str]:
    """Flags of `openrlhf-ada train`."""
    trained = recipe.batch_size * GROUP_SIZE
    flags: dict[str, Any] = {
        "ada_mode": "seq",
        "ada_exit": "balance",
        "ada_wave": GROUP_SIZE,
        "ada_max_samples": MAX_SAMPLES,
        "actor.adam.lr": recipe.learning_rate,
        "algo.advantage.estimator": "dr_grpo",
        "train.num_episodes": recipe.episodes,
        "rollout.batch_size": recipe.batch_size,
        "rollout.n_samples_per_prompt": GROUP_SIZE,
        "rollout.micro_batch_size": trained,
        "train.batch_size": trained,
        "train.micro_batch_size": trained,
        "ada_eval_ends": True,
    }
    return words(flags | flags_of_any_run(recipe, model, data, run_dir))


def flags_of_any_run(recipe: Recipe, model: Path, data: Path, run_dir: Path) -> dict[str, Any]:
    """Those that have nothing to do with the method, by name; True is a switch."""
    return {
        "ada_run_dir": run_dir,
        "actor.model_name_or_path": model,
        **DEVICES["cpu"],
        "vllm.enable_prefix_caching": True,
        "algo.kl.init_coef": 0,
        "data.prompt_dataset": data / "train.jsonl",
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": 64,
        "reward.remote_url": reward_file.__file__,
        "rollout.max_new_tokens": recipe.max_new_tokens,
        "eval.dataset": data / "heldout.jsonl",
        "eval.temperature": 1.0,
        "eval.n_samples_per_prompt": recipe.eval_samples,
        "ckpt.output_dir": run_dir / "model",
    }


def words(flags: Mapping[str, Any]) -> list[str]:
    """A command line. True is a switch; a tuple is several words."""
    line: list[str] = []
    for name, value in flags.items():
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        line += [f"--{name}", *map(str, values)]
    return line


# -- demo-model, demo-data: what the demo trains, to look at or to train with other flags -----------------------------


def model_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ada demo-model",
        description="Write SmolLM2-135M-Instruct, or the toy model, as a Hugging Face checkpoint",
    )
    parser.add_argument("out_dir", type=Path, help="folder to write")
    parser.add_argument(
        "--toy", action="store_true", help="write the toy: a two-layer character model, pre-trained in seconds"
    )
    return parser


def data_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ada demo-data",
        description="Write arithmetic prompts of graded difficulty: train.jsonl and heldout.jsonl",
    )
    parser.add_argument("out_dir", type=Path, help="folder to write")
    parser.add_argument("--toy", action="store_true", help="write prompts for the toy model")
    parser.add_argument("--num-train", type=int, default=256, help="number of training prompts (default 256)")
    parser.add_argument("--num-heldout", type=int, default=100, help="number of held-out prompts (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (default 0)")
    return parser


def write_model(argv: Sequence[str]) -> int:
    """Entry point of demo-model; returns the exit status."""
    args = model_parser().parse_args(argv)
    _choose_platform()
    from openrlhf_ada.demo.model import build_smollm2
    from openrlhf_ada.demo.toy import build_toy_model

    print((build_toy_model if args.toy else build_smollm2)(args.out_dir))
    return 0


def write_data(argv: Sequence[str]) -> int:
    """Entry point of demo-data; returns the exit status."""
    args = data_parser().parse_args(argv)
    print(
        write_prompts(args.toy, args.out_dir, num_train=args.num_train, num_heldout=args.num_heldout, seed=args.seed)
    )
    return 0
