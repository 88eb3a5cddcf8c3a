"""Sends weight updates: the policy's first process sends all tensors to all engines and checks what arrived."""

# Ray's signatures name `ObjectRef` without its type.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol, cast

import ray
import torch
from ray.exceptions import RayActorError, RayError

from openrlhf_ada.host.ports import free_port
from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.gloo import join
from openrlhf_ada.weights.manifest import Bucket, Manifest, TensorSpec, pack
from openrlhf_ada.weights.transport import LIMIT_S, Group, Membership, TransportError

GRACE_S = 20.0
"""Seconds that a transfer has to end when it was given up, and that engines then have to say why."""

POLL_S = 0.2
"""Seconds between checks of engines that are joining."""

DEATH_S = 10.0
"""Seconds until Ray knows that an actor has died."""

JOINING, RECEIVING = "joining the policy's broadcast group", "receiving weights"

STARTING, PREPARING, ADMITTING = "starting", "preparing for an update", "taking new weights into use"

Failure = tuple[int, RayError]
"""The engine's number and its error."""


class WeightSyncError(RuntimeError):
    """Weights did not reach an engine, or not unchanged. The message says which engine, in which phase, and why.

    `is_death`: the engine's process is gone.
    """

    is_death = False


class EngineGoneError(WeightSyncError):
    """An engine died before anything was sent."""


class WeightSource(Protocol):
    """The policy's weights. `gathered` is entered by all processes of the policy, one batch after the other."""

    @property
    def manifest(self) -> Manifest: ...

    def gathered(self, batch: Sequence[TensorSpec]) -> AbstractContextManager[list[torch.Tensor]]: ...


class WeightSync:
    """Updates over one broadcast group, made anew when `engines` change. For the policy's first process.

    `workers_per_engine`: tensor parallel size. `verify`: compare checksums of what was sent and what arrived `off`:
    never, `first`: in the first update over a group, `always`. `limit_s`: how long engines and transfers may show no
    sign of progress. `senders`: processes of the policy that send, each to the worker on its GPU (`send_along`).
    """

    membership: Membership
    """Of the policy's first process in the group of now."""

    def __init__(
        self,
        backend: str,
        device: torch.device,
        workers_per_engine: int,
        verify: str,
        *,
        limit_s: float = LIMIT_S,
        senders: int = 1,
    ) -> None:
        self._backend = backend
        self._device = device
        self._workers = workers_per_engine
        self._verify = verify
        self._limit_s = limit_s
        self._senders = senders
        self._engines: dict[int, Any] = {}
        self._group: Group | None = None
        self._is_verified = False

    def connect(self, engines: dict[int, Any]) -> None:
        """Form the group with these engines, by number; blocks until all have joined. Raises WeightSyncError."""
        # An engine that has died is known by now, or a death while joining would strand the others.
        _collect({number: engine.ready.remote() for number, engine in engines.items()}, STARTING)
        self._leave()
        address = str(cast(Any, ray.util.get_node_ip_address()))
        workers = [_worker_name(number, w) for number in engines for w in range(self._workers)]
        names = ["the policy", *workers, *(f"the policy's process {n}" for n in range(1, self._senders))]
        self.membership = group = Membership(
            self._backend, address, free_port(), 0, names, self._limit_s, self._senders
        )
        plain = {name: value for name, value in asdict(group).items() if name != "rank"}
        refs = {
            number: engine.join_weight_group.remote({"group": plain, "first_rank": 1 + place * self._workers})
            for place, (number, engine) in enumerate(engines.items())
        }
        self._group = _join_group(group, self._device, refs)
        _collect(refs, JOINING, self._limit_s)
        self._engines = engines
        self._is_verified = False

    def _leave(self) -> None:
        """Each end leaves its old group before it joins the next one, which NCCL may not form otherwise."""
        if self._group is not None:
            self._group.close()
        self._group = None

    def begin(self) -> None:
        """Let the engines prepare for an update; may be repeated if an engine has died. Raises WeightSyncError."""
        self._call("begin_update", PREPARING)

    def update(self, source: WeightSource, version: int) -> None:
        """Send all weights; engines sample with them afterwards, as version `version`. Raises WeightSyncError."""
        if self._group is None:
            raise RuntimeError("connect() comes first")
        manifest = source.manifest
        sums = self._verify == "always" or (self._verify == "first" and not self._is_verified)
        self.begin()
        received = _ask(self._engines, "receive_update", manifest.to_plain(), sums=sums, is_untrained=version == 0)
        with _watching(received, self._group):
            try:
                with _one_thread():
                    sent = _send(source, self._group, self._device, sums=sums)
            except RuntimeError as error:
                raise _named(error, received) from error
        for number, workers in _collect(received, RECEIVING, self._limit_s).items():
            for worker, arrived in enumerate(workers):
                _compare(manifest, sent, arrived, _worker_name(number, worker))
        self._call("admit_update", ADMITTING, version)
        self._is_verified = True

    def _call(self, method: str, phase: str, *args: Any) -> None:
        _collect(_ask(self._engines, method, *args), phase, self._limit_s)


def _ask(engines: Mapping[int, Any], method: str, *args: Any, **kwargs: Any) -> dict[int, Any]:
    return {number: getattr(engine, method).remote(*args, **kwargs) for number, engine in engines.items()}


def take_part(source: WeightSource) -> None:
    """To be called by the policy's other processes during an update: they hold some of the weights."""
    for batch in source.manifest.batches():
        with source.gathered(batch):
            pass


def send_along(source: WeightSource, first: Membership, number: int, device: torch.device) -> None:
    """As `take_part`, where each of the policy's processes sends to the worker on its own GPU. `first`: the membership
    of the policy's first process; `number`: this process's."""
    group = join(replace(first, rank=first.world_size - first.senders + number), device)
    try:
        _send(source, group, device, sums=False)
    finally:
        group.close()


def _send(source: WeightSource, group: Group, device: torch.device, *, sums: bool) -> list[int]:
    """Send all buckets; returns the checksums of their tensors (if `sums`)."""
    sent: list[int] = []
    sizes = [bucket.size for bucket in source.manifest.buckets()]
    with closing(_packed(source, device, sent if sums else None)) as buckets:
        group.send(sizes, buckets)
    return sent


def _packed(source: WeightSource, device: torch.device, sent: list[int] | None) -> Generator[torch.Tensor]:
    """All buckets, each as it is asked for; checksums of their tensors are added to `sent`."""
    manifest = source.manifest
    for batch in manifest.batches():
        buckets = list(manifest.cut(batch))
        with source.gathered(batch) as tensors:
            if sent is not None:
                sent += checksums(tensors)
            if len(buckets) > 1:
                tensors = [tensor.contiguous() for tensor in tensors]
            by_name = {spec.name: tensor for spec, tensor in zip(batch, tensors, strict=True)}
            for bucket in buckets[:-1]:
                yield _pack(bucket, by_name, device)
            last = _pack(buckets[-1], by_name, device)
        # What was gathered is free again while this one travels.
        del tensors, by_name
        yield last


def _pack(bucket: Bucket, tensors: Mapping[str, torch.Tensor], device: torch.device) -> torch.Tensor:
    packed = torch.empty(bucket.size, dtype=torch.uint8, device=device)
    pack(bucket, [tensors[spec.name] for spec in bucket.tensors], packed)
    return packed


def _join_group(group: Membership, device: torch.device, refs: dict[int, Any]) -> Group:
    """Join, unless an engine fails to: gloo would wait for it for half an hour, NCCL for ever."""
    outcome: Future[Group] = Future()

    def run() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            outcome.set_result(join(group, device))
        except Exception as error:  # noqa: BLE001 - raised by outcome.result()
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True, name="ada-join").start()
    deadline = time.monotonic() + group.limit_s
    while not outcome.done():
        failure = _first_failure(refs, POLL_S)
        if failure is not None:
            raise _failure_error(failure, refs, JOINING)
        if time.monotonic() > deadline:
            raise _silence_error(refs, JOINING, group.limit_s)
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


def _worker_name(engine: int, worker: int) -> str:
    return f"vLLM engine {engine}, worker {worker}"


def _collect(refs: dict[int, Any], phase: str, limit_s: float | None = None) -> dict[int, Any]:
    """What each engine answered. Raises WeightSyncError naming the one that failed, or all silent for `limit_s`."""
    failure = _first_failure(refs, limit_s)
    if failure is not None:
        raise _failure_error(failure, refs, phase)
    if _unanswered(refs):
        raise _silence_error(refs, phase, cast(float, limit_s))
    return {number: ray.get(ref) for number, ref in refs.items()}


def _unanswered(refs: dict[int, Any]) -> list[int]:
    answered = cast(list[Any], ray.wait(list(refs.values()), num_returns=len(refs), timeout=0, fetch_local=False)[0])
    return [number for number, ref in refs.items() if ref not in answered]


def _silence_error(refs: dict[int, Any], phase: str, limit_s: float) -> WeightSyncError:
    silent = ", ".join(f"vLLM engine {number}" for number in _unanswered(refs))
    return WeightSyncError(
        f"{silent}: no answer for {limit_s:g} s while {phase}. Look for the last lines of its workers with --verbose; "
        f"one may be out of memory"
    )


def _named(error: RuntimeError, received: dict[int, Any]) -> Exception:
    """Whose fault it is that sending has failed: that of an engine that has died, else what the members say."""
    failure = _first_failure(received, GRACE_S)
    named = None if failure is None else _failure_error(failure, received, RECEIVING)
    if named is not None and named.is_death:
        return named
    if isinstance(error, TransportError) and (named is None or not error.is_own):
        return WeightSyncError(str(error))
    # Gloo only knows that a connection is gone, not which engine failed.
    return named or error


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
    found = kind(f"vLLM engine {number} failed while {phase}: {error}")
    found.is_death = isinstance(error, RayActorError)
    return found


@contextmanager
def _watching(refs: dict[int, Any], group: Group) -> Generator[None]:
    """If an engine is gone, give up the transfer to it; end this process, with the reason, if that does not end it."""
    done = threading.Event()

    def watch() -> None:
        failure = _first_failure(refs)
        if failure is None or done.is_set():
            return
        reason = str(_failure_error(failure, refs, RECEIVING))
        group.give_up(reason)
        if not done.wait(GRACE_S):
            sys.stderr.write(f"the transfer does not end after this: {reason}\n")
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
