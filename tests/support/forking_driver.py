"""The program of a training on a cluster whose workers are forked from the tests' template, by Ray's own hook."""

import os
import shlex
import sys
from typing import Any

from openrlhf_ada.cli.train_ppo_ray import main
from openrlhf_ada.platforms.template import running

os.environ["RAY_RUNTIME_ENV_HOOK"] = "forking_driver.with_template"


def with_template(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    return {**(runtime_env or {}), "py_executable": shlex.quote(running())}


if __name__ == "__main__":
    sys.exit(main())
