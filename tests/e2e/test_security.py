"""Of a run that is going: who may connect, and where keys are."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import psutil
import pytest
from conftest import Toy, toy_flags
from interrupted_runs import Interruption, interrupt
from processes import command_line, connections

pytestmark = pytest.mark.e2e

KEYS = {
    "WANDB_API_KEY": "markerwandb" + "0" * 29,
    "HF_TOKEN": "hf_markerhuggingface",
    "AWS_SECRET_ACCESS_KEY": "markeraws",
    "OPENAI_API_KEY": "sk-markeropenai",
}

RAY = ("gcs_server", "raylet", "ray::", "site-packages/ray/", "openrlhf_ada.cli.train_ppo_ray")
"""In the command line of who may listen beyond loopback: Ray has no setting for one address.

Ray's own programs are below its package's folder; an agent shows its command line where it could not take a title.
"""

REQUEST = b"POST %s HTTP/1.1\r\nHost: ray\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
JOB = b'{"entrypoint": "touch %s"}'


class Looks:
    """What a stranger sees of the processes of a run, without its token."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.beyond_loopback: list[str] = []
        self.session = Path()
        self.answers: dict[bytes, int] = {}
        self.touched = folder / "touched"

    def __call__(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            line = command_line(process)
            self.lines.append(line)
            if "--session-dir=" in line or "--session_dir=" in line:
                self.session = Path(line.replace("_dir=", "-dir=").partition("--session-dir=")[2].split()[0])
            for connection in connections(process):
                if connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.startswith("127."):
                    self.beyond_loopback.append(line)
                    self._ask_to_run(connection.laddr.port)

    def _ask_to_run(self, port: int) -> None:
        """Of whoever speaks HTTP; others end the connection, or wait for their own protocol."""
        job = JOB % str(self.touched).encode()
        for path in (b"/api/jobs/", b"/api/job_agent/jobs/"):
            try:
                with socket.create_connection(
                    (socket.gethostbyname(socket.gethostname()), port), timeout=2
                ) as stranger:
                    stranger.sendall(REQUEST % (path, len(job), job))
                    head = stranger.recv(100)
            except OSError:
                continue
            if head.startswith(b"HTTP/"):
                status = head.split()[1]
                self.answers[status] = self.answers.get(status, 0) + 1


@pytest.fixture(scope="module")
def looks(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Looks:
    folder = tmp_path_factory.mktemp("security")
    looks = Looks(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(name, key)
        stopped = Interruption(signal.SIGINT, 130, forked=False)
        interrupt(toy_flags(toy, folder / "run", train__num_episodes=100), "step   1/200", stopped, looks)
    return looks


def test_only_ray_listens_beyond_loopback(looks: Looks) -> None:
    others = [line for line in looks.beyond_loopback if not any(name in line for name in RAY)]
    assert not others, others
    assert any("raylet" in line for line in looks.beyond_loopback), "it would have been seen"


def test_nobody_runs_a_job_without_the_token(looks: Looks) -> None:
    """Unauthorized, or a page of figures that takes no requests."""
    assert looks.answers and looks.answers.keys() <= {b"401", b"405"}, looks.answers
    assert not looks.touched.exists()


def test_keys_are_written_nowhere(looks: Looks) -> None:
    """Neither in a command line, nor in the run's directory, nor in what Ray writes of its session."""
    assert not [line for line in looks.lines for key in KEYS.values() if key in line]
    folders = [looks.touched.parent, looks.session]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert {"config.json", "metrics.jsonl", "gcs_server.out"} <= {file.name for file in files}
    assert not [file for file in files for key in KEYS.values() if key.encode() in file.read_bytes()]
