"""The watch over a run: it tells lines, interrupts the main thread once when the run is given up, and says of a lost
process which it was, how it ended, its last lines and whether memory was the reason."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from openrlhf_ada.cli import run_watch
from openrlhf_ada.cli.run_watch import LINE_LENGTH, RunActors, RunWatch, by_memory, last_lines, said_by_ray
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.host.ray_actors import DEAD, ActorRow
from openrlhf_ada.platforms.processes import Seen
from openrlhf_ada.platforms.signals import unwound_by_signals
from openrlhf_ada.reporting.silence import IDLE, STARTING, UNSEEN, WORKER, WORKING, Process

IDLE_POLICY = Process("policy actor", WORKER, 7, IDLE, "fit")

GUESS = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) SIGSEGV"
)
BY_RAY = "The actor died: 1 worker(s) were killed due to the node running low on memory."


class Context:
    def get_node_id(self) -> str:
        return "here"


@pytest.fixture
def watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Callable[[], Any]], tuple[RunWatch, list[str]]]:
    """Of processes that `look` gives."""
    monkeypatch.setattr("ray.get_runtime_context", Context)

    def make(look: Callable[[], Any]) -> tuple[RunWatch, list[str]]:
        monkeypatch.setattr(run_watch.RunActors, "look", lambda self: look())
        notes: list[str] = []
        return RunWatch(AdaConfig(silence=0.03, dead_after=0.3), str(tmp_path), notes.append), notes

    return make


@pytest.mark.slow
def test_the_main_thread_is_interrupted_where_it_waits(watch: Any) -> None:
    """As a blocked `ray.get` is."""
    thread, notes = watch(lambda: [IDLE_POLICY])
    end = time.monotonic() + 60
    with pytest.raises(KeyboardInterrupt), unwound_by_signals():
        thread.start()
        while time.monotonic() < end:
            time.sleep(0.01)
    thread.stop(waits=True)
    assert not thread.is_alive()
    assert "waiting for policy actor (pid 7, in fit), and --ada_dead_after" in thread.verdict
    assert notes and "policy actor (pid 7, in fit)" in notes[0]


def test_the_watch_ends_with_ray(watch: Any) -> None:
    def gone() -> None:
        raise RaySystemError("the head is gone")

    thread, notes = watch(gone)
    thread.run()
    assert thread.verdict == "" and notes == []


def test_a_run_says_that_it_waits_before_it_ends(refusal: Callable[[dict[str, str]], Exception]) -> None:
    error = refusal({"--ada_silence": "90", "--ada_dead_after": "80"})
    assert isinstance(error, ConfigError) and error.flag == "--ada_dead_after" and "--ada_silence is 90" in str(error)


# -- how one was lost -------------------------------------------------------------------------------------------------


def dead(class_name: str, pid: int, ended_at: int, node: str = "here", lost: str = GUESS) -> ActorRow:
    return ActorRow(class_name, node, "10.0.0.2", pid, DEAD, lost, ended_at)


@pytest.fixture
def told(watch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Sequence[ActorRow]], str]:
    """What is said where Ray's table has these rows. Logs are in `tmp_path`."""
    monkeypatch.setattr(run_watch, "NOTICED_S", 0.0)
    monkeypatch.setattr(run_watch, "kernel_kills", lambda: {"this machine": 4})

    def say(rows: Sequence[ActorRow]) -> str:
        monkeypatch.setattr(run_watch, "job_actors", lambda: list(rows))
        thread, _ = watch(list)
        return thread.lost()

    return say


def test_the_first_death_comes_first_with_all_that_is_known(told: Any, tmp_path: Path) -> None:
    log = tmp_path / "worker-abc-01000000-7.err"
    log.write_text("*** SIGSEGV received at time=1 ***\nTrain: 0%\rTrain: 100%\nno room\n")
    rows = [
        dead("PPOTrainer", 8, 200),
        dead("PolicyModelActor", 7, 100),
        dead("_QueueActor", 9, 50, lost=""),
        dead("ProcessProbe", 10, 40),
        ActorRow("RolloutRayActor", "here", "", 6, "ALIVE"),
    ]
    how, memory, where, *last, second, _, no_lines = told(rows).splitlines()
    assert how.startswith("policy actor (pid 7) died: ") and "SIGSEGV" in how
    assert "Memory was not the reason" in memory and str(log) in where
    assert last == ["    *** SIGSEGV received at time=1 ***", "    Train: 100%", "    no room"]
    assert second.startswith("trainer (pid 8) died") and str(log) not in no_lines


def test_of_a_process_on_another_node_rays_words_are_told(told: Any) -> None:
    said = told([dead("CriticModelActor", 7, 1, node="there")])
    assert said.startswith("critic (pid 7) died: on 10.0.0.2, The actor is dead because its worker process has died.")
    assert "OOM" not in said and "Memory" not in said and said.endswith("on 10.0.0.2.")


def test_deaths_that_ray_does_not_know_of_are_none(told: Any) -> None:
    assert told([]) == ""


@pytest.mark.parametrize(
    ("lost", "now", "expected"),
    [
        (BY_RAY, 4, rf"\bmemory monitor\b.*{re.escape(BY_RAY)}"),
        (GUESS, 6, r"\bkernel .*\b2 processes\b"),
        (GUESS, 4, r"^Memory was not the reason"),
        (GUESS, None, ""),
    ],
    ids=["Ray", "kernel", "neither", "not known"],
)
def test_memory_is_named_only_where_somebody_says_so(lost: str, now: int | None, expected: str) -> None:
    counts = {} if now is None else {"this machine": now}
    said = by_memory(lost, {"this machine": 4}, counts)
    assert re.search(expected, said) if expected else not said


def test_rays_guesses_are_left_out() -> None:
    assert said_by_ray(GUESS).endswith("connection error code 2. End of file")


def test_last_lines_are_those_of_errors_or_else_of_output(tmp_path: Path) -> None:
    (tmp_path / "worker-a-1-7.err").write_text("\n\x1b[A\n")
    (tmp_path / "worker-a-1-7.out").write_text("\n".join(f"{i} \x1b[36m{'x' * 300}\x1b[39m" for i in range(50)))
    (tmp_path / "worker-a-1-77.err").write_text("of another process")
    file, lines = last_lines(tmp_path, 7)
    assert file.endswith("-7.out") and len(lines) == 8
    assert lines[-1] == f"49 {'x' * 300}"[:LINE_LENGTH]
    assert last_lines(tmp_path, 5) == (str(tmp_path), [])


# -- whom it waits for ------------------------------------------------------------------------------------------------


def test_processes_of_all_nodes_are_seen_under_our_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ActorRow("PolicyModelActor", "here", "10.0.0.1", 7, "ALIVE"),
        ActorRow("PolicyModelActor", "there", "10.0.0.2", 7, "ALIVE"),
        ActorRow("TheirAgent", "here", "10.0.0.1", 8, "ALIVE"),
        ActorRow("CriticModelActor", "", "", 0, "PENDING_CREATION"),
        ActorRow("ReferenceModelActor", "gone", "10.0.0.3", 9, "ALIVE"),
        dead("RolloutRayActor", 5, 1),
    ]
    monkeypatch.setattr(run_watch, "job_actors", lambda: rows)
    monkeypatch.setattr(
        run_watch, "look", lambda pids: {p: Seen({p: (1.0 if p == 7 else 1e9, 0)}, "fit") for p in pids}
    )
    actors: Any = RunActors("here")
    there = {"there": {7: Seen({7: (0.0, 0)}, "", is_stopped=True)}, "gone": {}}
    monkeypatch.setattr(actors, "_look_at", lambda node, pids: there[node])
    assert [process.does for process in actors.look()] == [WORKING, IDLE, WORKING, STARTING, UNSEEN]
    found = actors.look()
    assert found[:2] == [
        Process("policy actor", WORKER, 7, IDLE, "fit"),
        Process("policy actor", WORKER, 7, IDLE, "", "10.0.0.2", is_stopped=True),
    ]
    assert [process.name for process in found[2:]] == ["TheirAgent", "critic", "reference"]
