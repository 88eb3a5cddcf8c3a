"""Ray's own record of the cluster that this process belongs to. Ray has no public names for these."""

from __future__ import annotations

import json
import os
from typing import Any


def session_folder() -> str:
    """Folder of the logs and sockets of the Ray that this process has joined.

    Contract: test_ray_facts.test_session_folder_is_where_the_logs_are
    """
    from ray._private.worker import global_worker

    node: Any = global_worker.node
    return node.get_session_dir_path()


def running_cluster() -> str | None:
    """Address of the cluster that RAY_ADDRESS or `ray start` names, as `ray.init()` would find it.

    "auto" would also find the private Ray of another run on this machine, and end with that run.
    Contract: test_ray_facts.test_running_cluster_is_the_named_one
    """
    from ray._private import services

    find: Any = services.canonicalize_bootstrap_address
    return find(None)


def job_runtime_env() -> dict[str, Any]:
    """The runtime environment that `ray job submit` was given for this job; empty without one.

    Contract: test_ray_facts.test_runtime_environment_of_a_job_is_in_its_variable
    """
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    return json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}")).get("runtime_env") or {}
