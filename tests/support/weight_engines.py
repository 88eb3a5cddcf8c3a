"""Engines whose workers are processes that keep the weights they receive, where tests need no vLLM."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from engines import Remote
from ray.exceptions import RayActorError, RayError, RayTaskError

from openrlhf_ada.weights import gloo, sender, transport
from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.manifest import Manifest, TensorSpec
from openrlhf_ada.weights.receiver import JoinGroup, Update, WeightReceiver
from openrlhf_ada.weights.sender import WeightSync

CPU = torch.device("cpu")
SIZES = {
    "embed.weight": (7, 5),
    "layers.0.attn.q.weight": (5, 5),
    "layers.0.attn.k.weight": (5, 3),
    "head.weight": (9,),
}
MANIFEST = Manifest(tuple(TensorSpec(name, "float32", shape) for name, shape in SIZES.items()), bucket_bytes=112)


class Policy:
    """Four tensors in four buckets, since the first tensor is cut and the last two share one."""

    manifest = MANIFEST

    def __init__(self) -> None:
        self.version = 0

    @contextmanager
    def gathered(self, batch: Sequence[TensorSpec]) -> Iterator[list[torch.Tensor]]:
        yield [weights(self.version)[spec.name] for spec in batch]


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.rand(shape, generator=generator) for name, shape in SIZES.items()}


Damage = Callable[[dict[str, torch.Tensor]], None]


class Receiver(WeightReceiver):
    """Keeps what it would load."""

    def __init__(self, worker: int) -> None:
        self._group, self._growing, self.sums, self.device = None, None, [], CPU
        self.parallel_config: Any = SimpleNamespace(rank=worker)
        self.found: dict[str, torch.Tensor] = {}

    def _load(self, specs: Sequence[TensorSpec], tensors: list[torch.Tensor], *, sums: bool) -> None:
        self.found |= {spec.name: tensor.clone() for spec, tensor in zip(specs, tensors, strict=True)}

    def _check_complete(self, *, all_expected: bool) -> None:
        pass


def fall_ill(fault: str) -> None:
    """What becomes of a worker that is told to receive."""
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(600)
    if fault == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "memory":

        def empty(*_: Any, **__: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        # Where the next bucket is to arrive, outside of what loads it.
        torch.empty = torch.Tensor.clone = empty  # type: ignore[assignment]


def work(pipe: Connection, worker: int, damage: Damage | None, prepare: Callable[[int], None]) -> None:
    """An engine's worker: joins, then receives as often as it is told to, and says what it got."""
    # Stores of the parent have threads, which a copy cannot end.
    gc.freeze()
    prepare(worker)
    torch.set_num_threads(1)
    receiver = Receiver(worker)
    while True:
        what, value, fault = pipe.recv()
        try:
            if what == "join":
                receiver.init_transfer_engine(JoinGroup(**value))
                pipe.send(None)
                continue
            fall_ill(fault)
            receiver.receive_weights(Update(value, False))
        except Exception as error:  # noqa: BLE001 - told to whoever has asked
            pipe.send(f"{type(error).__name__}: {error}")
            continue
        found = receiver.found
        if damage is not None:
            damage(found)
        sums = checksums([found[name] for name in SIZES])
        pipe.send(({name: found[name].tolist() for name in SIZES}, sums))


def call(function: Callable[[], Any]) -> Future[Any]:
    """A method's call on its way."""
    future: Future[Any] = Future()

    def answer() -> None:
        try:
            future.set_result(function())
        except (RayError, EOFError, ConnectionResetError) as error:
            future.set_exception(error)

    threading.Thread(target=answer, daemon=True).start()
    return future


class Engine:
    """The actor in front of its workers. Their answers are read one after the other, as vLLM reads them.

    `faults`: by worker, what becomes of it when it is to receive (`fall_ill`). `prepare`: called in each.
    """

    def __init__(
        self, damage: Damage | None = None, *, workers: int = 1, prepare: Callable[[int], None] = lambda _: None
    ) -> None:
        fork = multiprocessing.get_context("fork")
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for worker in range(workers):
            ours, theirs = fork.Pipe()
            self.processes.append(fork.Process(target=work, args=(theirs, worker, damage, prepare), daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)
            theirs.close()
        self.received: dict[str, list[Any]] = {}
        self.version: int | None = None
        self.failure: Exception | None = None
        self.faults: dict[int, str] = {}
        self.ready = Remote(lambda: call(lambda: "start id"))
        self.join_weight_group = Remote(lambda group: call(self._ask("join", group)))
        self.begin_update = Remote(lambda: call(self._begin))
        self.receive_update = Remote(lambda manifest, *, sums, **_: call(self._receive(manifest, sums=sums)))
        self.admit_update = Remote(lambda version: call(lambda: setattr(self, "version", version)))

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def _ask(self, what: str, value: Any) -> Callable[[], list[Any]]:
        for worker, pipe in enumerate(self.pipes):
            with suppress(BrokenPipeError):
                pipe.send((what, value, self.faults.get(worker, "")))

        def answers() -> list[Any]:
            found: list[Any] = []
            for pipe in self.pipes:
                try:
                    found.append(pipe.recv())
                except (EOFError, ConnectionResetError):
                    raise RayActorError from None
                if isinstance(found[-1], str):
                    raise RayTaskError(what, found[-1], RuntimeError(found[-1]))
            return found

        return answers

    def _begin(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _receive(self, manifest: dict[str, Any], *, sums: bool) -> Callable[[], list[list[int]]]:
        answers = self._ask("receive", manifest)

        def result() -> list[list[int]]:
            found = answers()
            assert all(tensors == found[0][0] for tensors, _ in found)
            self.received = found[0][0]
            return [of for _, of in found] if sums else []

        return result


def connect(
    engines: list[Engine], verify: str = "always", *, backend: str = "gloo", limit_s: float = 60.0, senders: int = 1
) -> WeightSync:
    sync = WeightSync(backend, CPU, len(engines[0].pipes), verify, limit_s=limit_s, senders=senders)
    sync.connect(dict(enumerate(engines)))
    return sync


def replace_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's future stands for its reference. Members look ten times as often whether others have given up, and the
    dead are known to be dead soon. Before engines are made."""

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
    for module in (transport, gloo):
        monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(sender, "DEATH_S", 0.5)
