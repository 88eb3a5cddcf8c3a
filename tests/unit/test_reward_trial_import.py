"""A user's file that cannot be imported is refused before anything starts, with the line that is wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from processes import command_line

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reward import arithmetic, trial_import
from openrlhf_ada.reward.trial_import import trial_imports

FUNCTION = "\ndef reward_func(queries, prompts, labels):\n    return {}\n"


def args_of(rewards: str | list[str] | None, agent: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(reward=SimpleNamespace(remote_url=rewards), train=SimpleNamespace(agent_func_path=agent))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import math\nimport no_such_package", "No module named 'no_such_package', line 2)"),
        (
            "def load():\n    return open('/no/such/file')\nload()",
            "No such file or directory: '/no/such/file', line 2)",
        ),
        ("x: int =", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)", "it raises when it is imported (SystemExit: 0, line 2)"),
        ("print('loading')\nimport os\nos._exit(3)", "its import ends the process (status 3); loading"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "its import ends the process (status -11)"),
        ("raise ValueError('a\\nmessage of\\nlines')", "(ValueError: a message of lines, line 1)"),
    ],
)
@pytest.mark.parametrize("named", ["{file}", "math,{file}", "{file}:reward_func"])
def test_a_file_that_raises_is_refused(tmp_path: Path, body: str, said: str, named: str) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(body + FUNCTION)
    with trial_imports(args_of(named.format(file=file))) as finish, pytest.raises(ConfigError) as error:
        finish()
    assert said in str(error.value)
    assert str(error.value).startswith(f"--reward.remote_url is {named.split(',')[-1].format(file=file)!r}: ")


def test_an_agent_that_raises_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("1 / 0")
    with (
        trial_imports(args_of(None, agent=str(file))) as finish,
        pytest.raises(ConfigError, match=r"--train.agent_func_path .*ZeroDivisionError: division by zero, line 1"),
    ):
        finish()


def test_a_file_that_prints_and_has_imports_beside_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the working directory are found, as in the engine. What it starts delays nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("X = 1")
    file = tmp_path / "rewards.py"
    threads = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"
    threads += "\nif os.fork() == 0: time.sleep(600)"
    file.write_text(f"import beside\nprint('{{}}' * 100_000)\n{threads}{FUNCTION}")
    with trial_imports(args_of([str(file)])) as finish:
        finish()


def test_ours_and_servers_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_import.subprocess, "Popen", None)
    with trial_imports(args_of(f"math,mixed,https://a.b/get_reward,{arithmetic.__file__}")) as finish:
        finish()


def test_a_file_that_takes_long_is_left_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_import, "LIMIT_S", 0.5)
    file = tmp_path / "rewards.py"
    file.write_text(f"import time\ntime.sleep(600){FUNCTION}")
    before = time.monotonic()
    with trial_imports(args_of(str(file))) as finish:
        finish()
    assert time.monotonic() - before < 300
    commands = [command_line(child) for child in psutil.Process(os.getpid()).children()]
    assert not any(str(file) in command for command in commands), "its process has ended with the block"
