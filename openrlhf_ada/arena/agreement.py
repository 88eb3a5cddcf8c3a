"""The same trial in one process and on the real stack: what makes the two equal, and what each of them says.

Both start from one checkpoint, have the same prompts, method, loss and optimiser, and are measured by one function:
the exact probability of the right answer to each held-out prompt, from the weights. Their random numbers differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import openrlhf_ada.arena.exact_answer as reward_file
from openrlhf_ada.arena.folders import SETTINGS, Result, check_new, make, read_results, read_settings
from openrlhf_ada.arena.methods import METHODS, Method, check_flags
from openrlhf_ada.arena.names import check_names
from openrlhf_ada.arena.real import Flags, check_equal, method_flags
from openrlhf_ada.arena.tasks import TASKS
from openrlhf_ada.config.presets import part
from openrlhf_ada.reporting.run_record import Run

LEARNER, REAL = "learner", "real"
"""In one process; with Ray, DeepSpeed and vLLM."""

METHODS_DEFAULT = ("uniform-4", "first-right")
"""A fixed number of rollouts, all trained, in four updates; and waves of one until one is right, in eight."""

REPEATS = 4
"""Trials in one process for each on the real stack: with other samples, from the same start. They cost seconds."""

MARKS = 16
"""Measurements after the first, evenly over the steps."""

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of AdamW, as torch has them, whose defaults the learner uses. OpenRLHF's second beta is 0.95."""

MAX_NORM: float = part("recipe").flags["actor.max_norm"]
CLIP: tuple[float, float] = part("recipe").flags["actor.eps_clip_low_high"]
"""As in the learner."""

TRIALS = "trials.jsonl"
MEASURED = ("accuracy", "rollouts", "tokens")
"""In a result, beside the fields of its cell: lists with a number for each measurement, the last two of so far."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all trials of a folder. `prompts`: of a step. `rate`: learning rate, constant."""

    task: str = "graded"
    steps: int = 32
    prompts: int = 32
    rate: float = 1e-3

    @property
    def steps_between(self) -> int:
        """Between two measurements."""
        return self.steps // MARKS

    @property
    def episodes(self) -> int:
        """Passes over the training prompts."""
        return self.steps * self.prompts // TASKS[self.task].num_train


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One trial. `seed`: of the world and its starting model. `repeat`: of several with other samples."""

    method: str
    seed: int
    stack: str
    repeat: int = 0

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


def plan(methods: Sequence[str], seeds: int, stack: str) -> list[Cell]:
    """Whole seeds first."""
    repeats = REPEATS if stack == LEARNER else 1
    return [Cell(method, s, stack, r) for s in range(seeds) for r in range(repeats) for method in methods]


def check(methods: Sequence[str], seeds: int, conditions: Conditions) -> None:
    """Raises ValueError for what cannot be compared."""
    check_names("--methods", methods, METHODS)
    check_flags(methods)
    refill = [name for name in methods if METHODS[name].refill]
    if refill:
        raise ValueError(
            f"--methods {','.join(refill)}: methods that replace prompts are not compared. Try "
            f"{','.join(METHODS_DEFAULT)}"
        )
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: at least 1 is needed, and 3 for an interval")
    task = TASKS[conditions.task]
    whole = task.num_train // conditions.prompts
    if conditions.steps < whole or conditions.steps % whole:
        raise ValueError(
            f"--steps {conditions.steps}: expected whole passes over the prompts, of {whole} steps each. Try "
            f"{2 * whole}"
        )


# -- in one process ---------------------------------------------------------------------------------------------------


def learner_trial(cell: Cell, conditions: Conditions, start: Path) -> Result:
    """In a process of its own. `start`: the starting model's checkpoint."""
    import torch

    from openrlhf_ada.arena.language_model import load_model
    from openrlhf_ada.arena.learner import Learner
    from openrlhf_ada.arena.tasks import make_world
    from openrlhf_ada.arena.trial import Trial

    torch.set_num_threads(1)
    model, seed = load_model(start), 1000 * cell.repeat + cell.seed
    learner = Learner(make_world(TASKS[conditions.task], cell.seed), model.state_dict(), conditions.rate, seed, model)
    trial = Trial(learner, METHODS[cell.method], conditions.prompts, seed)
    curve = trial.run(conditions.steps, "steps", MARKS)
    return _result(cell, curve.accuracy, *([point[name] for point in curve.spent] for name in ("rollouts", "tokens")))


def _result(cell: Cell, accuracy: Sequence[float], rollouts: Sequence[int], tokens: Sequence[int]) -> Result:
    shown = [round(value, 5) for value in accuracy]
    return asdict(cell) | {"accuracy": shown, "rollouts": list(rollouts), "tokens": list(tokens)}


# -- on the real stack ------------------------------------------------------------------------------------------------


def train_flags(method: Method, conditions: Conditions) -> Flags:
    """What makes `openrlhf-ada train` the same trial, beside seed, model, prompts and folders."""
    trained = conditions.prompts * method.n
    return method_flags(method) | {
        "reward.remote_url": reward_file.__file__,
        "rollout.max_new_tokens": TASKS[conditions.task].max_tokens,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "rollout.batch_size": conditions.prompts,
        "rollout.n_samples_per_prompt": method.n,
        "rollout.micro_batch_size": trained,
        "train.batch_size": trained // method.parts,
        "train.micro_batch_size": trained // method.parts,
        "train.max_epochs": method.passes,
        "train.num_episodes": conditions.episodes,
        "algo.advantage.estimator": method.estimator,
        "algo.kl.init_coef": 0,
        # A sample's loss is the sum over its tokens, and the batch's the mean over its samples.
        "ada_loss": "sequence-constant",
        "ada_loss_length": 1,
        "actor.adam.lr": conditions.rate,
        "actor.adam.betas": BETAS,
        "actor.adam.eps": EPSILON,
        "actor.adam.weight_decay": 0.0,
        "actor.max_norm": MAX_NORM,
        "actor.eps_clip_low_high": CLIP,
        "actor.lr_scheduler": "constant",
        # The weights are what is measured; a training of minutes is not resumed, but repeated.
        "ckpt.save_hf": True,
        "ckpt.disable_ds": True,
        "ckpt.save_steps": conditions.steps_between,
        "ckpt.best_metric_key": "none",
    }


def real_result(cell: Cell, conditions: Conditions, run: Run, checkpoints: Sequence[Path]) -> Result:
    """Of a training that has ended. `checkpoints`: the starting model, then one for each measurement."""
    from openrlhf_ada.arena.language_model import load_model
    from openrlhf_ada.arena.learner import pass_rates
    from openrlhf_ada.arena.tasks import make_world

    held_out = make_world(TASKS[conditions.task], cell.seed).held_out
    accuracy = [float(pass_rates(load_model(folder), held_out).mean()) for folder in checkpoints]
    marks = range(0, conditions.steps + 1, conditions.steps_between)
    spent = [
        [[0, *accumulate(row[name] for row in run.steps)][step] for step in marks]
        for name in ("ada/drawn", "ada/drawn_tokens")
    ]
    return _result(cell, accuracy, *spent)


# -- results on disk --------------------------------------------------------------------------------------------------


class Results:
    """A folder with settings.json and a JSON line for each trial that has ended.

    Raises ValueError for a folder of other conditions or flags, or with a line that is no result.
    """

    def __init__(self, folder: Path, conditions: Conditions, methods: Sequence[str]) -> None:
        self.folder, self.conditions = folder, conditions
        self.by_cell: dict[Cell, Result] = {}
        self._settings = _settings(conditions, methods)
        check_new(folder)
        self._compare_settings(read_settings(folder, ("conditions",)))
        for _, cell, result in read_results(folder / TRIALS, Cell, MEASURED):
            self.by_cell[cell] = result

    def _compare_settings(self, theirs: dict[str, Any]) -> None:
        for name, ours in self._settings.items():
            where = f"{self.folder / SETTINGS}, {name},"
            check_equal(where, theirs.setdefault(name, ours), ours, "Take another --out")
        self._settings = theirs

    def start(self) -> None:
        """Write the settings."""
        make(self.folder)
        text = json.dumps(self._settings, indent=1, ensure_ascii=False) + "\n"
        (self.folder / SETTINGS).write_text(text, encoding="utf-8")

    def add(self, result: Result) -> None:
        """Keep it, in memory and on disk."""
        self.by_cell[Cell(*(result[field.name] for field in fields(Cell)))] = result
        with (self.folder / TRIALS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Of these cells."""
        return [cell for cell in cells if cell not in self.by_cell]


def _settings(conditions: Conditions, methods: Sequence[str]) -> dict[str, Any]:
    """As JSON has them: the conditions, and the flags of each method."""
    by_method = {name: train_flags(METHODS[name], conditions) for name in methods}
    for flags in by_method.values():
        # Where this package is installed makes no difference.
        flags["reward.remote_url"] = Path(flags["reward.remote_url"]).name
    return json.loads(json.dumps({"conditions": asdict(conditions)} | by_method))


def pack(results: Results, file: Path) -> None:
    """Write all trials into one small file, sorted."""
    lines = [json.dumps(results.by_cell[cell]) for cell in sorted(results.by_cell, key=astuple)]
    conditions = json.dumps(asdict(results.conditions))
    body = ",\n".join(lines)
    file.write_text(f'{{"conditions": {conditions},\n"trials": [\n{body}\n]}}\n', encoding="utf-8")


def unpack(file: Path) -> tuple[Conditions, Mapping[Cell, Result]]:
    """What `pack` wrote."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    cells = {Cell(*(result[field.name] for field in fields(Cell))): result for result in kept["trials"]}
    return Conditions(**kept["conditions"]), cells
