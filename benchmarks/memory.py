"""Does memory grow with steps? Every process of one run of the toy model, over 300 steps of Ada-Seq on this CPU.

Memory is what a process has for itself (USS), read every two seconds; the figure is the slope over steps by least
squares, in MiB per 100 steps, warm-up left out.

    python benchmarks/memory.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil
from machine import machine

ROOT = Path(__file__).parents[1]
EPISODE_STEPS = 16
ROLES = {
    "ray::PPOTrainer": "trainer",
    "ray::PolicyModelActor": "policy",
    "ray::RolloutRayActor": "engine actor",
    "EngineCore": "engine core",
    # Where it cannot rename itself.
    "multiprocessing.spawn": "engine core",
    "raylet/raylet": "raylet",
    "gcs_server": "gcs",
    "openrlhf-ada train": "driver",
}


def role_of(process: psutil.Process) -> str | None:
    command = " ".join(process.cmdline())
    return next((role for text, role in ROLES.items() if text in command), None)


def steps_done(run: Path) -> int:
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return max((row["step"] for row in rows), default=0)


def sample(root: psutil.Process, step: int, into: dict[str, list[tuple[int, float]]]) -> None:
    """Add what each process has now, in MiB. Processes may end meanwhile."""
    for process in [root, *root.children(recursive=True)]:
        try:
            role = role_of(process)
            if role is not None:
                into[role].append((step, process.memory_full_info().uss / 2**20))
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def measure(episodes: int) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        variables = {
            "DEVICE": "cpu",
            "STEPS": str(EPISODE_STEPS),
            "RUN_DIR": str(run),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        command = [str(ROOT / "examples/scripts/train_ada_seq_balance.sh"), "--train.num_episodes", str(episodes)]
        started = subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, stderr=subprocess.DEVNULL)
        while started.poll() is None:
            sample(psutil.Process(started.pid), steps_done(run), found)
            time.sleep(2)
        if started.returncode:
            raise RuntimeError(f"the run ended with status {started.returncode}")
    return found


def slope(points: list[tuple[int, float]], warm_up: int, end: int) -> float | None:
    """MiB per 100 steps. After the last one the report is written, once."""
    late = np.array([point for point in points if warm_up < point[0] < end])
    return None if len(late) < 10 else float(np.polyfit(late[:, 0], late[:, 1], 1)[0] * 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="96 steps instead of 304")
    quick = parser.parse_args().quick
    episodes, warm_up = (6, 32) if quick else (19, 96)
    points = measure(episodes)
    steps = episodes * EPISODE_STEPS
    figures = {role: slope(values, warm_up, steps) for role, values in points.items()}
    result = {
        "steps": steps,
        "warm_up_steps": warm_up,
        "mib_per_100_steps": figures,
        "mib_at_end": {role: [mib for step, mib in values if step < steps][-1] for role, values in points.items()},
        "machine": machine(),
    }
    name = "memory_quick.json" if quick else "memory.json"
    (Path(__file__).parent / "results" / name).write_text(json.dumps(result | {"points": points}) + "\n")
    print(json.dumps({key: result[key] for key in ("steps", "mib_per_100_steps", "mib_at_end")}))


if __name__ == "__main__":
    main()
