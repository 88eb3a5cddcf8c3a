"""examples/loop.py: it learns with every sampler that it offers, and loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).parents[2] / "examples" / "loop.py"
HEAVY = ("torch", "ray", "vllm", "openrlhf")


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["reinforce-ada-balance", "uniform"])
def test_the_loop_learns(sampler: str) -> None:
    script = f"import runpy, sys; sys.argv = ['loop.py', '--steps', '30', '--sampler', {sampler!r}]\n"
    script += f"runpy.run_path({str(LOOP)!r}, run_name='__main__')\nassert not {set(HEAVY)!r} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    accuracies = [float(share) for share in re.findall(r"accuracy ([\d.]+)%", done.stdout)]
    assert len(accuracies) == 4 and accuracies == sorted(accuracies)
    assert accuracies[-1] > accuracies[0] + 5


def test_the_file_is_short() -> None:
    assert len(LOOP.read_text().splitlines()) <= 200
