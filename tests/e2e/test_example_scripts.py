"""Scripts in examples/scripts, two steps on a CPU with the toy model: `DEVICE=cpu STEPS=2 <script>`.

One of each mode, and those that do what no other run does. All scripts pass the real parser in
tests/unit/test_example_scripts.py; what their flags do is in test_modes.py and its neighbours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clusters import free_port
from conftest import LIMIT_S, ROOT, Toy, read_jsonl, steps_of

pytestmark = pytest.mark.e2e

SCRIPTS = ROOT / "examples" / "scripts"
BATCH, GROUP, STEPS = 16, 4, 2

MODES = {"train_grpo.sh": "off", "train_ada_agent.sh": "seq", "train_ada_hard_prompts.sh": "est"}
"""The last one prepares its data first. train_multinode.sh is in test_two_nodes.py, train_slurm.sbatch below."""


def run_script(script: str, toy: Toy, run: Path, *arguments: str, **environment: str) -> str:
    """Its output; fails with it where the script does."""
    known = {
        "DEVICE": "cpu",
        "STEPS": str(STEPS),
        "EPISODES": "1",
        "MODEL": str(toy.model),
        "DATA": str(toy.train),
        "EVAL_DATA": str(toy.heldout),
        "RUN_DIR": str(run),
    }
    programs = Path(sys.executable).parent
    path = os.pathsep.join([environment.pop("PATH", str(programs)), str(programs), os.environ["PATH"]])
    done = subprocess.run(
        [str(SCRIPTS / script), *arguments],
        cwd=run.parent,
        env=os.environ | known | environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def check_run(run: Path, mode: str) -> None:
    steps = steps_of(run)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    for row in steps:
        assert np.isfinite(row["policy_loss"])
        assert row["ada/kept"] == BATCH * GROUP
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        if mode == "off":
            assert row["ada/drawn"] == BATCH * GROUP
        if mode == "est":
            assert row["ada/drawn"] == BATCH * 8, "the budget, exactly"
    evaluations = [row for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in evaluations] == [0, STEPS]
    assert (run / "report.html").exists() and (run / "summary.json").exists()
    assert any((run / "model").iterdir())


@pytest.mark.parametrize("script", MODES)
def test_two_steps_on_a_cpu(script: str, toy: Toy, tmp_path: Path) -> None:
    raw = {"RAW": str(toy.train), "N": "16"} if script == "train_ada_hard_prompts.sh" else {}
    run_script(script, toy, tmp_path / "run", **raw)
    check_run(tmp_path / "run", MODES[script])
    if script == "train_ada_agent.sh":
        check_second_tries(tmp_path / "run")


def check_second_tries(run: Path) -> None:
    """A right first answer is worth 1, a right second one 1/2; the score is 1 for both."""
    worth = {(row["metric"], row["reward"]) for row in read_jsonl(run / "samples.jsonl")}
    assert worth == {(0.0, 0.0), (1.0, 0.5), (1.0, 1.0)}


SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def test_slurm(toy: Toy, tmp_path: Path) -> None:
    """Slurm's two programs are stand-ins, all else is real: Ray on two nodes, with a token, and the training."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/usr/bin/env bash\nprintf '127.0.0.1\\nlocalhost\\n'\n")):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    port = free_port()
    told = run_script(
        "train_slurm.sbatch", toy, tmp_path / "run", PATH=str(stubs), SCRIPTS=str(SCRIPTS), SLURM_JOB_NUM_NODES="2",
        SLURM_JOB_NODELIST="two", SLURM_JOB_ID=f"test-{port}", PORT=str(port), GPUS="1",
    )  # fmt: skip
    shutil.rmtree(f"/tmp/ray-test-{port}")
    check_run(tmp_path / "run", "seq")
    assert "waiting for nodes to join" in told or "step 2/2" in told
