"""What a run that lost a process says of it: which, how it ended, its last lines, memory; and of whom it waits for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli import lost_processes, run_actors
from openrlhf_ada.cli.lost_processes import LINE_LENGTH, LostProcess, by_memory, explain, last_lines, said_by_ray
from openrlhf_ada.cli.run_actors import RunActors
from openrlhf_ada.host.ray_actors import DEAD, ActorRow
from openrlhf_ada.platforms.exits import Exits
from openrlhf_ada.platforms.processes import Seen
from openrlhf_ada.reporting.silence import CONTROLLER, IDLE, STARTING, STOPPED, UNSEEN, WORKER, WORKING, Process

GUESS = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) SIGSEGV"
)
BY_RAY = "The actor died: 1 worker(s) were killed due to the node running low on memory."


class Ended(Exits):
    def status(self, pid: int, patience_s: float = 0.0) -> int | None:
        return -11


def dead(class_name: str, pid: int, ended_at: int, node: str = "here", lost: str = GUESS) -> ActorRow:
    return ActorRow(class_name, node, "10.0.0.2", pid, DEAD, lost, ended_at)


def explained(monkeypatch: pytest.MonkeyPatch, logs: Path, rows: Sequence[ActorRow]) -> list[LostProcess]:
    monkeypatch.setattr(run_actors, "job_actors", lambda: list(rows))
    monkeypatch.setattr(lost_processes, "kernel_kills", lambda: {"this machine": 4})
    monkeypatch.setattr(lost_processes, "NOTICED_S", 0.0)
    return explain("here", str(logs), Ended(), {"this machine": 4})


def test_the_first_death_comes_first_with_all_that_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "worker-abc-01000000-7.err"
    log.write_text("loading\nTrain: 0%\rTrain: 100%\nno room\n")
    rows = [
        dead("PPOTrainer", 8, 200),
        dead("PolicyModelActor", 7, 100),
        dead("_QueueActor", 9, 50, lost=""),
        dead("ProcessProbe", 10, 40),
        ActorRow("RolloutRayActor", "here", "", 6, "ALIVE"),
    ]
    first, second = explained(monkeypatch, tmp_path, rows)
    how, memory, where, *last = first.description().splitlines()
    assert how.startswith("policy actor (pid 7) died: ") and "SIGSEGV" in how
    assert "Memory was not the reason" in memory and str(log) in where
    assert last == ["    loading", "    Train: 100%", "    no room"]
    assert second.description().startswith("trainer (pid 8) died") and str(log) not in second.description()


def test_of_a_process_on_another_node_rays_words_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (found,) = explained(monkeypatch, tmp_path, [dead("CriticModelActor", 7, 1, node="there")])
    told = found.description()
    assert told.startswith("critic (pid 7) died: on 10.0.0.2, The actor is dead because its worker process has died.")
    assert "OOM" not in told and "Memory" not in told and told.endswith("(its log is on 10.0.0.2).")


def test_deaths_that_ray_does_not_know_of_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert explained(monkeypatch, tmp_path, []) == []


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


def test_an_actor_that_is_stopped_while_it_starts_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray does not say its process yet. One that only starts is not taken for stopped."""
    rows = [
        ActorRow("PPOTrainer", "", "", 0, "PENDING_CREATION"),
        ActorRow("CriticModelActor", "", "", 0, "PENDING_CREATION"),
        ActorRow("PolicyModelActor", "", "", 0, "PENDING_CREATION"),
        ActorRow("PolicyModelActor", "", "", 0, "PENDING_CREATION"),
    ]
    stopped = {tmp_path: {31: "AdaPPOTrainer", 32: "PolicyModelActor"}}
    monkeypatch.setattr(run_actors, "job_actors", lambda: rows)
    monkeypatch.setattr(run_actors, "stopped_workers", lambda logs: dict(stopped[logs]))
    found, _ = RunActors("here", tmp_path).look()
    assert found == [
        Process("trainer", CONTROLLER, 31, STOPPED, stopped=31),
        Process("critic", WORKER, 0, STARTING),
        Process("policy actor", WORKER, 32, STOPPED, stopped=32),
        Process("policy actor", WORKER, 0, STARTING),
    ]


def test_processes_of_all_nodes_are_seen_under_our_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        ActorRow("PolicyModelActor", "here", "10.0.0.1", 7, "ALIVE"),
        ActorRow("PolicyModelActor", "there", "10.0.0.2", 7, "ALIVE"),
        ActorRow("TheirAgent", "here", "10.0.0.1", 8, "ALIVE"),
        ActorRow("CriticModelActor", "", "", 0, "PENDING_CREATION"),
        ActorRow("ReferenceModelActor", "gone", "10.0.0.3", 9, "ALIVE"),
        dead("RolloutRayActor", 5, 1),
    ]
    monkeypatch.setattr(run_actors, "job_actors", lambda: rows)
    cpu = iter([1.0, 1.0])
    monkeypatch.setattr(
        run_actors, "look", lambda pids: {p: Seen(0, {p: (next(cpu) if p == 7 else 1e9, 0)}, "fit") for p in pids}
    )
    actors: Any = RunActors("here", tmp_path)
    there = {"there": {7: Seen(70, {7: (0.0, 0)}, "")}, "gone": {}}
    monkeypatch.setattr(actors, "_look_at", lambda node, pids: there[node])
    found, pids = actors.look()
    assert [process.does for process in found] == [WORKING, STOPPED, WORKING, STARTING, UNSEEN]
    found, pids = actors.look()
    assert found[:2] == [
        Process("policy actor", WORKER, 7, IDLE, "fit"),
        Process("policy actor", WORKER, 7, STOPPED, "", 70, "10.0.0.2"),
    ]
    assert [process.name for process in found[2:]] == ["TheirAgent", "critic", "reference"]
    assert pids == [7, 8]
