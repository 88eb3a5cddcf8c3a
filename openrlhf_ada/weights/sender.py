"""Sends weight updates: the policy's first process sends all tensors to all engines and checks what arrived."""

# Ray's signatures name `ObjectRef` without its type.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any, Protocol, cast

import ray
import torch
from ray.exceptions import RayActorError, RayError

from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.manifest import Manifest, TensorSpec, bucket_size, pack
from openrlhf_ada.weights.transport import BroadcastGroup, Membership, join

GRACE_S = 20.0
"""Seconds that the broadcast has to notice that an engine is gone. NCCL never notices."""

POLL_S = 0.2
"""Seconds between checks of engines that are joining."""

DEATH_S = 10.0
"""Seconds until Ray knows that an actor has died."""

JOINING, RECEIVING = "joining the policy's broadcast group", "receiving weights"

STARTING, PREPARING = "starting", "preparing for an update"

Failure = tuple[int, RayError]
"""The engine's number and its error."""


class WeightSyncError(RuntimeError):
    """Weights did not reach an engine, or not unchanged. The message says which engine, in which phase, and why."""


class EngineGoneError(WeightSyncError):
    """An engine died before anything was sent."""


class WeightSource(Protocol):
    """The policy's weights. `gathered` is entered by all processes of the policy, one bucket after the other."""

    @property
    def manifest(self) -> Manifest: ...

    def gathered(self, bucket: Sequence[TensorSpec]) -> AbstractContextManager[list[torch.Tensor]]: ...


class WeightSync:
    """Updates over one broadcast group, made anew when `engines` change. For the policy's first process.

    `workers_per_engine`: tensor parallel size. `verify`: compare checksums of what was sent and what arrived `off`:
    never, `first`: in the first update over a group, `always`.
    """

    def __init__(self, backend: str, device: torch.device, workers_per_engine: int, verify: str) -> None:
        self._backend = backend
        self._device = device
        self._workers = workers_per_engine
        self._verify = verify
        self._engines: dict[int, Any] = {}
        self._group: BroadcastGroup | None = None
        self._is_verified = False

    def connect(self, engines: dict[int, Any]) -> None:
        """Form the group with these engines, by number; blocks until all have joined. Raises WeightSyncError."""
        # An engine that has died is known by now, or a death while joining would strand the others.
        _collect({number: engine.ready.remote() for number, engine in engines.items()}, STARTING)
        address = str(cast(Any, ray.util.get_node_ip_address()))
        world_size = 1 + len(engines) * self._workers
        group = Membership(self._backend, address, _free_port(), 0, world_size)
        refs: dict[int, Any] = {}
        for place, (number, engine) in enumerate(engines.items()):
            plain = asdict(group) | {"first_rank": 1 + place * self._workers}
            del plain["rank"]
            refs[number] = engine.join_weight_group.remote(plain)
        self._group = _join_group(group, self._device, refs)
        _collect(refs, JOINING)
        self._engines = engines
        self._is_verified = False

    def begin(self) -> None:
        """Let the engines prepare for an update; may be repeated if an engine has died. Raises WeightSyncError."""
        self._call("begin_update", PREPARING)

    def update(self, source: WeightSource, version: int) -> None:
        """Send all weights; engines sample with them afterwards, as version `version`. Raises WeightSyncError."""
        if self._group is None:
            raise RuntimeError("connect() comes first")
        manifest, sums = source.manifest, self._verifies()
        self.begin()
        received = self._start("receive_update", manifest.to_plain(), sums=sums)
        with _watching(received):
            try:
                with _one_thread():
                    sent = _send(source, self._group, self._device, sums=sums)
            except RuntimeError as error:
                # The broadcast only knows that a connection is gone, not which engine failed.
                failure = _first_failure(received, GRACE_S)
                raise error if failure is None else _failure_error(failure, received, RECEIVING) from error
        for number, workers in _collect(received, RECEIVING).items():
            for worker, arrived in enumerate(workers):
                _compare(manifest, sent, arrived, f"vLLM engine {number}, worker {worker}")
        self._call("admit_update", "taking new weights into use", version)
        self._is_verified = True

    def _verifies(self) -> bool:
        return self._verify == "always" or (self._verify == "first" and not self._is_verified)

    def _start(self, method: str, *args: Any, **kwargs: Any) -> dict[int, Any]:
        return {number: getattr(engine, method).remote(*args, **kwargs) for number, engine in self._engines.items()}

    def _call(self, method: str, phase: str, *args: Any) -> None:
        _collect(self._start(method, *args), phase)


def take_part(source: WeightSource) -> None:
    """To be called by the policy's other processes during an update: they hold some of the weights."""
    for bucket in source.manifest.buckets():
        with source.gathered(bucket):
            pass


def _send(source: WeightSource, group: BroadcastGroup, device: torch.device, *, sums: bool) -> list[int]:
    """Send all buckets; returns the checksums of their tensors (if `sums`)."""
    sent: list[int] = []
    for bucket in source.manifest.buckets():
        with source.gathered(bucket) as tensors:
            if sums:
                sent += checksums(tensors)
            packed = torch.empty(bucket_size(bucket), dtype=torch.uint8, device=device)
            pack(bucket, tensors, packed)
        group.publish(packed)
    group.finish()
    return sent


def _join_group(group: Membership, device: torch.device, refs: dict[int, Any]) -> BroadcastGroup:
    """Join, unless an engine fails to: gloo would wait for it for half an hour, NCCL for ever."""
    outcome: Future[BroadcastGroup] = Future()

    def run() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            outcome.set_result(join(group, device))
        except Exception as error:  # noqa: BLE001 - raised by outcome.result()
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True, name="ada-join").start()
    while not outcome.done():
        failure = _first_failure(refs, POLL_S)
        if failure is not None:
            raise _failure_error(failure, refs, JOINING)
        wait([outcome], POLL_S)
    return outcome.result()


@contextmanager
def _one_thread() -> Generator[None]:
    """Pack with one thread: engines on this machine load a bucket meanwhile, and need the other cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(manifest: Manifest, sent: Sequence[int], arrived: Sequence[int], engine: str) -> None:
    wrong = [
        tensor.name for tensor, one, other in zip(manifest.tensors, sent, arrived, strict=True) if one != other
    ]  # fmt: skip
    if wrong:
        raise WeightSyncError(
            f"{engine}: {len(wrong)} of {len(manifest.tensors)} tensors arrived with other values than were sent, "
            f"the first: {wrong[0]}"
        )


def _collect(refs: dict[int, Any], phase: str) -> dict[int, Any]:
    """What each engine answered; raises WeightSyncError naming the one that failed."""
    failure = _first_failure(refs)
    if failure is not None:
        raise _failure_error(failure, refs, phase)
    return {number: ray.get(ref) for number, ref in refs.items()}


def _failure_error(failure: Failure, refs: dict[int, Any], phase: str) -> WeightSyncError:
    """The error for a failed phase. If an engine has died, others fail too, perhaps earlier; the dead one is named."""
    if not isinstance(failure[1], RayActorError):
        ray.wait(list(refs.values()), num_returns=len(refs), timeout=DEATH_S)
        failures = [_first_failure({number: ref}, 0) for number, ref in refs.items()]
        failure = next((found for found in failures if found and isinstance(found[1], RayActorError)), failure)
    number, error = failure
    # Other engines that were joining now wait for the dead one and cannot be called, so that cannot be repeated.
    can_be_repeated = phase in (STARTING, PREPARING) or (phase == JOINING and len(refs) == 1)
    kind = EngineGoneError if isinstance(error, RayActorError) and can_be_repeated else WeightSyncError
    return kind(f"vLLM engine {number} failed while {phase}: {error}")


@contextmanager
def _watching(refs: dict[int, Any]) -> Generator[None]:
    """End this process, with the reason, if an engine is gone and the broadcast to it does not notice."""
    done = threading.Event()

    def watch() -> None:
        failure = _first_failure(refs)
        if failure is not None and not done.wait(GRACE_S):
            sys.stderr.write(f"the broadcast still waits after this: {_failure_error(failure, refs, RECEIVING)}\n")
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="ada-weights").start()
    try:
        yield
    finally:
        done.set()


def _first_failure(refs: dict[int, Any], timeout: float | None = None) -> Failure | None:
    """The first failure among these calls; None if all succeeded, or none failed within `timeout` seconds."""
    pending = {ref: number for number, ref in refs.items()}
    while pending:
        ended = cast(list[Any], ray.wait(list(pending), timeout=timeout, fetch_local=False)[0])
        if not ended:
            return None
        try:
            ray.get(ended[0])
        except RayError as error:
            return pending[ended[0]], error
        del pending[ended[0]]
    return None


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
