"""Weights from a policy to engine workers in processes of their own; whatever arrives wrongly is named.

vLLM's part is played by a worker that keeps what it receives. With the real one: tests/e2e/test_weight_sync.py.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from engines import Remote
from ray.exceptions import RayActorError, RayError, RayTaskError
from weight_engines import CPU, Damage, Engine, Policy, call, weights

from openrlhf_ada.weights import sender as weight_sync
from openrlhf_ada.weights.manifest import Manifest, TensorSpec
from openrlhf_ada.weights.receiver import Update, WeightReceiver
from openrlhf_ada.weights.sender import EngineGoneError, WeightSync, WeightSyncError
from openrlhf_ada.weights.transport import GlooGroup, _Broadcasts

pytestmark = pytest.mark.rehearsal


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(
        refs: list[Future[Any]], num_returns: int = 1, timeout: float | None = None, **_: Any
    ) -> tuple[list[Future[Any]], list[Future[Any]]]:
        until = futures.ALL_COMPLETED if num_returns == len(refs) else futures.FIRST_COMPLETED
        done = futures.wait(refs, timeout, until).done
        return [ref for ref in refs if ref in done][:num_returns], [ref for ref in refs if ref not in done]

    def get(ref: Any) -> Any:
        return [get(one) for one in ref] if isinstance(ref, list) else ref.result()

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))


@pytest.fixture
def started() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.process.kill()


def connect(engines: list[Engine], verify: str = "always") -> WeightSync:
    sync = WeightSync("gloo", CPU, 1, verify)
    sync.connect(dict(enumerate(engines)))
    return sync


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


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_tensor_is_named_and_no_engine_serves(started: list[Engine], mutant: str) -> None:
    damage, name = MUTANTS[mutant]
    started += [Engine(), Engine(damage)]
    sync = connect(started)
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine 1, worker 0: 1 of 4 tensors .* the first: {name}$"):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


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
    started[-1].process.kill()
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine {count - 1} failed while joining") as caught:
        connect(started)
    assert (type(caught.value) is EngineGoneError) == (count == 1)


@pytest.mark.parametrize("call_it_dies_in", ["ready", "begin_update"])
def test_engine_that_dies_before_sending_is_awaited(started: list[Engine], call_it_dies_in: str) -> None:
    def die() -> None:
        raise RayActorError

    started += [Engine(), Engine()]
    setattr(started[1], call_it_dies_in, Remote(lambda: call(die)))
    with pytest.raises(EngineGoneError, match=r"^vLLM engine 1 failed while"):
        connect(started).begin()


def test_a_receiver_holds_two_buckets_at_most() -> None:
    """One being loaded, one on its way: as many as there may be of the largest."""
    group = GlooGroup.__new__(GlooGroup)
    alive: set[int] = set()
    most = 0

    def begin(tensor: torch.Tensor) -> Callable[[], None]:
        nonlocal most
        key = tensor.data_ptr()
        alive.add(key)
        weakref.finalize(tensor, alive.discard, key)
        most = max(most, len(alive))
        return lambda: None

    class Receiver(WeightReceiver):
        def __init__(self) -> None:
            self._group, self.sums, self.device = group, [], CPU

        def _load(self, *_: Any, **__: Any) -> None:
            pass

        def _check_complete(self, **_: Any) -> None:
            pass

    specs = tuple(TensorSpec(f"layers.{i}.x.weight", "float32", (50,)) for i in range(9))
    manifest = Manifest(specs, bucket_bytes=200)
    _Broadcasts.__init__(group)
    group._device, group._start = CPU, begin
    Receiver().receive_weights(Update(manifest.to_plain(), False))
    assert most == 2


@pytest.mark.parametrize("count", [1, 2])
def test_engine_dead_while_receiving_is_named(started: list[Engine], count: int) -> None:
    """The others fail with it, since their connection to it is gone."""
    started += [Engine() for _ in range(count)]
    sync = connect(started)
    started[-1].dies = True
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine {count - 1} failed while receiving weights: "):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None] * count


def test_unnoticed_engine_death_ends_the_process(
    started: list[Engine], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As NCCL's, which waits for ever."""
    started.append(Engine())
    sync = connect(started)
    started[0].dies = True
    ended = threading.Event()
    monkeypatch.setattr(weight_sync, "GRACE_S", 0.05)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(sync._group, "publish", lambda packed: ended.wait(20))
    monkeypatch.setattr(sync._group, "finish", lambda: None)
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 0 failed while receiving weights"):
        sync.update(Policy(), 1)
    assert ended.is_set()
    assert (
        "the broadcast still waits after this: vLLM engine 0 failed while receiving weights" in capfd.readouterr().err
    )
