"""What a process of a cluster's job runs when it is forked from the tests' server (conftest.forked_job_python).

A job has its own PYTHONPATH, with this package as it was uploaded, and the server forks for its own alone.
"""

import os
import shlex
import sys
from typing import Any

sys.path[1:1] = filter(None, os.environ["PATH_OF_JOB"].split(os.pathsep))


def with_same_python(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray's own hook: the workers of a driver are forked as it was."""
    return {**(runtime_env or {}), "py_executable": shlex.quote(os.environ["PROGRAM_OF_JOB"])}


if __name__ == "__main__":
    from fork_server import run

    run(sys.argv[1:])
