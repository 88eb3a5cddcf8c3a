"""Look at this machine, and say what to do. With the flags of a whole training (those of `openrlhf-ada train`, also
from --config) all checks are made that it makes before it starts anything: of model, data and reward, too. Exit
status: 0 a training can start, 1 it cannot."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from tempfile import TemporaryDirectory

from openrlhf_ada.config.installed import REMEDY, stack_versions
from openrlhf_ada.config.visible import as_told
from openrlhf_ada.platforms import machine_check
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding, usable_gpus
from openrlhf_ada.reporting.redaction import redact

PROG = "openrlhf-ada doctor"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    args, words = build_parser().parse_known_args(argv)
    findings: list[Finding] = []
    for finding in look(words):
        findings.append(finding)
        if not args.json:
            print(as_told(f"{finding.level:8} {finding.check:14} {finding.what}"), flush=True)
            if finding.remedy:
                print(f"{'':23} -> {finding.remedy}", flush=True)
    _close(findings, as_json=args.json)
    return 1 if any(finding.level == ERROR for finding in findings) else 0


def look(words: Sequence[str]) -> Iterator[Finding]:
    """Make all checks; one that needs a package which is not there is left out, and said to be. `words`: flags of
    `openrlhf-ada train`."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "machine": machine_check.machine_findings,
        "GPUs": machine_check.gpu_findings,
        "packages": machine_check.package_findings,
        "GPU paths": machine_check.path_findings,
        "Ray": machine_check.ray_findings,
    }
    if words:
        checks["flags"] = lambda: input_findings(words)
    for name, check in checks.items():
        try:
            yield from check()
        except ModuleNotFoundError as error:
            yield Finding(name, WARNING, f"not looked at, since {error.name} is not installed", REMEDY)


def input_findings(words: Sequence[str]) -> Iterator[Finding]:
    """What flags come to by the checks that a training makes at its start. Nothing is written but a folder that goes
    again. `words`: after `openrlhf-ada train`."""
    from openrlhf_ada.cli import train_ppo_ray as training
    from openrlhf_ada.cli.config_file import expanded
    from openrlhf_ada.platforms import without_gpu
    from openrlhf_ada.platforms.resources import required_slots
    from openrlhf_ada.platforms.session import cluster_to_join

    try:
        args = training.parse(expanded("train", words))
        slots = required_slots(args)
        # On a CPU slots are logical; a cluster's are counted when it is joined.
        if (gpus := usable_gpus()) and not without_gpu.is_needed() and cluster_to_join() is None:
            present = {"GPU": gpus, "CPU": len(os.sched_getaffinity(0))}
            slots.check(present, free=present)
        training.check_surroundings(args)
        yield from (Finding("flags", OK, line) for line in training.notes(args))
        with TemporaryDirectory(prefix="openrlhf-ada-doctor-") as folder:
            args.ada = replace(args.ada, run_dir=folder)
            yield from (Finding("flags", WARNING, line) for line in training.prepare(args, resume=False))
    except training.USER_ERRORS as error:
        yield Finding("flags", ERROR, str(error))
        return
    said = f"they make a run of mode {args.ada.mode}, which takes {slots.gpus} GPU slots: {slots.describe()}"
    yield Finding("flags", OK, said)


def _close(findings: Sequence[Finding], *, as_json: bool) -> None:
    counts = {level: sum(finding.level == level for finding in findings) for level in (ERROR, WARNING)}
    if as_json:
        versions = {"python": platform.python_version()} | stack_versions()
        told = [redact(asdict(finding)) for finding in findings]
        print(json.dumps({**counts, "findings": told, "versions": versions}))
        return
    said = ", ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items() if count)
    can = "a training cannot start" if counts[ERROR] else "a training can start"
    print(f"\n{can}{f' ({said})' if said else ''}")
