"""Language models with published settings, at equal seconds: command lines, prompts, and how large it is.

examples/scripts/reproduce.sh makes the command lines, so what runs here is what a user runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_ada.cli import plan
from openrlhf_ada.cli.demo import TOY, prepare_model, write_prompts
from openrlhf_ada.cli.scenario import read_machine
from openrlhf_ada.platforms.machine_check import usable_gpus
from openrlhf_ada.simulation.step_seconds import ENGINES, STEP_MODELS

if TYPE_CHECKING:
    from benchmarks.arena.real import Cell, Conditions, Flags

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "scripts"

WEIGHTS = "Qwen/Qwen2.5-Math-1.5B"

METHODS = ("uniform-8", "reinforce-ada-balance", "reinforce-ada-est", "lambda-n1-e2")
"""Values of --ada_method. The first is the reference."""

STEPS = 100
"""Of the reference, by `plan`, within the budget."""

HELDOUT = 512
"""Prompts of the prepared ones that are held out, others for each seed."""

LIMIT, DRAWS = 30_000, 16
"""Problems whose pass rates are measured where there is no data yet, and answers to each."""

HARD = "0.5,3.5"
"""A Beta distribution of pass rates like that of the hard band, before it is measured."""

START_S = 300.0
"""Seconds until a run's first step."""

PASSES = 10_000
"""Over the prompts: enough, as a run is ended when its budget is spent."""

ON_CPU = {"DEVICE": "cpu", "REWARD": "arithmetic", "CHAT": "0", "BATCH": "16", "MAX_LEN": "48", "MAX_NEW_TOKENS": "4"}
"""Variables of the script for the demo's toy."""


# -- command lines ----------------------------------------------------------------------------------------------------


def flags_of_run(cell: Cell, conditions: Conditions, folder: Path, run_dir: Path) -> Flags:
    """`folder`: of the results. Writes the prompts of the cell's seed."""
    data = (folder / "prompts" / f"seed{cell.seed}").absolute()
    if conditions.weights is None or conditions.data is None:
        model = prepare_model(True, ROOT / ".cache")
        found = write_prompts(True, data, num_train=conditions.prompts, num_heldout=TOY.num_heldout, seed=cell.seed)
        files = (found["train"], found["heldout"])
    else:
        model, files = conditions.weights, split(Path(conditions.data), data, cell.seed)
    return flags_of_method(cell.method, conditions, str(model), files, str(run_dir.absolute()))


def flags_of_method(
    method: str,
    conditions: Conditions,
    model: str = "MODEL",
    files: Sequence[str] = ("TRAIN", "HELDOUT"),
    run_dir: str = "RUN_DIR",
) -> Flags:
    """What the script says, a constant rate, and when to evaluate. Raises ValueError where the script refuses."""
    train, heldout = files
    variables = {"METHOD": method, "MODEL": model, "DATA": train, "EVAL_DATA": heldout, "RUN_DIR": run_dir}
    more = ON_CPU if conditions.is_toy else {"GPUS": str(conditions.gpus)}
    every = eval_steps(method, conditions)
    return script_flags(tuple(sorted((variables | more | {"EPISODES": str(PASSES)}).items()))) | {
        # A schedule would depend on the number of steps, which is not known before.
        "actor.lr_scheduler": "constant",
        "eval.steps": every,
        "eval.n_samples_per_prompt": conditions.answers,
        "ckpt.save_steps": every + 1,
        "ckpt.max_num": 1,
        "ckpt.best_metric_key": "none",
    }


@lru_cache(maxsize=256)
def script_flags(variables: tuple[tuple[str, str], ...]) -> Flags:
    """Of reproduce.sh with these variables alone. Raises ValueError where it refuses."""
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"DRY_RUN": "1"}
    script = ["bash", str(SCRIPTS / "reproduce.sh")]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=env | dict(variables), cwd=ROOT)
    if done.returncode:
        raise ValueError(f"{script[1]} refuses: {done.stderr.strip()}")
    words = shlex.split(done.stdout.splitlines()[-1])
    flags: dict[str, Any] = {}
    for word in words[words.index("train") + 1 :]:
        if word.startswith("--"):
            name = word.removeprefix("--")
            flags[name] = True
        else:
            flags[name] = word
    return flags


def eval_steps(method: str, conditions: Conditions) -> int:
    """Steps between two evaluations: all methods are measured at about the same seconds."""
    seconds = (conditions.step_seconds or {}).get(method, 1.0)
    return max(1, round(conditions.budget / seconds / conditions.kind.measurements))


# -- prompts ----------------------------------------------------------------------------------------------------------


def data_of(given: Path | None, folder: Path, *, is_kept: bool) -> Path:
    """Raises ValueError for a file that is not there; without one, prepare-data will write it."""
    if given is not None and not is_kept and not given.is_file():
        raise ValueError(f"--data {given}: there is no such file. Leave it out to prepare the recipe's data")
    return (given or folder / "data" / "train.parquet").absolute()


def prepare(conditions: Conditions) -> None:
    """The recipe's data where there is none: measure pass rates, keep the hard band. Raises ValueError, also where
    there are fewer GPUs than the runs will need."""
    if conditions.gpus and not conditions.is_toy and (usable := usable_gpus()) < conditions.gpus:
        raise ValueError(
            f"--gpus {conditions.gpus}: {usable} can be used here. --model math-toy rehearses it on a CPU"
        )
    if conditions.weights is None or conditions.data is None or Path(conditions.data).is_file():
        return
    folder = Path(conditions.data).parent
    variables = {"MODEL": conditions.weights, "OUT": str(folder), "ENGINES": str(conditions.gpus)}
    command = ["bash", str(SCRIPTS / "prepare_data.sh"), "--limit", str(LIMIT)]
    if subprocess.run(command, env=os.environ | variables | {"N": str(DRAWS)}, check=False, cwd=ROOT).returncode:
        raise ValueError("the data could not be prepared: see above. The same call goes on, or name a file by --data")


def split(source: Path, folder: Path, seed: int) -> tuple[str, str]:
    """(training prompts, HELDOUT others) of a prepared file, by the seed. Raises ValueError for too few."""
    import numpy as np
    import pyarrow.parquet as parquet

    table = parquet.read_table(source)
    if table.num_rows <= HELDOUT:
        raise ValueError(f"--data {source}: it has {table.num_rows} prompts, and {HELDOUT} are held out. Prepare more")
    order = np.random.default_rng(seed).permutation(table.num_rows)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"train": order[HELDOUT:], "heldout": order[:HELDOUT]}
    for name, rows in files.items():
        parquet.write_table(table.take(rows), folder / f"{name}.parquet")
    return str(folder / "train.parquet"), str(folder / "heldout.parquet")


# -- how large it is --------------------------------------------------------------------------------------------------


def gpus_of(machine: str) -> int:
    """`machine`: --machine of `plan`. Raises ValueError or OSError for a file of no machine."""
    return ENGINES if machine in STEP_MODELS else read_machine(Path(machine))[1]


def planned(machine: str, data: Path, methods: Sequence[str], gpus: int) -> list[dict[str, Any]]:
    """Steps of the methods as `openrlhf-ada plan` has them, on so many GPUs of this kind: training by the token takes
    the longer, the fewer they are."""
    source = [str(data)] if data.is_file() else ["--beta", HARD]
    with tempfile.NamedTemporaryFile(suffix=".json") as out, contextlib.redirect_stdout(io.StringIO()):
        argv = [*source, "--machine", machine, "--methods", ",".join(methods), "--max_tokens", "2048"]
        plan.main([*argv, "--engines", str(gpus), "--json", out.name])
        rows = json.loads(Path(out.name).read_text(encoding="utf-8"))
    share = gpus_of(machine) / gpus
    return [row | {"seconds": row["sampling_s"] + share * row["training_s"] + row["fixed_s"]} for row in rows]


def size(conditions: Conditions, runs: int) -> tuple[float, str]:
    """GPU-hours that so many runs take by `plan`, and how they come about."""
    kind, answer_s = conditions.kind, conditions.answer_seconds or 0.0
    evaluations = (kind.measurements + 1) * HELDOUT * conditions.answers * answer_s
    # The last evaluation comes after the budget: on average half of the time between two.
    run = conditions.budget * (1 + 0.5 / kind.measurements) + evaluations + START_S
    is_there = conditions.data is None or Path(conditions.data).is_file()
    data = 0.0 if is_there else LIMIT * DRAWS * answer_s
    gpus = max(conditions.gpus or 0, 1)
    hours = gpus * (runs * run + data) / 3600
    each = f"{conditions.budget / 3600:.2g} h on {gpus} GPUs, {run / 3600:.2g} h with evaluations and start"
    parts = [
        f"{runs} runs of {each}",
        *([f"{data / 3600:.2g} h to prepare data"] if data else []),
    ]
    steps = ", ".join(f"{name} {conditions.budget / s:.0f}" for name, s in (conditions.step_seconds or {}).items())
    return (
        hours,
        f"{', and '.join(parts)}: about {hours:,.0f} GPU-hours.{f' Steps of a run: {steps}' if steps else ''}",
    )


def step_seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {row["method"]: round(row["seconds"], 2) for row in rows}


def answer_seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of the reference's sampling, for one answer on all engines."""
    return rows[0]["sampling_s"] / rows[0]["rollouts"]
