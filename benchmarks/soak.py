"""Does anything grow in a long run? Every process of a run of the toy model, over 2,000 steps of Ada-Seq on this CPU.

Read every five seconds: memory that a process has for itself (USS), open files, threads; of the machine, shared
memory; and from the record, seconds per step. A figure is flat if its median over the last tenth of the steps is at
most 5 % or 1 MiB above that over the third tenth: before, caches fill.

    python benchmarks/soak.py     last line: one JSON object; results in benchmarks/results/soak.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
from machine import machine

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "support")]

from conftest import toy_flags, write_toy  # noqa: E402

EPISODE_STEPS = 2
FLAGS = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16, "ckpt.save_steps": 100, "ckpt.max_num": 2}
# Steps stay alike: a policy that learns is sampled more and more.
FLAGS["actor.adam.lr"] = 1e-12
KERNELS = 64
"""Of oneDNN, kept by each process. It keeps 1,024, each for one shape of its matrices: with answers of all lengths
that cache fills for thousands of steps, and would hide what does not end."""
LOOK_S = 5.0
FLAT, FLAT_MIB = 1.05, 1.0
ROLES = {
    "ray::PPOTrainer": "trainer",
    "ray::AdaPolicyActor": "policy",
    "ray::PolicyModelActor": "policy",
    "ray::AdaRolloutActor": "engine actor",
    "ray::RolloutRayActor": "engine actor",
    "EngineCore": "engine core",
    # Where it cannot rename itself.
    "multiprocessing.spawn": "engine core",
    "ray::_QueueActor": "queue",
    "ray::DashboardAgent": "Ray's agent",
    "raylet/raylet": "raylet",
    "gcs_server": "Ray's GCS",
    "watcher.py": "watcher",
    "openrlhf-ada train": "driver",
}

Points = dict[str, list[tuple[int, float]]]
"""Name of a figure -> (step, value), in the order of time."""


def role_of(process: psutil.Process) -> str | None:
    command = " ".join(process.cmdline())
    return next((role for text, role in ROLES.items() if text in command), None)


def rows_of(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def look(root: psutil.Process, step: int, into: Points) -> None:
    """Add what each process has now. Processes may end meanwhile."""
    for process in [root, *root.children(recursive=True)]:
        try:
            role = role_of(process)
            if role is not None:
                into[f"{role}: MiB"].append((step, process.memory_full_info().uss / 2**20))
                into[f"{role}: open files"].append((step, float(process.num_fds())))
                into[f"{role}: threads"].append((step, float(process.num_threads())))
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    into["shared memory: MiB"].append((step, psutil.disk_usage("/dev/shm").used / 2**20))


def measure(steps: int) -> Points:
    found: Points = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        toy = write_toy(ROOT / ".cache")
        words = toy_flags(toy, run, **FLAGS, **{"train.num_episodes": steps // EPISODE_STEPS})
        program = Path(sys.executable).with_name("openrlhf-ada")
        environment = os.environ | {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KERNELS)}
        started = subprocess.Popen([program, "train", *words], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        while started.poll() is None:
            look(psutil.Process(started.pid), max((row["step"] for row in rows_of(run)), default=0), found)
            time.sleep(LOOK_S)
        if started.returncode:
            raise RuntimeError(f"the run ended with status {started.returncode}")
        found["step: seconds"] = [(row["step"], row["ada/step_s"]) for row in rows_of(run) if "ada/step_s" in row]
    return found


def growth(points: list[tuple[int, float]], steps: int) -> dict[str, Any] | None:
    """Medians over the third and the last tenth of the steps; None of a process that was not there in both. After the
    last step the report is written, once."""
    early = [value for step, value in points if 0.2 * steps < step <= 0.3 * steps]
    late = [value for step, value in points if 0.9 * steps < step < steps]
    if not early or not late:
        return None
    return {"early": statistics.median(early), "late": statistics.median(late), "tenths": _tenths(points, steps)}


def _tenths(points: list[tuple[int, float]], steps: int) -> list[float | None]:
    """Medians over each tenth of the steps: does it still grow at the end?"""
    parts = [[v for at, v in points if t * steps < 10 * at <= (t + 1) * steps] for t in range(10)]
    return [round(statistics.median(part), 4) if part else None for part in parts]


def _allowed(name: str, early: float) -> float:
    return max(FLAT * early, early + FLAT_MIB if name.endswith("MiB") else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="fewer are for a look; nothing is saved (2000)")
    steps = parser.parse_args().steps
    points = measure(steps)
    figures = {name: found for name, values in points.items() if (found := growth(values, steps))}
    grown = [name for name, found in figures.items() if found["late"] > _allowed(name, found["early"])]
    result = {"steps": steps, "figures": figures, "grown": grown, "machine": machine()}
    if steps == 2000:
        (Path(__file__).parent / "results" / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"steps": steps, "grown": {name: figures[name] for name in grown}}))


if __name__ == "__main__":
    main()
