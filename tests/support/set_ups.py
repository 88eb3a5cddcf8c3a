"""A machine that requirements/setup.sh sets up: an empty environment, stand-in wheels, and a stand-in for uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dockerfiles import pins

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "requirements" / "setup.sh"
PINNED = pins(ROOT / "requirements" / "cpu.txt")["torch"]
CUDA = PINNED.removesuffix("+cpu")
UV = next(line for line in SCRIPT.read_text().splitlines() if line.startswith("uv_pin=")).partition("==")[2]
OTHERS = "others==1.0"
"""Stands for all packages but torch."""
SITE = Path("lib") / f"python3.{sys.version_info.minor}" / "site-packages"

# Stands for uv: notes how it was called. Its own folders of wheels stand for PyTorch's index and for PyPI. It makes
# environments with the Python that it brings, which is this test's.
UV_CODE = """
import os, pathlib, shutil, subprocess, sys

def main():
    home = pathlib.Path(os.environ["STAND_INS"])
    with (home / "uv.called").open("a") as called:
        called.write(" ".join(sys.argv[1:]) + "\\n")
    if sys.argv[1] == "venv":
        shutil.copytree(home / "brought", sys.argv[-1], symlinks=True)
        return
    wanted = ["-r", sys.argv[-1]] if sys.argv[-2] == "-r" else [sys.argv[-1]]
    source = "pytorch" if "--torch-backend=cpu" in sys.argv else os.environ.get("UV_DEFAULT_INDEX", "uv-pypi")
    found = ["--no-index", "--find-links", str(home / source)]
    python = sys.argv[sys.argv.index("--python") + 1]
    sys.exit(subprocess.call([python, "-m", "pip", "install", "-q", "--no-deps", *found, *wanted]))
"""


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Writes a wheel of these files (path: text) and returns where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in texts.items():
            entry = zipfile.ZipInfo(file)
            # Programs stay executable.
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*texts, f"{info}/RECORD"]))
    return path


def torch_wheel(folder: Path, version: str, origin: str = "") -> Path:
    own = "cpu.py" if version.endswith("+cpu") else "cuda.py"
    return wheel(folder, "torch", version, {"torch/__init__.py": f"origin = {origin!r}\n", f"torch/{own}": ""})


def uv_wheel(folder: Path) -> Path:
    """Its program needs no other file, as uv's."""
    return wheel(folder, "uv", UV, {f"uv-{UV}.data/scripts/uv": f"#!python\n{UV_CODE}\nmain()\n"})


def others_wheel(folder: Path) -> Path:
    return wheel(folder, *OTHERS.split("=="), {"others.py": ""})


def index(folder: Path, *wheels: Path, others: bool = True) -> str:
    """Address of a package index with these wheels, and with OTHERS."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*wheels, others_wheel(folder.parent / "wheels")) if others else wheels:
        page = folder / path.name.split("-")[0] / "index.html"
        page.parent.mkdir(exist_ok=True)
        with page.open("a") as html:
            html.write(f'<a href="{path.as_uri()}">{path.name}</a>\n')
    return folder.as_uri()


@dataclass(frozen=True)
class Machine:
    home: Path

    @property
    def venv(self) -> Path:
        return self.home / "venv"

    @property
    def site(self) -> Path:
        return self.venv / SITE

    def environ(self, **variables: str) -> dict[str, str]:
        """This machine's, without its own configuration of pip, and without its uv."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "TORCH_"))}
        folders = os.environ["PATH"].split(os.pathsep)
        kept["PATH"] = os.pathsep.join(folder for folder in folders if not (Path(folder) / "uv").exists())
        kept |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "STAND_INS": str(self.home)}
        return kept | variables

    def pip_install(self, path: Path) -> None:
        command = [self.venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", path]
        subprocess.run(command, env=self.environ(), check=True)

    @property
    def script(self) -> Path:
        """A copy of it, beside a short list of packages."""
        copy = self.home / "requirements" / SCRIPT.name
        if not copy.exists():
            copy.parent.mkdir()
            shutil.copy(SCRIPT, copy)
            (copy.parent / "cpu.txt").write_text(f"# as ours\ntorch=={PINNED}\n{OTHERS}\n")
        return copy

    def install(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command, environ = [self.script, *options, self.venv], self.environ(**variables)
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def put_on_path(self, path: Path) -> None:
        """A program of the machine's own, from its wheel."""
        target, tools = self.home / "system", self.home / "tools"
        python = next(self.home.glob("*/bin/python"))
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, path]
        subprocess.run(command, env=self.environ(), check=True)
        tools.mkdir(exist_ok=True)
        (tools / "uv").symlink_to(target / "bin" / "uv")

    @property
    def path_with_tools(self) -> str:
        return f"{self.home / 'tools'}:{self.environ()['PATH']}"

    @property
    def path_of_tools_alone(self) -> str:
        """Without any Python of this test's machine."""
        programs = self.home / "programs"
        programs.mkdir(exist_ok=True)
        for name in ("bash", "sh", "env", "grep", "uname", "dirname", "basename", "rm", "cat", "sed"):
            if not (programs / name).exists():
                (programs / name).symlink_to(shutil.which(name) or name)
        return f"{self.home / 'tools'}:{programs}"

    def has(self, name: str) -> bool:
        return any(self.site.glob(f"{name}-*.dist-info"))

    @property
    def torch(self) -> list[str]:
        """Versions of torch that count as installed."""
        found = self.site.glob("torch-*.dist-info")
        return [path.name.removeprefix("torch-").removesuffix(".dist-info") for path in found]

    @property
    def uv_calls(self) -> list[list[str]]:
        called = self.home / "uv.called"
        return [line.split() for line in called.read_text().splitlines()] if called.exists() else []
