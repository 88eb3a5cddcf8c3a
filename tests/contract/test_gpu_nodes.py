"""GPUs that torch cannot use, and a head without any: Ray is real, NVIDIA's library is ours.

Ray counts GPUs by that library alone, so the nodes report eight H100 each, and torch there is what is installed here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import Cluster, cluster
from nvml import build_library, driver, gpu

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rehearsal,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
]

SCRIPT = """
import json, sys
import ray
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.platforms import without_gpu, gpu, session
from openrlhf_ada.platforms.resources import MissingResourcesError

assume_usable, *argv = sys.argv[1:]
if assume_usable == "yes":
    # What each node would find with torch's build for CUDA.
    gpu.trouble = lambda: None
session.check_gpu_limits = lambda args: None
args = parse(argv, check=lambda flags: None)
try:
    with session.ray_session(args, verbose=False):
        told = {
            "resources": ray.cluster_resources(),
            "runtime_env": dict(ray.get_runtime_context().runtime_env),
            "on_cpu": without_gpu._activated,
        }
except MissingResourcesError as error:
    told = {"error": str(error)}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def head_and_gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("nvml")
    build_library(folder, driver(*[gpu()] * 8))
    with cluster(gpus=0) as started:
        started.add_node_that_counts_its_gpus(cpus=8, LD_LIBRARY_PATH=str(folder))
        yield started


def driver_on_head(nodes: Cluster, usable: bool, *flags: str) -> dict[str, Any]:
    """What a run on the head finds. `usable`: torch on the nodes uses their GPUs."""
    argv = [
        "--actor.model_name_or_path", "m", "--data.prompt_dataset", "d", "--reward.remote_url", "math",
        "--actor.num_gpus_per_node", "4", "--vllm.num_engines", "4", "--algo.kl.init_coef", "0",
        "--algo.advantage.estimator", "dr_grpo", "--rollout.n_samples_per_prompt", "4",
        "--ada_cluster_wait", "120", *flags,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "yes" if usable else "no", *argv],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": nodes.address, "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"stderr": done.stderr}


def test_a_driver_on_a_head_without_gpu_uses_the_gpus_of_the_nodes(head_and_gpu_node: Cluster) -> None:
    """This machine has no GPU, and its torch sees none: that says nothing of the run."""
    found = driver_on_head(head_and_gpu_node, True)
    assert found["resources"]["GPU"] == 8 and found["resources"]["accelerator_type:H100"] == 1
    assert not found["on_cpu"]
    assert "worker_process_setup_hook" not in found["runtime_env"]
    assert found["runtime_env"]["env_vars"]["NCCL_DEBUG"] == "WARN"


def test_a_node_whose_torch_cannot_use_its_gpus_is_named(head_and_gpu_node: Cluster) -> None:
    found = driver_on_head(head_and_gpu_node, False)
    assert found["error"].startswith(
        f"on 127.0.0.2: this machine has 8 NVIDIA GPUs (NVIDIA H100 80GB HBM3), and torch {torch.__version__} is a "
        f"build for CPUs. Install what GPUs need"
    )


def test_flags_for_a_cpu_on_such_nodes_use_their_cpus(head_and_gpu_node: Cluster) -> None:
    found = driver_on_head(head_and_gpu_node, False, "--vllm.sync_backend", "gloo", "--ds.attn_implementation", "sdpa")
    assert found["on_cpu"]
    assert found["runtime_env"]["worker_process_setup_hook"] == "openrlhf_ada.platforms.without_gpu.activate"
    assert "uses the CPU" in found["stderr"]


def test_the_library_is_read_through_rays_copy_of_its_bindings(tmp_path: Path) -> None:
    """Compiled, the functions are called as C calls them: sizes and orders of their arguments are right."""
    eight = driver(*(gpu(free=12, index=index) for index in range(8)), cuda=(13, 1))
    build_library(tmp_path, eight)
    script = "from openrlhf_ada.platforms.nvml import *; print(read_driver())"
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(eight)


def test_a_run_on_a_machine_with_unusable_gpus_ends_before_ray_starts(
    tmp_path: Path, argv_with: Callable[[dict[str, str | None]], list[str]]
) -> None:
    """Status 2, one line, and what to do."""
    build_library(tmp_path, driver(gpu()))
    argv = argv_with({"--algo.advantage.estimator": "dr_grpo"})
    done = subprocess.run(
        [sys.executable, "-m", "openrlhf_ada.cli.main", "train", *argv],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "RAY_ADDRESS": ""},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "openrlhf-ada train: error: this machine has 1 NVIDIA GPU (NVIDIA H100 80GB HBM3), and torch"
    )
    assert last.endswith("To use the CPU all the same, hide the GPUs: CUDA_VISIBLE_DEVICES= openrlhf-ada ...")
