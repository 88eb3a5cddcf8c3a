"""What the images run: the real entrypoint.sh in front of programs that only write down how they were called."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from openrlhf_ada.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "dockerfile" / "entrypoint.sh"
PAGES = [ROOT / "README.md", ROOT / "docs" / "docker.md"]
SERVICES = yaml.safe_load((ROOT / "dockerfile" / "compose.yaml").read_text())["services"]

STUB = """#!/bin/sh
for word in "$$" "$HOME" "${USER:-}" "${0##*/}" "$@"; do echo "$word"; done > "$RECORD.part"
mv "$RECORD.part" "$RECORD"
case "$*" in *wait*) exec sleep 60 ;; esac
exit 7
"""


class Container:
    """A folder that any user may read, with the entrypoint, the programs and what was recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, folder / "record"
        folder.chmod(0o777)
        shutil.copy(SCRIPT, folder)
        for name in ("openrlhf-ada", "ray", "vllm"):
            (folder / name).write_text(STUB)
            (folder / name).chmod(0o755)

    def start(self, *argv: str, user: int | None = None, home: str | None = None) -> subprocess.Popen[str]:
        self.record.unlink(missing_ok=True)
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", "RECORD": str(self.record)}
        environment["HOME"] = home or str(self.folder)
        return subprocess.Popen(
            ["/bin/sh", str(self.folder / SCRIPT.name), *argv],
            env=environment,
            cwd="/",
            user=user,
            group=user,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str) -> tuple[int, str, str]:
        process = self.start(*argv)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def recorded(self) -> list[str]:
        """Process id, HOME, USER, program, arguments."""
        return self.record.read_text().splitlines()


@pytest.fixture
def container() -> Iterator[Container]:
    # Not tmp_path: other users cannot enter that.
    with tempfile.TemporaryDirectory() as folder:
        yield Container(Path(folder))


def test_it_knows_every_verb_of_the_command_line() -> None:
    listed = re.search(r"^    (train \|[^)]*)\)", SCRIPT.read_text(), re.MULTILINE)
    assert listed
    assert set(listed[1].split(" | ")) == set(VERBS)
    assert SCRIPT.read_text().count(listed[1]) == 2  # in the usage too


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_is_openrlhf_adas(container: Container, verb: str) -> None:
    assert container.run(verb, "--flag", "two words", "$HOME")[0] == 7
    assert container.recorded()[3:] == ["openrlhf-ada", verb, "--flag", "two words", "$HOME"]


@pytest.mark.parametrize("argv", [("ray", "start", "--head"), ("vllm", "serve"), ("ray",)])
def test_another_program_is_run(container: Container, argv: tuple[str, ...]) -> None:
    assert container.run(*argv)[0] == 7
    assert container.recorded()[3:] == list(argv)


@pytest.mark.parametrize("word", ["trian", "if", "cd", "-c", "--toy", "no/such"])
def test_an_unknown_command_is_refused(container: Container, word: str) -> None:
    status, out, err = container.run(word, "x")
    assert (status, out) == (2, "")
    assert err.startswith(f'openrlhf-ada: error: no command "{word}"')
    assert "usage: docker run" in err
    assert not container.record.exists()


def test_help_succeeds_and_no_argument_fails(container: Container) -> None:
    status, out, err = container.run("--help")
    assert (status, err) == (0, "")
    assert "prepare-data" in out
    assert container.run() == (2, "", out)


@pytest.mark.parametrize("program", ["train", "ray"])
def test_the_program_gets_the_containers_signals(container: Container, program: str) -> None:
    """No shell stays in between: the process is the same one."""
    process = container.start(program, "wait")
    deadline = time.monotonic() + 30
    while not container.record.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert int(container.recorded()[0]) == process.pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_user_without_a_name_or_a_home(container: Container) -> None:
    """`docker run --user 1234`: such a user's HOME is /, which is not writable."""
    process = container.start("demo", user=54321, home="/")
    process.communicate(timeout=30)
    _, home, user, *argv = container.recorded()
    assert (user, argv) == ("uid-54321", ["openrlhf-ada", "demo"])
    assert Path(home).stat().st_uid == 54321
    Path(home).rmdir()


def commands() -> list[list[str]]:
    """Every command of the documentation's code blocks, continuation lines joined."""
    blocks = [block for page in PAGES for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [shlex.split(line, comments=True) for line in lines if re.match(r"\s*(docker|podman) ", line)]


def test_documented_commands_are_accepted(container: Container) -> None:
    """`docker run IMAGE ...`, by the entrypoint."""
    runs = [words for words in commands() if words[1] == "run"]
    assert len(runs) >= 5
    for words in runs:
        image = next(at for at, word in enumerate(words) if re.fullmatch(r"openrlhf-ada:(cpu|gpu)", word))
        status, _, err = container.run(*words[image + 1 :])
        assert (status, err) == (7, ""), words


def test_documented_services_exist() -> None:
    used = [words for words in commands() if words[1] == "compose" and "exec" in words]
    assert used
    for words in used:
        after = [word for word in words[words.index("exec") + 1 :] if not word.startswith("-")]
        assert after[0] in SERVICES
        assert after[1] in ("ray", "openrlhf-ada", "python")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_services_command_is_accepted(container: Container, name: str) -> None:
    words = shlex.split(SERVICES[name]["command"])
    assert container.run(*words)[0] == 7
    assert container.recorded()[3:] == words
