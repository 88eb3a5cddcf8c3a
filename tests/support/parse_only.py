"""A pytest plugin for tests/gpu without GPUs: command lines go through all checks, and nothing is started.

A test ends, as an expected failure, where it would start its last program.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.demo import model as demo_model
from openrlhf_ada.demo import toy
from openrlhf_ada.host.parser import parse_host_arguments
from openrlhf_ada.platforms.resources import required_slots

ENOUGH = 8
OURS, HOSTS = "openrlhf_ada.cli.train_ppo_ray", "openrlhf.cli.train_ppo_ray"


def pytest_configure() -> None:
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: ENOUGH
    sys.modules["flash_attn"].__file__ = "installed"
    toy.build_toy_model = demo_model.build_smollm2 = _empty_model
    subprocess.run = _parse


def _empty_model(out_dir: Path) -> Path:
    out_dir = out_dir.with_name("no-model")
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "config.json").write_text("{}")
    return out_dir


def _parse(command: Sequence[str], **_options: Any) -> Any:
    if "-m" in command and command[2] == HOSTS:
        parse_host_arguments(command[3:], lambda parser: None, lambda flags: None, prog="host", description="")
        return subprocess.CompletedProcess(command, 0, "", "")
    if "-m" in command:
        assert command[2] == OURS
        args = parse(command[3:])
        assert required_slots(args).gpus <= ENOUGH
    pytest.xfail("would start it")
