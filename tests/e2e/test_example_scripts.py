"""Scripts in examples/scripts, two steps on a CPU with the toy model: `DEVICE=cpu STEPS=2 <script>`.

Mode `off`, and Slurm with an agent. train_ada_hard_prompts.sh is in test_prepare_train_evaluate.py, train_multinode.sh
in test_two_nodes.py. All scripts pass the real parser in tests/unit/test_example_scripts.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from clusters import free_port
from conftest import Toy, forked_job_python, forked_program, read_jsonl
from example_runs import SCRIPTS, check_example, run_example

pytestmark = pytest.mark.e2e


@pytest.mark.usefixtures("own_ray")
def test_uniform_sampling_on_a_cpu(toy: Toy, tmp_path: Path) -> None:
    run_example("train_grpo.sh", toy, tmp_path / "run")
    check_example(tmp_path / "run", "off")


def check_second_tries(run: Path) -> None:
    """A right first answer is worth 1, a right second one 1/2; the score is 1 for both."""
    worth = {(row["metric"], row["reward"]) for row in read_jsonl(run / "samples.jsonl")}
    assert worth == {(0.0, 0.0), (1.0, 0.5), (1.0, 1.0)}


SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


@pytest.mark.long
def test_agent_on_slurm(toy: Toy, tmp_path: Path) -> None:
    """Slurm's two programs are stand-ins, all else is real: Ray on two nodes, with a token, and the training."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/usr/bin/env bash\nprintf '127.0.0.1\\nlocalhost\\n'\n")):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    forked_program(stubs, forked_job_python(tmp_path))
    port = free_port()
    told = run_example(
        "train_slurm.sbatch", toy, tmp_path / "run", PATH=f"{stubs}{os.pathsep}{os.environ['PATH']}",
        SCRIPTS=str(SCRIPTS), SLURM_JOB_NUM_NODES="2",
        SLURM_JOB_NODELIST="two", SCRIPT="train_ada_agent.sh", SLURM_JOB_ID=f"test-{port}", PORT=str(port), GPUS="1",
    )  # fmt: skip
    shutil.rmtree(f"/tmp/ray-test-{port}")
    check_example(tmp_path / "run", "seq")
    check_second_tries(tmp_path / "run")
    assert "waiting for nodes to join" in told or "step 2/2" in told
