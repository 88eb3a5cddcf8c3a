"""Ray's own record of the cluster that this process belongs to. Ray has no public names for these.

Contract: test_gpu_nodes.test_the_library_is_read_through_rays_copy_of_its_bindings
Contract: test_ray_facts.test_a_private_ray_serves_its_own_processes_alone
Contract: test_ray_facts.test_rays_processes_are_in_sessions_of_their_own
Contract: test_ray_facts.test_running_cluster_is_the_named_one
Contract: test_ray_facts.test_runtime_environment_of_a_job_is_in_its_variable
Contract: test_ray_facts.test_session_folder_is_where_the_logs_are
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from openrlhf_ada.host.classes import substituted

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


def session_folder() -> str:
    """Folder of the logs and sockets of the Ray that this process has joined."""
    from ray._private.worker import global_worker

    node: Any = global_worker.node
    return node.get_session_dir_path()


def running_cluster() -> str | None:
    """Address of the cluster that RAY_ADDRESS or `ray start` names, as `ray.init()` would find it. "auto" would also
    find the private Ray of another run here."""
    from ray._private import services

    find: Any = services.canonicalize_bootstrap_address
    return find(None)


def job_runtime_env() -> dict[str, Any]:
    """The runtime environment that `ray job submit` was given for this job; empty without one."""
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    return json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}")).get("runtime_env") or {}


@contextmanager
def started_apart() -> Iterator[None]:
    """A Ray that is started within the block has sessions of its own for its processes, so that a signal to this
    process's group leaves them alone; a Ray that is started or joined leaves SIGTERM to this process's handler.

    Ray's own handlers end the process at once. Ray has no settings for either.
    """
    from ray._private import services, utils

    apart = partial(services.ConsolePopen, start_new_session=True)
    with substituted(services, ConsolePopen=apart), substituted(utils, set_sigterm_handler=lambda handler: None):
        yield


def nvml_bindings() -> Any:
    """NVIDIA's Python bindings of its management library, of which Ray brings a copy."""
    from ray._private.thirdparty import pynvml

    return pynvml


@contextmanager
def own_token(token: str) -> Iterator[None]:
    """A Ray that is started or joined within the block serves processes that know this token alone.

    Ray's ports are open to all machines that reach this one, and whoever reaches them can run programs here. A mode
    that the user set (RAY_AUTH_MODE) stays. Ray reads the variables when it is imported; it has to read them again.
    """
    if MODE in os.environ:
        yield
        return
    os.environ |= {MODE: "token", TOKEN: token}
    _read_again()
    try:
        yield
    finally:
        del os.environ[MODE], os.environ[TOKEN]
        _read_again()


def _read_again() -> None:
    """Ray reads its token and its settings once in a process; what has changed since is read by this."""
    import ray._raylet

    # Compiled, without types.
    raylet: Any = ray._raylet
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    raylet.Config.initialize("")


def root_cause(error: BaseException) -> str:
    """What was raised in the first process that an error has come through; other errors of Ray as they are."""
    from ray.exceptions import RayTaskError

    cause = error
    while isinstance(cause, RayTaskError) and cause.cause is not None:
        cause = cause.cause
    return str(error) if cause is error else f"{type(cause).__name__}: {cause}"
