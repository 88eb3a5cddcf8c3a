"""Engines whose workers are processes that keep the weights they receive, where tests need no vLLM."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from engines import Remote
from ray.exceptions import RayActorError, RayError, RayTaskError

from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.manifest import Manifest, TensorSpec, bucket_size, unpack
from openrlhf_ada.weights.transport import Membership, join

CPU = torch.device("cpu")
SIZES = {
    "embed.weight": (7, 5),
    "layers.0.attn.q.weight": (5, 5),
    "layers.0.attn.k.weight": (5, 3),
    "head.weight": (9,),
}
MANIFEST = Manifest(tuple(TensorSpec(name, "float32", shape) for name, shape in SIZES.items()), bucket_bytes=200)


class Policy:
    """Four tensors in three buckets, other ones for every version."""

    manifest = MANIFEST

    def __init__(self) -> None:
        self.version = 0

    @contextmanager
    def gathered(self, bucket: Sequence[TensorSpec]) -> Iterator[list[torch.Tensor]]:
        yield [weights(self.version)[spec.name] for spec in bucket]


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.rand(shape, generator=generator) for name, shape in SIZES.items()}


Damage = Callable[[dict[str, torch.Tensor]], None]


def work(pipe: Connection, damage: Damage | None) -> None:
    """An engine's worker: joins, then receives as often as it is told to, and says what it got."""
    torch.set_num_threads(1)
    group: Any = None
    while True:
        what, value = pipe.recv()
        if what == "join":
            rank = value.pop("first_rank")
            group = join(Membership(rank=rank, **value), CPU)
            pipe.send(None)
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "receive":
            manifest = Manifest.from_plain(value)
            buckets = list(manifest.buckets())
            found: dict[str, torch.Tensor] = {}
            try:
                for bucket, packed in zip(buckets, group.arrivals([bucket_size(b) for b in buckets]), strict=True):
                    found |= {spec.name: t for spec, t in zip(bucket, unpack(bucket, packed), strict=True)}
            except RuntimeError as error:
                pipe.send(error)
                continue
            if damage is not None:
                damage(found)
            pipe.send(({n: t.tolist() for n, t in found.items()}, checksums(list(found.values()))))


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
    """The actor in front of a worker."""

    def __init__(self, damage: Damage | None = None) -> None:
        self.pipe, theirs = multiprocessing.get_context("fork").Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=work, args=(theirs, damage), daemon=True)
        self.process.start()
        theirs.close()
        self.received: dict[str, list[Any]] = {}
        self.version: int | None = None
        self.failure: Exception | None = None
        self.dies = False
        self.ready = Remote(lambda: call(lambda: "start id"))
        self.join_weight_group = Remote(lambda group: call(self._join(group)))
        self.begin_update = Remote(lambda: call(self._begin))
        self.receive_update = Remote(lambda manifest, *, sums: call(self._receive(manifest, sums=sums)))
        self.admit_update = Remote(lambda version: call(lambda: setattr(self, "version", version)))

    def _join(self, group: dict[str, Any]) -> Any:
        with suppress(BrokenPipeError):
            self.pipe.send(("join", group))

        def result() -> None:
            try:
                self.pipe.recv()
            except (EOFError, ConnectionResetError):
                raise RayActorError from None

        return result

    def _begin(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _receive(self, manifest: dict[str, Any], *, sums: bool) -> Any:
        self.pipe.send(("die", None) if self.dies else ("receive", manifest))

        def result() -> list[list[int]]:
            try:
                answer = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                raise RayActorError from None
            if isinstance(answer, RuntimeError):
                raise RayTaskError("receive_update", str(answer), answer)
            self.received, found = answer
            return [found] if sums else []

        return result
