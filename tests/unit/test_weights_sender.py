"""Weights from a policy to engine workers in processes of their own; whatever arrives wrongly is named.

vLLM's part is played by a worker that keeps what it receives. With the real one: tests/e2e/test_weight_sync.py.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from engines import Remote
from ray.exceptions import RayActorError, RayError, RayTaskError
from weight_engines import CPU, Damage, Engine, Policy, Receiver, call, connect, replace_ray, weights

from openrlhf_ada.weights import sender as weight_sync
from openrlhf_ada.weights import transport
from openrlhf_ada.weights.gloo import GlooGroup, Transfer
from openrlhf_ada.weights.manifest import Manifest, TensorSpec
from openrlhf_ada.weights.receiver import Update
from openrlhf_ada.weights.sender import EngineGoneError, WeightSyncError
from openrlhf_ada.weights.transport import Group, Membership, Take, TransportError

pytestmark = pytest.mark.rehearsal


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_ray(monkeypatch)


@pytest.fixture
def started() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    # A group that is collected waits for its last broadcast, which may only end with the engines.
    gc.disable()
    yield engines
    for engine in engines:
        engine.kill()
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_every_engine_gets_every_tensor_of_every_version(started: list[Engine], count: int) -> None:
    started += [Engine() for _ in range(count)]
    sync, policy = connect(started), Policy()
    for policy.version in (3, 4, 5):
        sync.update(policy, policy.version)
        for engine in started:
            assert engine.received == {name: t.tolist() for name, t in weights(policy.version).items()}
            assert engine.version == policy.version


# -- what arrives wrongly ---------------------------------------------------------------------------------------------


def _change_one(found: dict[str, torch.Tensor]) -> None:
    found["layers.0.attn.k.weight"][2, 1] += 1e-6


def _exchange(found: dict[str, torch.Tensor]) -> None:
    q = found["layers.0.attn.q.weight"]
    q[[0, 1]] = q[[1, 0]]


def _stale(found: dict[str, torch.Tensor]) -> None:
    found["head.weight"].copy_(weights(-1)["head.weight"])


def _half(found: dict[str, torch.Tensor]) -> None:
    found["embed.weight"][3:] = 0


def _half_precision(found: dict[str, torch.Tensor]) -> None:
    found["embed.weight"] = found["embed.weight"].bfloat16().float()


MUTANTS: dict[str, tuple[Damage, str]] = {
    "one value": (_change_one, "layers.0.attn.k.weight"),
    "two rows exchanged": (_exchange, "layers.0.attn.q.weight"),
    "a stale tensor": (_stale, "head.weight"),
    "half a tensor": (_half, "embed.weight"),
    "rounded": (_half_precision, "embed.weight"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_tensor_is_named_and_no_engine_serves(started: list[Engine], mutant: str) -> None:
    damage, name = MUTANTS[mutant]
    started += [Engine(), Engine(damage)]
    sync = connect(started)
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine 1, worker 0: 1 of 4 tensors .* the first: {name}$"):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize(("verify", "checked"), [("off", [False] * 3), ("first", [True, False, False])])
def test_checksums_are_compared_as_often_as_asked_for(
    started: list[Engine], monkeypatch: pytest.MonkeyPatch, verify: str, checked: list[bool]
) -> None:
    """And from the start again over a new group, whose engines may be others."""
    compared: list[str] = []
    monkeypatch.setattr(weight_sync, "_compare", lambda *args: compared.append(args[-1]))
    started.append(Engine())
    sync = connect(started, verify)
    for turn in range(2):
        found: list[bool] = []
        for _ in checked:
            sync.update(Policy(), 0)
            found.append(bool(compared))
            compared.clear()
        assert found == checked
        if turn == 0:
            sync.connect(dict(enumerate(started)))


@pytest.mark.slow
@pytest.mark.parametrize("error", [RayTaskError("f", "3 rollouts are on their way", ValueError()), RayActorError()])
def test_refusing_engine_is_named_before_sending(started: list[Engine], error: RayError) -> None:
    started += [Engine(), Engine()]
    sync = connect(started)
    started[1].failure = error
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 1 failed while preparing for an update: "):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


@pytest.mark.parametrize("count", [1, 2])
def test_engine_that_dies_joining_is_not_awaited(started: list[Engine], count: int) -> None:
    """Alone, it may be sent its weights when Ray has started it again; others would wait for it in their join."""
    started += [Engine() for _ in range(count)]
    started[-1].kill()
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine {count - 1} failed while joining") as caught:
        connect(started)
    assert (type(caught.value) is EngineGoneError) == (count == 1)


@pytest.mark.slow
def test_an_engine_that_does_not_join_is_named_after_a_while(started: list[Engine]) -> None:
    started += [Engine(), Engine()]
    never = threading.Event()
    started[1].join_weight_group = Remote(lambda group: call(never.wait))
    with pytest.raises(WeightSyncError, match=r"^.*vLLM engine 1: no answer for 2 s while joining the policy's"):
        connect(started, limit_s=2.0)
    never.set()


@pytest.mark.slow
@pytest.mark.parametrize("call_it_dies_in", ["ready", "begin_update"])
def test_engine_that_dies_before_sending_is_awaited(started: list[Engine], call_it_dies_in: str) -> None:
    def die() -> None:
        raise RayActorError

    started += [Engine(), Engine()]
    setattr(started[1], call_it_dies_in, Remote(lambda: call(die)))
    with pytest.raises(EngineGoneError, match=r"^vLLM engine 1 failed while"):
        connect(started).begin()


def member(rank: int, limit_s: float = 60.0) -> Membership:
    return Membership("gloo", "", 0, rank, ("the policy", "vLLM engine 0, worker 0"), limit_s)


class Store:
    """Nobody else is in the group."""

    def check(self, keys: list[str]) -> bool:
        return False


def test_a_receiver_holds_two_buckets_at_most() -> None:
    """One being loaded, one on its way."""
    alive: set[int] = set()
    most = 0

    class Alone(GlooGroup):
        def __init__(self) -> None:
            self._device = CPU
            Group.__init__(self, member(1), Store())

        def _start(self, bucket: torch.Tensor) -> Transfer:
            nonlocal most
            key = bucket.data_ptr()
            alive.add(key)
            weakref.finalize(bucket, alive.discard, key)
            most = max(most, len(alive))
            return bucket, bucket, None

        def _wait(self, transfer: Transfer) -> None:
            pass

    specs = tuple(TensorSpec(f"layers.{i}.x.weight", "float32", (50,)) for i in range(9))
    receiver: Any = Receiver(0)
    receiver._load = lambda *_, **__: None
    receiver._group = Alone()
    receiver.receive_weights(Update(Manifest(specs, bucket_bytes=208).to_plain(), False))
    assert most == 2


class LateWork:
    """A broadcast that ends just after a wait for it was over."""

    def __init__(self, error: str) -> None:
        self._error, self.waits = error, 0

    def is_completed(self) -> bool:
        return self.waits > 0

    def wait(self, timeout: object = None) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self._error:
            raise RuntimeError(self._error)


@pytest.mark.parametrize("error", ["", "connection closed by peer"])
def test_a_bucket_that_arrives_as_the_wait_ends_has_arrived(error: str) -> None:
    """A run on a busy machine was ended by "Operation timed out!", with all of its bucket sent."""
    group: Any = GlooGroup.__new__(GlooGroup)
    group._stopped = threading.Event()
    Group.__init__(group, member(0), Store())
    work = LateWork(error)
    transfer = (torch.empty(0), torch.empty(0), work)
    if error:
        with pytest.raises(RuntimeError, match=error):
            group._wait(transfer)
    else:
        group._wait(transfer)
    assert work.waits == 2


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_engine_dead_while_receiving_is_named(started: list[Engine], count: int) -> None:
    """The others fail with it, since their connection to it is gone."""
    started += [Engine() for _ in range(count)]
    sync = connect(started)
    started[-1].faults = {0: "dies"}
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine {count - 1} failed while receiving weights: "):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None] * count


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo"])
def test_a_worker_that_fails_alone_ends_the_update_for_all(started: list[Engine], backend: str) -> None:
    """Its memory is full where the next bucket is to arrive. The engine's answers are read from worker 0 on."""
    started += [Engine(workers=2), Engine(workers=2)]
    sync = connect(started, backend=backend)
    started[1].faults = {1: "memory"}
    with pytest.raises(WeightSyncError, match=r"vLLM engine 1, worker 1 failed: OutOfMemoryError: CUDA out of memory"):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "stops"])
def test_an_engine_that_never_answers_is_named_after_a_while(started: list[Engine], fault: str) -> None:
    started += [Engine(workers=2), Engine(workers=2)]
    sync = connect(started, limit_s=3.0)
    started[1].faults = {0: fault}
    with pytest.raises(
        WeightSyncError, match=r"^no weights have moved for 3 s; .*no answer from .*vLLM engine 1, worker 0"
    ):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


@pytest.mark.slow
def test_an_engine_that_does_not_prepare_is_named_after_a_while(started: list[Engine]) -> None:
    started += [Engine(), Engine()]
    sync = connect(started)
    sync._limit_s = 0.2
    never = threading.Event()
    started[1].begin_update = Remote(lambda: call(never.wait))
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 1: no answer for 0.2 s while preparing"):
        sync.begin()
    never.set()


@pytest.mark.slow
def test_a_member_gives_up_even_if_it_can_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the policy is out of reach: the store does not answer either."""
    woken = threading.Event()

    class Unreachable:
        def check(self, keys: list[str]) -> bool:
            return bool(threading.Event().wait())

    class Waiting(Group):
        def __init__(self) -> None:
            super().__init__(member(1, 0.1), Unreachable())

        def _receive(self, sizes: Sequence[int], take: Take) -> None:
            woken.wait()

        def _stop(self) -> None:
            woken.set()

    monkeypatch.setattr(transport, "PUBLISH_S", 0.1)
    with pytest.raises(TransportError, match=r"^no weights have moved for 0.1 s; vLLM engine 0, worker 0 has waited"):
        Waiting().receive([], lambda bucket: None)


def test_a_reason_stays_that_is_found_while_the_others_are_asked() -> None:
    """One thread waits for the store's answer, another finds that nothing moves. The answer "nobody gave up" came
    last and was kept, so that the policy blamed its own abort, and an engine that had only waited.
    """

    class Slow(Store):
        def check(self, keys: list[str]) -> bool:
            group._stalled()
            return False

    group: Any = Group(member(0, -1.0), Slow())
    assert re.search(r" -1 s; the policy ", str(group._reason_from_all()))
    assert not group._give_up("aborted") and " -1 s; the policy " in group._reason


@pytest.mark.slow
def test_a_transfer_that_does_not_end_ends_the_process(
    started: list[Engine], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As one that not even an abort wakes up."""
    started.append(Engine())
    sync = connect(started)
    started[0].faults = {0: "dies"}
    ended = threading.Event()
    monkeypatch.setattr(weight_sync, "GRACE_S", 0.05)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(sync._group, "_send", lambda sizes, buckets: ended.wait(20))
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 0 failed while receiving weights"):
        sync.update(Policy(), 1)
    assert ended.is_set()
    assert (
        "the transfer does not end after this: vLLM engine 0 failed while receiving weights" in capfd.readouterr().err
    )
