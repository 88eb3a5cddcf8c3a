"""Processes of a run are forked from one server, and without it they compute and end in the same way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from conftest import Toy, read_jsonl, toy_flags, train
from interrupted_runs import Interruption, interrupt
from shared_start import LOG, running

pytestmark = pytest.mark.e2e


def test_forked_run_has_the_rollouts_of_a_plain_one(toy: Toy, tmp_path: Path) -> None:
    log = Path(running()).with_name(LOG)
    start = log.stat().st_size
    flags = {"ada_mode": "seq", "data__max_samples": 48}
    train(toy_flags(toy, tmp_path / "forked", **flags))
    lines = log.read_text()[start:].splitlines()
    forked = [line for line in lines if " forked " in line]
    plain = [line for line in lines if " plain" in line]
    # Trainer, policy, engine and the process that creates workers ahead; the engine's core; the driver.
    assert sum("default_worker.py" in line for line in forked) >= 3, lines
    assert sum("spawn_main" in line for line in forked) == 1, lines
    assert sum("train_ppo_ray" in line for line in forked) == 1, lines
    assert all("resource_tracker" in line for line in plain), lines

    names: list[str] = []
    interrupt(
        toy_flags(toy, tmp_path / "plain", **flags),
        "step 2/3",
        Interruption(signal.SIGTERM, 143, forked=False),
        lambda processes: names.extend(process.cmdline()[0] for process in processes if process.cmdline()),
    )
    actors = {name.removeprefix("ray::").partition(".")[0] for name in names if name.startswith("ray::")}
    # While a method runs, Ray's title has the base class. One Ray of forty has none: see platforms/processes.py.
    assert not actors or (actors & {"AdaPolicyActor", "PolicyModelActor"} and "IDLE" not in actors), actors
    assert len(log.read_text()[start:].splitlines()) == len(lines)
    forked, plain = (
        [sample for sample in read_jsonl(tmp_path / side / "samples.jsonl") if sample["step"] <= 2]
        for side in ("forked", "plain")
    )
    assert forked == plain
