"""What the flags of a training come to, by the checks that it makes at its start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, check_surroundings, notes, parse, prepare
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding
from openrlhf_ada.platforms.resources import Slots, required_slots
from openrlhf_ada.platforms.session import cluster_to_join
from openrlhf_ada.platforms.stack_check import usable_gpus

NAME = "flags"


def input_findings(words: Sequence[str]) -> Iterator[Finding]:
    """`words`: after `openrlhf-ada train`. Nothing is written but a folder that goes again."""
    try:
        args = parse(expanded("train", words))
        slots = required_slots(args)
        _check_slots(slots)
        check_surroundings(args)
        yield from (Finding(NAME, OK, line) for line in notes(args))
        with TemporaryDirectory(prefix="openrlhf-ada-doctor-") as folder:
            args.ada = replace(args.ada, run_dir=folder)
            yield from (Finding(NAME, WARNING, line) for line in prepare(args, resume=False))
    except USER_ERRORS as error:
        yield Finding(NAME, ERROR, str(error))
        return
    said = f"they make a run of mode {args.ada.mode}, which takes {slots.gpus} GPU slots: {slots.describe()}"
    yield Finding(NAME, OK, said)


def _check_slots(slots: Slots) -> None:
    """Has this machine as many GPUs? On a CPU slots are logical; a cluster's are counted when it is joined.

    Raises MissingResourcesError.
    """
    gpus = usable_gpus()
    if gpus and not without_gpu.is_needed() and cluster_to_join() is None:
        present = {"GPU": gpus, "CPU": len(os.sched_getaffinity(0))}
        slots.check(present, free=present)
