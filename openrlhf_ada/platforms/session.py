"""Start or join Ray, on GPUs or on a CPU, and leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.platforms import cpu
from openrlhf_ada.platforms.resources import Slots

GIB = 1 << 30


def host_environment() -> dict[str, str]:
    """What the host's own ray.init passes to its workers; a value that the user set wins, as there."""
    defaults = {
        "TOKENIZERS_PARALLELISM": "true",
        "NCCL_DEBUG": "WARN",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def quiet_environment() -> dict[str, str]:
    """Warnings and errors only, from the libraries that narrate every step."""
    return {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"), "TQDM_DISABLE": "1"}


@contextmanager
def ray_session(args: SimpleNamespace, slots: Slots, *, verbose: bool) -> Iterator[None]:
    """A Ray that has the slots; raises MissingResourcesError before any actor starts otherwise.

    A running cluster (RAY_ADDRESS, `ray start`, `ray job submit`) is joined and left as it was. Without one, a local
    one is started and ended. On a machine without a GPU the slots are logical and the CPU platform is switched on.
    """
    import ray

    common: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    environment = host_environment() | ({} if verbose else quiet_environment())
    joined = _join_cluster(ray, environment, common)
    if not joined:
        _start_local(ray, args, slots, environment, common)
    try:
        slots.check(ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def _join_cluster(ray: Any, environment: dict[str, str], common: dict[str, Any]) -> bool:
    """Join a running cluster if there is one. It has real GPUs if Ray found any accelerator on its nodes."""
    try:
        ray.init(address="auto", **common)
    except ConnectionError:
        return False
    on_gpu = any(name.startswith("accelerator_type:") for name in ray.cluster_resources())
    ray.shutdown()
    ray.init(address="auto", runtime_env=_runtime_env(environment, on_cpu=not on_gpu), **common)
    return True


def _start_local(
    ray: Any, args: SimpleNamespace, slots: Slots, environment: dict[str, str], common: dict[str, Any]
) -> None:
    import torch

    if torch.cuda.is_available():
        ray.init(address="local", runtime_env=_runtime_env(environment, on_cpu=False), **common)
        return
    # Logical slots: as many as the flags ask for, since all of them share the cores anyway.
    ray.init(
        address="local",
        num_gpus=slots.gpus,
        num_cpus=slots.cpus,
        object_store_memory=GIB,
        include_dashboard=False,
        runtime_env=_runtime_env(environment, on_cpu=True),
        **common,
    )


def _runtime_env(environment: dict[str, str], *, on_cpu: bool) -> dict[str, Any]:
    if not on_cpu:
        return {"env_vars": environment}
    cpu.activate()
    return {"env_vars": environment | cpu.worker_environment(), "worker_process_setup_hook": cpu.SETUP_HOOK}
