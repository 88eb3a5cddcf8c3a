"""The commands of `openrlhf-ada`, by name. Each imports what it needs when it is called."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from openrlhf_ada.config.installed import check_packages

TRAINING = ("openrlhf", "vllm", "torch", "transformers", "ray", "deepspeed", "datasets", "psutil", "rich")


@dataclass(frozen=True, slots=True)
class Verb:
    """`function` of `module` takes the words after the command's name and returns the exit status; `parser` of it
    makes what reads them.

    `needs`: packages without which it can do nothing, as they are imported. Others depend on its flags.
    `answers_for_errors`: it reports bad input itself. `reads_config`: it reads --config itself.
    """

    summary: str
    module: str
    function: str = "main"
    parser: str = "build_parser"
    needs: tuple[str, ...] = ()
    answers_for_errors: bool = False
    reads_config: bool = False

    def run(self, argv: Sequence[str]) -> int:
        """Raises MissingPackagesError before anything is done, but for --help."""
        if not {"-h", "--help"} & set(argv):
            check_packages(self.needs)
        status: int = getattr(self._import(), self.function)(argv)
        return status

    def build_parser(self) -> argparse.ArgumentParser:
        """Without checking that what the command needs is installed."""
        parser: argparse.ArgumentParser = getattr(self._import(), self.parser)()
        return parser

    def _import(self) -> ModuleType:
        return importlib.import_module(f"openrlhf_ada.cli.{self.module}")


TRAIN = "train"

VERBS = {
    TRAIN: Verb(
        "train with adaptive sampling; takes all OpenRLHF flags and ours (openrlhf-ada train --help)",
        "train_ppo_ray",
        needs=TRAINING,
        answers_for_errors=True,
    ),
    "doctor": Verb(
        "look at this machine and at what a training would use, and say what to do", "doctor", reads_config=True
    ),
    "init": Verb("write the files of a first run of your own: run.yaml, a reward, prompts", "init", needs=("torch",)),
    "demo": Verb(
        "train a small model on this machine's CPU and show that it learned",
        "demo",
        needs=TRAINING,
        answers_for_errors=True,
    ),
    "demo-model": Verb(
        "write the demo's model as a Hugging Face checkpoint",
        "demo",
        "write_model",
        "model_parser",
        needs=("torch", "transformers"),
    ),
    "demo-data": Verb("write the demo's prompts: train.jsonl and heldout.jsonl", "demo", "write_data", "data_parser"),
    "prepare-data": Verb(
        "make training data of known difficulty: check, sample and select problems",
        "prepare_data",
        needs=("aiohttp", "datasets"),
    ),
    "eval": Verb(
        "evaluate checkpoints or a server's models: avg@n, pass@k, maj@n, with intervals",
        "evaluate",
        needs=("datasets", "openai", "rich"),
    ),
    "report": Verb("write the page of a run, or of several beside each other", "report"),
    "methods": Verb("list the methods of --ada_method, or show one: what it sets, and from where", "methods"),
    "plan": Verb("estimate what a step of each method takes and gives", "plan", needs=("rich",)),
}


def list_verbs() -> str:
    """One line for each command."""
    return "commands:\n" + "".join(f"  {name:13} {verb.summary}\n" for name, verb in VERBS.items())
