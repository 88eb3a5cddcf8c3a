"""What trainings of a model with random weights take on this machine: seconds of a step, of an update of the engines'
weights, memory; and the seconds of an engine, with CUDA graphs and eager. OpenRLHF's own trainer beside ours."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from random_model import QWEN_1_5B, TINY, Shape, build_random_model, write_prompts

from benchmarks.arena.trainings import end_training
from openrlhf_ada.platforms.nvml import GIB, NvmlError, read_driver
from openrlhf_ada.platforms.processes import kill_rest
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.simulation.step_seconds import PROMPT_TOKENS

ROOT = Path(__file__).parents[2]
REWARD = Path(__file__).with_name("coin_reward.py")

ENGINE_FILE = "engine.json"
"""Of `plan --calibrate`."""

GROUP = 4
END_S = 5.0
"""Seconds that what a process has started may live longer than it, before it is killed."""

LIMIT_S = 1500
"""Seconds. A first run also compiles DeepSpeed's optimizer and vLLM's graphs."""

PARTS = {"generation_s": "generation", "training_s": "ppo_train", "update_s": "broadcast"}
"""OpenRLHF's names of the parts of a step."""

PUBLISHED_EST = ("--ada_select", "all", "--ada_baseline", "pool", "--ada_correction", "paper")


class FailedError(RuntimeError):
    """A training or a measurement ended with an error; the text has the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Load:
    """`prompts`: of a step, for each GPU. `answer`: tokens of every answer. `steps`: the first is not counted.
    `device`: as examples/scripts/common.sh has it."""

    shape: Shape
    shown: str
    prompts: int
    answer: int
    steps: int
    device: str


FULL = Load(QWEN_1_5B, "Qwen2.5-1.5B's architecture with random weights", 64, 1024, 4, "gpu")
REHEARSAL = Load(TINY, "a tiny Qwen2 with random weights, on a CPU: its figures say nothing", 4, 8, 3, "cpu")


@dataclass(frozen=True, slots=True)
class Training:
    """`script`: of examples/scripts. `is_host`: OpenRLHF's own trainer with its flags. `is_apart`: half of the GPUs
    are the engines', so weights go by NCCL. `method`: what `plan` calls it. `more`: flags."""

    name: str
    script: str
    is_host: bool = False
    is_apart: bool = False
    method: str = ""
    group: int = GROUP
    more: tuple[str, ...] = ()


BALANCE = Training("balance", "train_ada_seq_balance.sh", method="reinforce-ada-balance")
TRAININGS = (
    Training("OpenRLHF itself, GRPO n = 4", "train_grpo.sh", is_host=True),
    Training("GRPO n = 4", "train_grpo.sh", method="grpo"),
    BALANCE,
    # As published, it trains all 8: twice as many as the others, which tells seconds by the token from fixed ones.
    Training("Ada-Est", "train_ada_est_ema.sh", method="reinforce-ada-est", group=2 * GROUP, more=PUBLISHED_EST),
    Training("OpenRLHF itself, asynchronous", "train_ada_async.sh", is_host=True, is_apart=True),
    Training("asynchronous", "train_ada_async.sh", is_apart=True),
)

ENGINES = {"graphs": False, "eager": True}
"""By name: --vllm.enforce_eager."""


@dataclass(frozen=True, slots=True)
class Bench:
    """`folder`: for runs and their logs. `gpus`: how many there are; on a CPU, one slot."""

    load: Load
    folder: Path
    gpus: int

    @property
    def prompts(self) -> int:
        return self.load.prompts * self.gpus

    def prepare(self) -> None:
        """Build model and prompts, once."""
        build_random_model(self.folder / "model", self.load.shape)
        write_prompts(self.folder / "prompts.jsonl", self.prompts * self.load.steps, PROMPT_TOKENS)

    def flags(self, training: Training) -> list[str]:
        """As its script gives them. Raises FailedError where it refuses."""
        load, run = self.load, self.folder / training.name
        # On a CPU the script has no use for it, and refuses 0.
        used = max(self.gpus - self.gpus % 2, 2) if training.is_apart else self.gpus
        variables = {
            "DRY_RUN": 1, "DEVICE": load.device, "GPUS": used, "MODEL": self.folder / "model", "CHAT": 0,
            "DATA": self.folder / "prompts.jsonl", "REWARD": REWARD, "EVAL_DATA": "", "RUN_DIR": run,
            "STEPS": load.steps, "BATCH": self.prompts, "GROUP": training.group,
            "MAX_LEN": PROMPT_TOKENS + load.answer, "MAX_NEW_TOKENS": load.answer,
        }  # fmt: skip
        script = ["bash", str(ROOT / "examples" / "scripts" / training.script), *training.more]
        env = os.environ | {name: str(value) for name, value in variables.items()}
        done = subprocess.run(script, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
        if done.returncode:
            raise FailedError(f"{training.script} refuses: {done.stderr.strip()}")
        words = shlex.split(done.stdout.splitlines()[-1])
        flags = [*words[words.index("train") + 1 :], "--logger.tensorboard_dir", str(run / "tensorboard")]
        return without_ours(flags) if training.is_host else flags

    def train(self, training: Training) -> dict[str, Any]:
        """Medians over its steps without the first. Raises FailedError."""
        run = self.folder / training.name
        shutil.rmtree(run, ignore_errors=True)
        with PeakMemory() as memory:
            self.run([*self._trainer(training), *self.flags(training)], training.name)
        shutil.rmtree(run / "model", ignore_errors=True)
        found = medians(run / "tensorboard") | {"peak_gib": memory.peak_gib}
        return found if training.is_host or training.is_apart else found | {"trained": trained(run)}

    def calibrate(self, name: str) -> dict[str, Any]:
        """The engine of the run `balance`, as `plan --calibrate` measures it. Raises FailedError."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if not (self.folder / BALANCE.name / "config.json").exists():
            raise FailedError(
                f"it is measured with the flags of the training {BALANCE.name}, which has left no record"
            )
        for file in (self.folder / BALANCE.name).glob("*.json*"):
            shutil.copy(file, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["vllm"]["enforce_eager"] = ENGINES[name]
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self.run([sys.executable, "-m", "openrlhf_ada.cli.main", "plan", "--calibrate", str(folder)], name)
        return json.loads((folder / ENGINE_FILE).read_text(encoding="utf-8"))

    def run(self, command: Sequence[str], name: str) -> None:
        """To its end. Raises FailedError."""
        log = self.folder / f"{name}.log"
        paths = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT)])
        status = run_logged(command, log, os.environ | {"PYTHONPATH": paths})
        if status:
            raise FailedError("\n".join([f"status {status}", *last_lines(log)]))

    def _trainer(self, training: Training) -> list[str]:
        if not training.is_host:
            return [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray"]
        if self.load.device == "gpu":
            return [sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]
        # OpenRLHF does not run on a CPU by itself.
        return [sys.executable, str(ROOT / "tests" / "parity" / "host_train.py")]


def run_logged(command: Sequence[str], log: Path, env: Mapping[str, str]) -> int | str:
    """To its end, or to LIMIT_S, with everything that it has started: its status, 0 for success."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, cwd=ROOT, env=env)
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s"
    finally:
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        end_training(process)
        kill_rest(started, END_S)
        # What is left of its group once it has ended by itself.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def last_lines(log: Path) -> list[str]:
    return [line[:300] for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]]


def without_ours(flags: Sequence[str]) -> list[str]:
    """Without --ada_*, each of which has one value."""
    before = ["", *flags[:-1]]
    return [
        word for last, word in zip(before, flags, strict=True) if not any(w.startswith("--ada_") for w in (last, word))
    ]


# -- reading ----------------------------------------------------------------------------------------------------------


def medians(folder: Path) -> dict[str, Any]:
    """Of what OpenRLHF's logger wrote, its first step left out: a step by the clock, and its parts in seconds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = list(folder.rglob("events.out.*"))
    if not files:
        raise FailedError(f"nothing was logged in {folder}")
    events = EventAccumulator(str(files[0].parent))
    events.Reload()
    names = events.Tags()["scalars"]
    times = [event.wall_time for event in events.Scalars("train/policy_loss")]
    found: dict[str, Any] = {"step_s": statistics.median(b - a for a, b in pairwise(times))}
    for ours, theirs in PARTS.items():
        if (name := f"train/timing/{theirs}") in names:
            found[ours] = statistics.median(event.value for event in events.Scalars(name)[1:])
    return {name: round(value, 4) for name, value in found.items()}


def trained(run: Path) -> list[tuple[float, float]]:
    """(tokens trained, seconds beside sampling) of each step but the first, as `plan` counts them."""
    return [
        (row["ada/kept_tokens"] + row["ada/kept"] * PROMPT_TOKENS, row["ada/step_s"] - row["timing/generation"])
        for row in read_run(run).steps[1:]
    ]


def machine_file(figures: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """What `plan --machine` reads, of the figures by name; empty while some are missing."""
    runs = [figures[t.name]["trained"] for t in TRAININGS if t.method and t.name in figures]
    if "graphs" not in figures or len(runs) < sum(bool(t.method) for t in TRAININGS):
        return {}
    # What it loads says so on standard output, where the report goes.
    with contextlib.redirect_stdout(sys.stderr):
        from openrlhf_ada.rollout.calibration import fit_line

    per_token, fixed = fit_line(*zip(*(step for run in runs for step in run), strict=True))
    return {"engine": figures["graphs"], "engines": gpus, "step": {"per_token": per_token, "fixed": fixed}}


def planned(file: Path, bench: Bench) -> dict[str, float]:
    """Seconds of a step that `plan` computes from this file, by the name of a training. Answers are all of one length,
    and pass rates evenly spread, as they were."""
    from openrlhf_ada.cli import plan

    out = bench.folder / "plan.json"
    methods = {training.method: training.name for training in TRAININGS if training.method}
    argv = ["--machine", str(file), "--methods", ",".join(methods), "--prompts", str(bench.prompts), "--beta", "1,1"]
    most = str(bench.load.answer)
    with contextlib.redirect_stdout(io.StringIO()):
        plan.main([*argv, "--max_tokens", most, "--tokens", str(100 * bench.load.answer), "--json", str(out)])
    return {methods[row["method"]]: row["seconds"] for row in json.loads(out.read_text(encoding="utf-8"))}


# -- memory -----------------------------------------------------------------------------------------------------------


@dataclass
class PeakMemory:
    """Of every GPU while it is entered, in GiB; without GPUs, of this machine's main memory."""

    peak_gib: list[float] = field(default_factory=list[float])
    period_s: float = 0.5
    _over: threading.Event = field(default_factory=threading.Event)
    _watch: threading.Thread | None = None

    def __enter__(self) -> PeakMemory:
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watch is not None:
            self._watch.join()

    def _look(self) -> None:
        while True:
            used = used_gib()
            self.peak_gib = [round(max(pair), 2) for pair in zip(used, self.peak_gib or used, strict=True)]
            if self._over.wait(self.period_s):
                return


def used_gib() -> list[float]:
    try:
        gpus = read_driver().gpus
    except NvmlError:
        gpus = ()
    if gpus:
        return [(gpu.total - gpu.free) / GIB for gpu in gpus]
    return [psutil.virtual_memory().used / GIB]
