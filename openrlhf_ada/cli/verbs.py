"""The commands of `openrlhf-ada`, by name. Each imports what it needs when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """`function` of `module` takes the words after the command's name and returns the exit status.

    `answers_for_errors`: it reports bad input itself. `reads_config`: it reads --config itself.
    """

    summary: str
    module: str
    function: str = "main"
    answers_for_errors: bool = False
    reads_config: bool = False

    def run(self, argv: Sequence[str]) -> int:
        module = importlib.import_module(f"openrlhf_ada.cli.{self.module}")
        status: int = getattr(module, self.function)(argv)
        return status


VERBS = {
    "train": Verb(
        "train with adaptive sampling; takes all OpenRLHF flags and ours (openrlhf-ada train --help)",
        "train_ppo_ray",
        answers_for_errors=True,
    ),
    "doctor": Verb(
        "look at this machine and at what a training would use, and say what to do", "doctor", reads_config=True
    ),
    "init": Verb("write the files of a first run of your own: run.yaml, reward.py, prompts.jsonl", "init"),
    "demo": Verb(
        "train a small model on this machine's CPU and show that it learned", "demo", answers_for_errors=True
    ),
    "demo-model": Verb("write the demo's model as a Hugging Face checkpoint", "demo", "write_model"),
    "demo-data": Verb("write the demo's prompts: train.jsonl and heldout.jsonl", "demo", "write_data"),
    "prepare-data": Verb("make training data of known difficulty: check, sample and select problems", "prepare_data"),
    "eval": Verb("evaluate checkpoints or a server's models: avg@n, pass@k, maj@k, with intervals", "evaluate"),
    "submit": Verb(
        "run train, eval or prepare-data as a job on a Ray cluster: openrlhf-ada submit train ...", "submit"
    ),
    "report": Verb("write the page of a run, or of several beside each other", "report"),
    "arena": Verb("compare methods at equal cost, with a small model that learns in seconds", "arena"),
    "simulate": Verb("estimate sampling time with other policies, schedulers and numbers of engines", "simulate"),
}


def list_verbs() -> str:
    """One line for each command."""
    return "commands:\n" + "".join(f"  {name:13} {verb.summary}\n" for name, verb in VERBS.items())
