"""Faults in real runs of the toy model: each kind of process x {KILL, STOP, TERM} x what the run is doing; and around
the runs: a full disk, a reward server that fails, a clock that jumps, a row that breaks (surroundings.py).

A run passes if it goes on with the rollouts of an undisturbed one; or if it ends within seconds, says how to resume
it, keeps its last checkpoint and a true record, and leaves neither processes nor shared memory. One in eight that
ended is resumed, and must then have the rollouts of the undisturbed one; so is every run that its surroundings ended.

    python tests/chaos/chaos.py --minutes 60      (make chaos) in a seeded order; what has been tried is not repeated
    python tests/chaos/chaos.py --again           begins anew

Results: benchmarks/results/chaos.jsonl, a line for each fault. docs/reliability.md is written from it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("chaos", "e2e", "support")]

from conftest import Toy, forked_python, own_fork_server, read_jsonl, steps_of, toy_flags, write_toy  # noqa: E402
from page import page  # noqa: E402
from processes import has_ended  # noqa: E402
from surroundings import KINDS, Trouble, trouble  # noqa: E402

from openrlhf_ada.cli.run_watch import ENGINE_S  # noqa: E402
from openrlhf_ada.platforms.watcher import SHARED_MEMORY  # noqa: E402
from openrlhf_ada.trainer.checkpoints import last_checkpoint  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "chaos.jsonl"
PAGE = ROOT / "docs" / "reliability.md"

VICTIMS = {
    "driver": (),
    "trainer": ("ray::PPOTrainer",),
    "policy": ("ray::AdaPolicyActor", "ray::PolicyModelActor"),
    "engine": ("ray::AdaRolloutActor", "ray::RolloutRayActor"),
    "engine's core": ("EngineCore", "multiprocessing.spawn"),
    "queue": ("ray::_QueueActor",),
    "Ray's GCS": ("gcs_server",),
    "raylet": ("raylet/raylet",),
}
"""What is in the command line; the driver is the process that was started."""

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)

MOMENTS = {
    "loading": "phase loading engines",
    "sampling": "step 3",
    "training": "doing training the policy",
    "weight update": "doing sending weights",
    "checkpoint": "doing saving a checkpoint",
    "evaluation": "doing evaluating",
    "end": "doing saving the model",
}
"""Event at which the signal is sent, a moment later; those in a step, after the second step."""

STEPS, SILENCE_S, DEAD_AFTER_S, TIMEOUT_S = 8, 2, 8, 20
FLAGS: dict[str, Any] = {
    "ada_mode": "seq",
    "ada_wave": 4,
    "ada_max_samples": 16,
    "train.num_episodes": STEPS // 2,
    "ckpt.save_steps": 2,
    "ckpt.max_num": 2,
    "eval.steps": 2,
    "ada_silence": SILENCE_S,
    "ada_dead_after": DEAD_AFTER_S,
    "ada_timeout": TIMEOUT_S,
}

CONTINUED_S = 180.0
"""A run that goes on ends within this; an engine is loaded again in it."""

STOPPED_S = 30.0
"""From the fault, or from when the limit of time that it ran into is over, to the end of the run."""

LEFT_S = 15.0
RESUMED_ONE_IN = 8

LIMITS_S = {"SIGSTOP": DEAD_AFTER_S + SILENCE_S, "hangs": 2 * TIMEOUT_S, "refuses": TIMEOUT_S}
STOPPED_ENGINE_S = TIMEOUT_S + ENGINE_S
"""Limits that runs run into: a rollout without a score is tried twice, and engines have limits of their own."""

MOMENTS_OF = {
    # Only then is it asked.
    "reward server": ("sampling", "evaluation"),
    "row of the data": ("loading",),
}
"""Other kinds: all of MOMENTS."""


@dataclass(frozen=True)
class Fault:
    """`victim`: of VICTIMS or KINDS. `sent`: a signal, or what else befalls it."""

    victim: str
    sent: str
    moment: str

    @property
    def is_unwatched(self) -> bool:
        """Ray's own processes are watched for their end, which SIGTERM is not to the GCS; a process that Ray still
        starts may wait for its place for hours."""
        if self.victim in ("Ray's GCS", "raylet"):
            return self.sent == "SIGSTOP" or (self.sent == "SIGTERM" and self.victim != "raylet")
        return self.sent == "SIGSTOP" and self.moment == "loading" and self.victim != "driver"

    @property
    def is_around(self) -> bool:
        return self.victim in KINDS


@dataclass
class Outcome:
    """`end`: continued, stopped, or "late" for a fault whose run was over before; `failures`: empty if it passed."""

    fault: Fault
    end: str
    seconds: float
    resumed: bool
    failures: list[str]
    said: str = ""


def faults(seed: int = 0) -> list[Fault]:
    every = [Fault(v, s.name, m) for v in VICTIMS for s in SIGNALS for m in MOMENTS]
    every = [fault for fault in every if not fault.is_unwatched]
    every += [Fault(k, what, m) for k in KINDS for what in KINDS[k] for m in MOMENTS_OF.get(k, MOMENTS)]
    random.Random(seed).shuffle(every)
    return every


class Run:
    """One run, read line by line."""

    def __init__(self, words: Sequence[str]) -> None:
        # A forked one would have a stand-in, which would get its signals.
        command, environment = [sys.executable, str(HERE / "driver.py"), "train", *words], forked_python()[1]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)
        self.said = ""

    def read_until(self, reached: Callable[[str], bool]) -> bool:
        """False where the run ended before."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if line.startswith("event: ") and reached(line[len("event: ") :]):
                return True
        return False

    def processes(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True) + _forked()
        except psutil.NoSuchProcess:
            return _forked()

    def find(self, victim: str) -> psutil.Process | None:
        """Waits for it a while: at the beginning most are not there yet."""
        if not VICTIMS[victim]:
            return psutil.Process(self.process.pid)
        for _ in range(300):
            for process in self.processes():
                try:
                    line = " ".join(process.cmdline())
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
                if any(part in line for part in VICTIMS[victim]):
                    return process
            time.sleep(0.1)
        return None


def _forked() -> list[psutil.Process]:
    """What the fork server has forked, for all runs of this program."""
    return psutil.Process().children(recursive=True)


def reached(moment: str) -> Callable[[str], bool]:
    steps = [0]

    def call(event: str) -> bool:
        if event.startswith("step "):
            steps[0] = int(event.split()[1])
        needs = 0 if moment in ("loading", "end") else 2 if moment not in ("checkpoint", "evaluation") else 3
        return steps[0] >= needs and event.startswith(MOMENTS[moment])

    return call


def inject(fault: Fault, words: Sequence[str], run_dir: Path, reference: Path, around: Trouble | None) -> Outcome:
    """Start a run, let the fault befall it, and look at what becomes of it. Not resumed yet."""
    before, shared = set(_forked()), set(SHARED_MEMORY.iterdir())
    run = Run(words)
    if not run.read_until(reached(fault.moment)):
        return Outcome(fault, "late", 0.0, False, [f"the run ended with status {run.process.wait()} before"], run.said)
    time.sleep(random.Random(str(fault)).uniform(0.0, 0.2))
    victim = run.find(fault.victim) if around is None else None
    started = [process for process in run.processes() if process not in before]
    began, befell = time.monotonic(), True
    if around is None:
        befell = victim is not None and strike(fault, victim)
    else:
        around.begin()
    try:
        run.said += run.process.communicate(timeout=CONTINUED_S)[1]
    except subprocess.TimeoutExpired:
        run.process.kill()
        run.said += run.process.communicate()[1]
        run.said += "THE RUN DID NOT END\n"
    seconds = time.monotonic() - began
    if around is not None:
        around.end()
    if not befell:
        return Outcome(fault, "late", seconds, False, [], "")
    end = "continued" if run.process.returncode == 0 else "stopped"
    failures = _failures(fault, run, seconds, run_dir, reference)
    failures += _left([*started, *(process for process in _forked() if process not in before)], shared)
    said = "".join(line + "\n" for line in run.said.splitlines() if not line.startswith("event: "))
    return Outcome(fault, end, seconds, False, failures, said[-3000:] if failures else "")


def strike(fault: Fault, victim: psutil.Process) -> bool:
    """Send the signal; False where the process has just ended."""
    try:
        victim.send_signal(getattr(signal, fault.sent))
        if fault.victim == "driver" and fault.sent == "SIGSTOP":
            time.sleep(5)
            victim.resume()
    except psutil.NoSuchProcess:
        return False
    return True


def resume(outcome: Outcome, words: Sequence[str], run_dir: Path, reference: Path) -> None:
    """If it ended and has a checkpoint."""
    if outcome.end == "stopped" and last_checkpoint(run_dir / "ckpt") is not None:
        outcome.resumed = True
        outcome.failures += _resume(words, run_dir, reference)


def _failures(fault: Fault, run: Run, seconds: float, run_dir: Path, reference: Path) -> list[str]:
    status, found = run.process.returncode, []
    if "THE RUN DID NOT END" in run.said:
        found.append(f"it did not end within {CONTINUED_S:g} s")
    elif status != 0:
        is_held_engine = fault.sent == "SIGSTOP" and fault.victim in ("engine", "engine's core")
        limit = STOPPED_S + (STOPPED_ENGINE_S if is_held_engine else LIMITS_S.get(fault.sent, 0))
        if seconds > limit:
            found.append(f"it took {seconds:.0f} s to end, and {limit:g} are allowed")
        if fault.victim == "driver":
            expected = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 128 + signal.SIGTERM}.get(fault.sent, 0)
            if status != expected:
                found.append(f"status {status} instead of {expected}")
        elif not re.search(r"Resume it from its last checkpoint|There is no checkpoint to resume from", run.said):
            found.append("it does not say how to resume")
        if "Traceback" in run.said:
            found.append("it ends in a traceback")
    # A row that breaks is replaced by another one.
    return found if fault.victim == "row of the data" else found + _differences(run_dir, reference, whole=status == 0)


def _differences(run_dir: Path, reference: Path, *, whole: bool) -> list[str]:
    """Of the recorded steps; all of them, if it is a `whole` run."""
    if not (run_dir / "metrics.jsonl").exists():
        return ["there is no record"] if whole else []
    steps = {row["step"] for row in steps_of(run_dir)}
    if whole and len(steps) != STEPS:
        return [f"{len(steps)} of {STEPS} steps are recorded"]
    same = rollouts(run_dir, steps) == rollouts(reference, steps)
    return [] if same else ["its rollouts differ from those of the undisturbed run"]


def rollouts(run_dir: Path, steps: Iterable[int]) -> list[tuple[Any, ...]]:
    wanted = set(steps)
    rows = [
        json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines(keepends=True) if "\n" in line
    ]
    names = ("step", "key", "index", "reward", "tokens", "kept")
    return sorted(tuple(row[name] for name in names) for row in rows if row["step"] in wanted)


def _left(started: Sequence[psutil.Process], shared: set[Path]) -> list[str]:
    """Processes and shared memory that the run has left; they are ended and removed."""
    _, alive = psutil.wait_procs(list(set(started)), timeout=LEFT_S)
    alive = [process for process in alive if not has_ended(process.pid)]
    found = [f"left running: {' '.join(process.cmdline())[:60]}" for process in alive]
    for process in alive:
        process.kill()
    blocks = [path for path in set(SHARED_MEMORY.iterdir()) - shared if not path.name.startswith("__KMP")]
    found += [f"left in shared memory: {path.name}" for path in blocks]
    for path in blocks:
        path.unlink(missing_ok=True)
    return found


def _resume(words: Sequence[str], run_dir: Path, reference: Path) -> list[str]:
    run = Run([*words, "--ckpt.load_enable"])
    run.read_until(lambda event: False)
    status = run.process.wait()
    if status:
        return [f"the resumed run ended with status {status}: {run.said[-500:]}"]
    return [f"resumed: {difference}" for difference in _differences(run_dir, reference, whole=True)]


def undisturbed(toy: Toy, folder: Path) -> Path:
    run_dir = folder / "undisturbed"
    run = Run(words_of(toy, run_dir))
    run.read_until(lambda event: False)
    if run.process.wait():
        raise RuntimeError(run.said)
    return run_dir


def words_of(toy: Toy, run_dir: Path, flags: Mapping[str, Any] | None = None) -> list[str]:
    return toy_flags(toy, run_dir, **FLAGS | {"eval.dataset": toy.heldout} | (flags or {}))


def attempt(fault: Fault, again: bool, folder: Path, toy: Toy, reference: Path, clock: Path) -> Outcome:
    """`again`: resume it if it ends."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if not fault.is_around:
        words = words_of(toy, folder / "run")
        outcome = inject(fault, words, folder / "run", reference, None)
        if again:
            resume(outcome, words, folder / "run", reference)
        return outcome
    with trouble(fault.victim, fault.sent, folder, toy, clock) as around:
        words = words_of(toy, around.run_dir, around.flags)
        outcome = inject(fault, words, around.run_dir, reference, around)
        resume(outcome, words, around.run_dir, reference)
        return outcome


@contextmanager
def movable_clock(folder: Path) -> Iterator[Path]:
    """The file that shifts the clock of all runs within."""
    file = folder / "clock"
    os.environ["CHAOS_CLOCK"] = str(file)
    with own_fork_server(HERE / "clock"):
        yield file


def known() -> dict[Fault, dict[str, Any]]:
    rows = read_jsonl(RESULT) if RESULT.exists() else []
    return {Fault(**row["fault"]): row for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no fault after this (120)")
    parser.add_argument("--again", action="store_true", help="forget what has been tried")
    parser.add_argument("--page", action="store_true", help="write docs/reliability.md anew, and try nothing")
    parser.add_argument(
        "--only", default="", help="faults whose name has this in it, such as 'policy SIGSTOP training'"
    )
    args = parser.parse_args()
    if args.again:
        RESULT.unlink(missing_ok=True)
    end = time.monotonic() + 60.0 * args.minutes
    done = known()
    if not args.page:
        with tempfile.TemporaryDirectory(prefix="ada-chaos-") as name, movable_clock(Path(name)) as clock:
            folder, toy = Path(name), write_toy(ROOT / ".cache")
            reference = undisturbed(toy, folder)
            for number, fault in enumerate(faults()):
                name = " ".join(asdict(fault).values())
                if (fault in done and not args.only) or args.only not in name or time.monotonic() > end:
                    continue
                outcome = attempt(fault, number % RESUMED_ONE_IN == 0, folder / "runs", toy, reference, clock)
                print(f"{name}: {outcome.end}, {outcome.seconds:.0f} s", *outcome.failures, sep="\n  ", flush=True)
                done[fault] = asdict(outcome)
                RESULT.write_text("".join(json.dumps(row) + "\n" for row in done.values()))
    PAGE.write_text(page(list(done.values()), list(VICTIMS), KINDS, list(MOMENTS), STOPPED_S))
    passed = sum(not row["failures"] for row in done.values())
    print(f"{passed} passed, {len(done) - passed} failed, {len(faults()) - len(done)} not tried")
    return int(passed < len(done))


if __name__ == "__main__":
    sys.exit(main())
