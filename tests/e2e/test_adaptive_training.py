"""Ada-Seq on the real stack learns, and says so in figures that are right. Other modes: test_modes.py.

The same training once more, with plain processes as users have them: it samples the same, only Ray listens, and keys
are written nowhere.
"""

from __future__ import annotations

import json
import re
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train
from interrupted_runs import Interruption, interrupt
from processes import command_line, connections
from shared_start import LOG, running

pytestmark = pytest.mark.e2e

FLAGS: dict[str, Any] = {
    "ada_mode": "seq",
    "ada_wave": 4,
    "ada_max_samples": 16,
    "data__max_samples": 192,
    "train__num_episodes": 2,
}
EVALUATION = {"eval__temperature": 1.0, "eval__n_samples_per_prompt": 8, "ada_eval_ends": True}

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
        self.run = folder / "run"
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


@dataclass(frozen=True)
class Trained:
    """`forked`, `plain`: lines of the tests' fork server about processes of the run."""

    run: Path
    said: str
    forked: list[str]
    plain: list[str]


def log_of_forks() -> Path:
    return Path(running()).with_name(LOG)


@pytest.fixture(scope="module")
def trained(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    run = tmp_path_factory.mktemp("trained") / "run"
    start = log_of_forks().stat().st_size
    said = train(toy_flags(toy, run, **FLAGS, **EVALUATION, eval__dataset=toy.heldout)).stderr
    lines = log_of_forks().read_text()[start:].splitlines()
    kinds = [[line for line in lines if word in line] for word in (" forked ", " plain")]
    return Trained(run, said, *kinds)


@pytest.fixture(scope="module")
def looks(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Looks:
    """SIGKILL ends this one after its first step; no process of it is left."""
    folder = tmp_path_factory.mktemp("looks")
    looks = Looks(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(name, key)
        flags = toy_flags(toy, looks.run, **FLAGS)
        killed = Interruption(signal.SIGKILL, -signal.SIGKILL, forked=False)
        before = log_of_forks().read_text()
        interrupt(flags, "step  1/24", killed, looks)
        assert log_of_forks().read_text() == before, "none was forked"
    return looks


def test_balance_with_grpo_learns_and_reports(trained: Trained) -> None:
    run = trained.run
    check_start(trained.said)
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    steps = steps_of(run)
    assert [row["step"] for row in steps] == list(range(1, 25))
    first, last = steps[:6], steps[-6:]
    right = [sum(row["ada/first_wave_metric_mean"] for row in part) / 6 for part in (first, last)]
    assert right[1] > right[0] + 0.1
    evaluations = [row for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in evaluations] == [0, 24]
    assert evaluations[1]["eval/accuracy"] > evaluations[0]["eval/accuracy"] + evaluations[0]["eval/ci95"]
    signal = sum(row["ada/signal_share"] for row in steps)
    assert signal > sum(row["ada/signal_share_uniform"] for row in steps)
    for name in ("config.json", "summary.json", "report.html"):
        assert (run / name).stat().st_size > 0
    check_summary(run)


def check_start(printed: str) -> None:
    """Nothing of a normal start reads like a fault."""
    assert len(re.findall(r"^1 vLLM engine is up after \d+ s$", printed, re.MULTILINE)) == 1, printed
    waiting = r"1 vLLM engine is starting: 0 up after \d+ s; --verbose .+"
    lines = [line for line in printed.splitlines() if "engine" in line and not line.startswith("loading engines")]
    assert all(re.fullmatch(waiting, line) or " is up after " in line for line in lines), lines


def check_summary(run: Path) -> None:
    """The figures that others read, recomputed from every recorded rollout."""
    summary = json.loads((run / "summary.json").read_text())
    by_prompt: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for sample in read_jsonl(run / "samples.jsonl"):
        by_prompt.setdefault((sample["step"], sample["key"]), []).append(sample)
    pools = list(by_prompt.values())
    drawn = sum(row["ada/drawn"] for row in steps_of(run))
    with_signal = sum(any(sample["coefficient"] for sample in pool if sample["kept"]) for pool in pools)
    expected = {
        "signal_share": with_signal / len(pools),
        "rollouts": drawn,
        "tokens": sum(row["ada/drawn_tokens"] for row in steps_of(run)),
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    for name in ("accuracy_before", "accuracy_after", "ci95_before", "ci95_after", "train_seconds"):
        assert summary[name] > 0


def test_plain_processes_sample_what_forked_ones_do(trained: Trained, looks: Looks) -> None:
    """So what the other tests show with forked ones holds for those of users."""
    # Trainer, policy, engine and the process that creates workers ahead; the engine's core; the driver.
    assert sum("default_worker.py" in line for line in trained.forked) >= 3, trained.forked
    assert sum("spawn_main" in line for line in trained.forked) == 1, trained.forked
    assert sum("train_ppo_ray" in line for line in trained.forked) == 1, trained.forked
    assert all("resource_tracker" in line for line in trained.plain), trained.plain
    names = [line.split()[0] for line in looks.lines if line.startswith("ray::")]
    actors = {name.removeprefix("ray::").partition(".")[0] for name in names}
    # While a method runs, Ray's title has the base class. One Ray of forty has none: see platforms/processes.py.
    assert not actors or (actors & {"AdaPolicyActor", "PolicyModelActor"} and "IDLE" not in actors), actors
    first = [
        [sample for sample in read_jsonl(run / "samples.jsonl") if sample["step"] == 1]
        for run in (trained.run, looks.run)
    ]
    assert first[0] == first[1] != []


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
