"""Starts a Ray worker on a CPU as Ray's own setup_worker.py does, which imports all of Ray to read a few values.

Run as `python cpu_setup_worker.py ARGUMENT...` in its place: half a second of processor time less for each worker.
What it does not know is left to Ray's own program.
Contract: test_ray_facts.test_workers_are_set_up_as_ray_does
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="

KNOWN = {"env_vars", "py_executable"}
"""What is used here. Anything else of a context must be empty."""


def command(arguments: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """A line for the shell and the variables to set before; None where Ray's own program has to decide."""
    contexts = [word for word in arguments if word.startswith(CONTEXT)]
    languages = [word for word in arguments if word.startswith(LANGUAGE)]
    if len(contexts) != 1 or languages != [LANGUAGE + "PYTHON"]:
        return None
    context = json.loads(contexts[0].removeprefix(CONTEXT))
    variables: dict[str, str] = context.get("env_vars", {})
    # Ray replaces ${NAME}.
    if (
        not context.get("py_executable")
        or any(context[name] for name in context.keys() - KNOWN)
        or "$" in "".join(variables.values())
    ):
        return None
    rest = [word for word in arguments if word not in contexts + languages]
    return f"exec {context['py_executable']} {shlex.join(rest)}", variables


def main() -> NoReturn:
    arguments = sys.argv[1:]
    known = command(arguments)
    if known is None:
        ray = find_spec("ray")
        assert ray is not None and ray.origin is not None
        own = Path(ray.origin).parent / "_private" / "workers" / "setup_worker.py"
        os.execv(sys.executable, [sys.executable, str(own), *arguments])
    line, variables = known
    os.environ.update(variables)
    os.execvp("bash", ["bash", "-c", line])


if __name__ == "__main__":
    main()
