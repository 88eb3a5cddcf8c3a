"""The death of an engine as the driver sees it: Ray's part is played by a table of references.

The real thing is in tests/e2e/test_engine_death.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import ray
from engines import Remote
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from openrlhf_ada.core.fleet import EngineDown, EngineUp
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.engine_connections import CALLS_AT_A_TIME, EngineConnections
from openrlhf_ada.rollout.engine_restart import RESTART_S, EngineLostError, EngineWaiter
from openrlhf_ada.rollout.messages import Answer
from openrlhf_ada.rollout.tracked_engine import Job
from openrlhf_ada.weights.sender import EngineGoneError

PATIENCE_S = 77.0
DEAD = ActorUnavailableError("killed", None)


JOB = Job(Request(3, 0), "1+1=", "2", None, 0)


class Ref:
    """Pending until it has a value; an exception as value is raised by whoever reads it."""

    def __init__(self, value: Any = None, *, pending: bool = False) -> None:
        self.value, self.pending = value, pending

    def set(self, value: Any) -> None:
        self.value, self.pending = value, False


class Actor:
    """Hands out references and remembers the last of each kind. Without a `start_id`, nobody is `ready`."""

    def __init__(self, start_id: str) -> None:
        self.start_id: str | None = start_id
        self.last: dict[str, Ref] = {}
        self.num_resets = 0
        self.deaths_to_come = 0
        self.ready = Remote(self._ready)
        self.reset = Remote(self._reset)
        self.answers = Remote(lambda stops, jobs, setup: self._new("answers"))
        self.submit = Remote(lambda jobs, setup: self._new("submit"))
        self.stop = Remote(lambda requests: self._new("stop"))

    def _ready(self) -> Ref:
        ref = self._new("ready")
        if self.start_id is not None:
            ref.set(self.start_id)
        return ref

    def _reset(self) -> Ref:
        self.num_resets += 1
        return Ref(DEAD if self.num_resets <= self.deaths_to_come else None)

    def come_back(self, start_id: str) -> None:
        self.start_id = start_id
        self.last["ready"].set(start_id)

    def _new(self, kind: str) -> Ref:
        self.last[kind] = Ref(pending=True)
        return self.last[kind]


class World:
    """Two engines and a policy of two processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors = [Actor("a0"), Actor("b0")]
        self.restored: list[int] = []
        self.policy_dies = 0
        self.policy = [Ref(pending=True), Ref(pending=True)]
        self.notes: list[str] = []
        self.connections = EngineConnections(self.actors, self._restore, self.notes.append, patience_s=PATIENCE_S)
        monkeypatch.setattr(ray, "wait", _wait)
        monkeypatch.setattr(ray, "get", _get)

    def _restore(self, engine: int) -> Sequence[Ref]:
        self.restored.append(engine)
        if len(self.restored) <= self.policy_dies:
            return [Ref(EngineGoneError("vLLM engine 1 failed while joining"))]
        return self.policy


def _wait(refs: Sequence[Ref], num_returns: int, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
    ready = [ref for ref in refs if not ref.pending][:num_returns]
    if len(ready) < num_returns and timeout != 0:
        raise AssertionError("waits for ever")
    return ready, [ref for ref in refs if ref not in ready]


def _get(refs: Any, timeout: float | None = None) -> Any:
    if isinstance(refs, list):
        return [_get(ref) for ref in refs]
    if refs.pending:
        raise GetTimeoutError
    if isinstance(refs.value, Exception):
        raise refs.value
    return refs.value


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """After the first look at the engines, with questions open."""
    world = World(monkeypatch)
    world.connections.wait_until_ready()
    with pytest.raises(AssertionError, match="waits for ever"):
        world.connections.wait()
    return world


def kill(actor: Actor, by: str = "answers") -> None:
    actor.start_id = None
    actor.last[by].set(DEAD)


def await_recovery(connections: EngineConnections, between_steps: bool) -> None:
    """Engine 1 is up again, in the middle of a step or before the next one."""
    if between_steps:
        connections.wait_until_ready()
    else:
        assert connections.wait() == [EngineUp(1)]


def test_dead_engine_is_unused_until_it_has_weights(world: World) -> None:
    connections, (first, second) = world.connections, world.actors
    kill(second)
    assert connections.wait() == [EngineDown(1)]
    assert world.notes == ["vLLM engine 1 died; it is started again, and its rollouts are sampled again"]
    # The other one goes on.
    first.last["answers"].set([Answer(Request(3, 0), 5, (1, 2))])
    assert connections.wait() == [Answer(Request(3, 0), 5, (1, 2))]
    assert world.restored == []
    second.come_back("b1")
    with pytest.raises(AssertionError, match="waits for ever"):
        connections.wait()
    assert world.restored == [1]
    for process in world.policy:
        process.set(None)
    assert connections.wait() == [EngineUp(1)]
    assert world.notes[-1].startswith("vLLM engine 1 is back ")
    connections.wait_until_ready()
    assert world.restored == [1], "nothing is left to do"


@pytest.mark.parametrize("between_steps", [False, True])
def test_engine_that_dies_again_at_once_is_awaited(world: World, between_steps: bool) -> None:
    connections, second = world.connections, world.actors[1]
    kill(second)
    connections.wait()
    second.deaths_to_come = 2
    second.come_back("b1")
    for process in world.policy:
        process.set(None)
    await_recovery(connections, between_steps)
    assert (second.num_resets, world.restored) == (3, [1])


@pytest.mark.parametrize("between_steps", [False, True])
def test_engine_that_dies_getting_weights_is_awaited(world: World, between_steps: bool) -> None:
    connections, second = world.connections, world.actors[1]
    if not between_steps:
        kill(second)
        connections.wait()
    second.start_id = "b1"
    if not between_steps:
        second.come_back("b1")
    world.policy_dies = 1
    for process in world.policy:
        process.set(None)
    await_recovery(connections, between_steps)
    assert world.restored == [1, 1]


def test_calls_to_dead_engine_report_it_once(world: World) -> None:
    connections, (_, second) = world.connections, world.actors
    second.submit = Remote(lambda jobs, setup: Ref(DEAD))
    connections.submit(1, [JOB], None)
    kill(second)
    assert connections.wait() == [EngineDown(1)]


def test_other_errors_of_an_engine_are_raised(world: World) -> None:
    world.actors[0].stop = Remote(lambda requests: Ref(ValueError("no such request")))
    world.connections.stop(0, [JOB.request])
    with pytest.raises(ValueError, match="no such request"):
        world.connections.wait()


def test_engine_death_between_steps_is_found(world: World) -> None:
    world.actors[0].start_id = "a1"
    for process in world.policy:
        process.set(None)
    world.connections.wait_until_ready()
    assert world.restored == [0]
    (note,) = world.notes
    assert note.startswith("vLLM engine 0 is back with the policy's weights")


@pytest.mark.parametrize("is_back", [False, True])
def test_step_waits_for_engine_that_is_not_back(world: World, is_back: bool) -> None:
    """Restarted or even half restored: it starts over, and the next step finds it up."""
    connections, (first, second) = world.connections, world.actors
    kill(second)
    connections.wait()
    if is_back:
        second.come_back("b1")
    first.last["answers"].set([Answer(Request(3, 0), 5, (0, 0))])
    connections.wait()
    second.start_id = "b1"
    for process in world.policy:
        process.set(None)
    connections.wait_until_ready()
    assert world.restored == [1] * (1 + is_back)
    assert world.notes[-1].startswith("vLLM engine 1 is back ")
    second.last.pop("answers")
    with pytest.raises(AssertionError, match="waits for ever"):
        connections.wait()
    assert "answers" in second.last, "it is asked again"
    connections.wait_until_ready()
    assert world.restored == [1] * (1 + is_back), "once is enough"


@pytest.mark.parametrize("between_steps", [False, True])
def test_unreachable_living_engine_is_emptied(world: World, between_steps: bool) -> None:
    connections, second = world.connections, world.actors[1]
    kill(second)
    connections.wait()
    second.come_back("b0")
    await_recovery(connections, between_steps)
    assert (second.num_resets, world.restored) == (1, [])


def test_an_engine_that_does_not_come_back_ends_the_run(world: World) -> None:
    kill(world.actors[1])
    world.connections.wait()
    world.actors[1].last["ready"].set(ActorDiedError())
    with pytest.raises(EngineLostError, match="--ada_engine_restarts"):
        world.connections.wait()
    world.actors[0].start_id = None
    with pytest.raises(EngineLostError, match=r"engine 0 died .*\b900 s"):
        world.connections.wait_until_ready()


def test_first_start_has_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model is downloaded and compiled first. Engine 0 was up before: for it, the limit counts."""
    limits: list[float | None] = []

    def get(ref: Any, timeout: float | None = None) -> Any:
        limits.append(timeout)
        return ref.value

    world = World(monkeypatch)
    monkeypatch.setattr(ray, "get", get)
    waiter = EngineWaiter(world.actors)
    assert waiter.wait() == ["a0", "b0"]
    assert limits == [None, None]
    waiter.wait()
    assert limits[2:] == [pytest.approx(RESTART_S, abs=60)] * 2


def test_engine_that_was_never_up_may_fail_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.actors[1].start_id = None
    waiter = EngineWaiter(world.actors)

    def ready() -> Ref:
        return Ref(ActorDiedError())

    world.actors[1].ready = Remote(ready)
    with pytest.raises(EngineLostError, match="vLLM engine 1 died, or failed to start"):
        waiter.wait()


def test_stalled_engine_is_ended_others_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said a word for the whole of a rollout's time limit; the first engine answers when asked."""
    first, second = world.actors
    killed: list[Any] = []

    def kill_silent(actor: Actor, *, no_restart: bool) -> None:
        assert not no_restart
        killed.append(actor)
        kill(actor)

    def wait(refs: Sequence[Ref], num_returns: int, timeout: float | None = None) -> Any:
        return _wait(refs, num_returns, timeout=0)

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "kill", kill_silent)
    second.start_id = None
    assert world.connections.wait() == [EngineDown(1)]
    assert killed == [second]
    assert world.notes[0].startswith("vLLM engine 1 does not answer and is ended")
    assert first.start_id == "a0"


def test_an_engine_is_told_what_to_do_when_it_is_asked(world: World) -> None:
    """One call in place of three. With its question open, calls of their own."""
    connections, (first, second) = world.connections, world.actors
    calls: list[Any] = []
    second.stop = Remote(lambda requests: calls.append(("stop", requests)) or Ref())
    second.submit = Remote(lambda jobs, setup: calls.append(("submit", jobs, setup)) or Ref())
    first.last["answers"].set([Answer(Request(3, 0), 5, (0, 0))])
    connections.wait()
    first.answers = Remote(lambda *told: calls.append(("answers", *told)) or Ref([Answer(JOB.request, 5, (0, 0))]))
    for engine in (0, 1):
        connections.stop(engine, [Request(2, 7)])
        connections.submit(engine, [JOB], "setup")
        connections.submit(engine, [JOB], "setup")
    connections.wait()
    told = ([Request(2, 7)], [JOB, JOB], "setup")
    assert calls == [("answers", *told), ("stop", told[0]), ("submit", *told[1:])]
    connections.wait()
    assert calls[3:] == [("answers", [], [], None)], "once"


def test_a_busy_driver_reads_calls_that_failed(world: World) -> None:
    """Answers keep coming, so it never waits; a call that nobody answers must not stay unread."""
    connections, (first, second) = world.connections, world.actors
    answer = [Answer(Request(3, 0), 5, (0, 0))]
    first.last["answers"].set(answer)
    first.answers = Remote(lambda *told: Ref(answer))
    results = iter([None, RuntimeError("no such tokenizer"), *[None] * CALLS_AT_A_TIME])
    second.submit = Remote(lambda jobs, setup: Ref(next(results)))
    for _ in range(CALLS_AT_A_TIME):
        connections.submit(1, [JOB], None)
        assert len(connections.wait()) == 1
    connections.submit(1, [JOB], None)
    with pytest.raises(RuntimeError, match="no such tokenizer"):
        connections.wait()


def test_an_engine_that_cannot_start_says_why_in_one_line(world: World) -> None:
    trace = "The actor died because of an error raised in its creation task, ray::A.__init__()\n  File engine.py\n"
    gone = ActorDiedError()
    gone.error_msg, gone._actor_init_failed = f"{trace}NoRoomError: vLLM needs 70% of the memory", True
    kill(world.actors[1])
    world.connections.wait()
    world.actors[1].last["ready"].set(gone)
    with pytest.raises(EngineLostError) as error:
        world.connections.wait()
    assert str(error.value) == "vLLM engine 1 did not start: NoRoomError: vLLM needs 70% of the memory"
