"""Training steps with numbers that are not finite, in one process with the real DeepSpeed: a program of its own.

    python finite_training.py FOLDER

Prints one JSON object: by case, what training said, how many steps it took, and whether the weights moved.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamic_training import Run, free_port, samples, save_model

STAGES = {"ZeRO 0": 0, "ZeRO 2": 2, "ZeRO 3": 3}


def spoil_nothing(run: Any, experiences: list[Any]) -> None:
    pass


def spoil_advantage(run: Any, experiences: list[Any]) -> None:
    experiences[1].advantages[0, 0] = math.nan


def make_loss_overflow(run: Any, experiences: list[Any]) -> None:
    for experience in experiences:
        experience.advantages = experience.advantages.sign() * 3e38


def spoil_gradient(run: Any, experiences: list[Any]) -> None:
    """The loss stays as it is."""

    def watch(_module: Any, _inputs: Any, logits: Any) -> None:
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * math.inf)

    run.actor.model.module.get_output_embeddings().register_forward_hook(watch)


DAMAGES: dict[str, Callable[[Any, list[Any]], None]] = {
    "nothing": spoil_nothing,
    "advantage": spoil_advantage,
    "loss": make_loss_overflow,
    "gradient": spoil_gradient,
}


def outcome(folder: Path, stage: int, damage: Callable[[Any, list[Any]], None]) -> dict[str, Any]:
    from openrlhf_ada.trainer.training_step import NotFiniteError

    run = Run(0, folder, kind="fixed", stage=stage, loss="token-mean", batch=16)
    before = run.weights()
    experiences = run.maker().make_experience_batch(samples())
    damage(run, experiences)
    for experience in experiences:
        run.trainer.replay_buffer.append(experience)
    said = ""
    try:
        run.trainer.ppo_train(0.0)
    except NotFiniteError as error:
        said = str(error)
    after = run.weights()
    return {
        "said": said,
        "steps": run.actor.model.global_steps - run.actor.model.skipped_steps,
        "moved": any(not bool((after[name] == before[name]).all()) for name in before),
    }


def main(folder: Path) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "OPENRLHF_ADA_CPU_DTYPE": "float32", "OPENRLHF_ADA_TORCH_THREADS": "1",
    }  # fmt: skip
    from openrlhf_ada.platforms import without_gpu

    if without_gpu.is_needed():
        without_gpu.activate()
    save_model(folder / "model")
    found = {
        f"{damage}, {name}": outcome(folder, stage, DAMAGES[damage])
        for damage in DAMAGES
        for name, stage in STAGES.items()
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
