"""Machines for the tests of requirements/setup.sh."""

from __future__ import annotations

import compileall
import importlib.util
import shutil
import venv
from pathlib import Path

import pytest
from set_ups import SITE, Machine


@pytest.fixture(scope="session")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(path, symlinks=True)
    # `ensurepip` would take seconds to install the same files.
    spec = importlib.util.find_spec("pip")
    assert spec and spec.origin
    installed = Path(spec.origin).parent
    for folder in (installed, *installed.parent.glob("pip-*.dist-info")):
        shutil.copytree(folder, path / SITE / folder.name)
    # uv leaves pip uncompiled, and every copy of this environment would compile it again.
    compileall.compile_dir(path / SITE / "pip", quiet=1)
    return path


@pytest.fixture
def machine(empty_venv: Path, tmp_path: Path) -> Machine:
    shutil.copytree(empty_venv, tmp_path / "venv", symlinks=True)
    (tmp_path / "pytorch").mkdir()
    return Machine(tmp_path)
