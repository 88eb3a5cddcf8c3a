"""With --ada_mode off a run is OpenRLHF's own, to the bit: same samples, metrics and trained weights, seed by seed.

Both sides run the real stack. Users may rely on: adding this package and no flag changes nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, ROOT, Toy, forked_python, own_fork_server, read_jsonl, toy_flags

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

PARITY = ROOT / "tests" / "parity"


@pytest.fixture(autouse=True)
def comparable() -> Iterator[None]:
    with own_fork_server(PARITY, ROOT / "tests" / "support"):
        yield


def run(module_or_file: list[str], flags: list[str], log: Path) -> None:
    program, environment = forked_python()
    done = subprocess.run(
        [program, *module_or_file, *flags],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False,
        env=environment | {"SERIAL_AGENT_LOG": str(log)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Everything OpenRLHF logged to TensorBoard, without timings."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next(folder.rglob("events.out.*")).parent))
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if "timing/" not in name]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(str(folder / "model.safetensors"))


def test_off_equals_host_to_the_bit(toy: Toy, tmp_path: Path) -> None:
    sides = {"host": [str(PARITY / "host_train.py")], "ours": ["-m", "openrlhf_ada.cli.train_ppo_ray"]}
    for side, entry in sides.items():
        folder = tmp_path / side
        flags = toy_flags(
            toy, folder, reward__remote_url=None, train__agent_func_path=PARITY / "serial_agent.py",
            logger__tensorboard_dir=folder / "tensorboard", data__max_samples=16, rollout__batch_size=8,
            train__batch_size=32, algo__advantage__estimator="group_norm",
        )  # fmt: skip
        run(entry, flags, tmp_path / f"{side}.log")
    samples = {side: sorted((tmp_path / f"{side}.log").read_text().splitlines()) for side in sides}
    assert len(samples["host"]) == 2 * 8 * 4
    assert samples["ours"] == samples["host"]
    metrics = {side: scalars(tmp_path / side / "tensorboard") for side in sides}
    assert {name: metrics["ours"][name] for name in metrics["host"]} == metrics["host"]
    assert all(name.startswith("train/ada/") for name in metrics["ours"].keys() - metrics["host"]), "what it cost"
    assert {"train/policy_loss", "train/return", "train/actor_grad_norm"} <= set(metrics["host"])
    host, ours = (weights(tmp_path / side / "model") for side in sides)
    assert host.keys() == ours.keys()
    assert all(bool((host[name] == ours[name]).all()) for name in host)
    recorded = [row["policy_loss"] for row in read_jsonl(tmp_path / "ours" / "metrics.jsonl")]
    assert recorded == pytest.approx([value for _, value in metrics["ours"]["train/policy_loss"]], rel=1e-6)
