"""What our NCCL group stands on: vLLM's communicator and its packed transfer, run here over a stand-in for NCCL.

The stand-in (tests/support/nccl_stand_in.py) blocks, orders and aborts as NCCL does. The same engines over gloo:
tests/unit/test_weights_sender.py.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import nccl_stand_in
import pytest
import torch
from nccl_stand_in import Library, NcclError
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import nccl_common, nccl_engine, packed_tensor, sharded_rdt_common
from weight_engines import CPU, Engine, Policy, connect, replace_ray, weights

from openrlhf_ada.weights.nccl import NcclGroup
from openrlhf_ada.weights.sender import WeightSyncError
from openrlhf_ada.weights.transport import Membership, TransportError

pytestmark = pytest.mark.rehearsal

NAMES = ("the policy", "vLLM engine 0, worker 0")


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_ray(monkeypatch)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl_stand_in.install(monkeypatch.setattr)


@pytest.fixture
def started(stand_in: None) -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.kill()


# -- what vLLM has ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (nccl_common.stateless_init_process_group, ["master_address", "master_port", "rank", "world_size", "device"]),
        (
            packed_tensor.packed_nccl_broadcast_producer,
            ["iterator", "group", "src", "post_iter_func", "buffer_size_bytes", "num_buffers"],
        ),
        (
            packed_tensor.packed_nccl_broadcast_consumer,
            ["iterator", "group", "src", "post_unpack_func", "buffer_size_bytes", "num_buffers", "device"],
        ),
        (pynccl.PyNcclCommunicator.broadcast, ["self", "tensor", "src", "stream"]),
        (pynccl.PyNcclCommunicator.destroy, ["self"]),
    ],
)
def test_vllm_has_the_functions_that_we_call(function: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_vllms_own_engine_moves_its_bytes_by_the_same_functions() -> None:
    """So what we run is what vLLM's tests run."""
    receive = inspect.getsource(nccl_engine.NCCLWeightTransferEngine.receive_weights)
    assert "packed_nccl_broadcast_consumer(" in receive and "disable_mtp_completeness_check()" in receive
    send = inspect.getsource(nccl_engine.NCCLTrainerWeightTransferEngine._broadcast)
    assert "packed_nccl_broadcast_producer(" in send
    assert "stateless_init_process_group(" in inspect.getsource(nccl_common.worker_init_process_group)


def test_why_vllms_whole_engines_are_not_used() -> None:
    """docs/decisions.md, "NCCL and CUDA IPC: vLLM's functions". If one of these changes, look again."""
    trainer = nccl_engine.NCCLTrainerWeightTransferEngine
    send = inspect.getsource(trainer.send_weights)
    assert all(f"self.client.{call}" in send for call in ("start_weight_update", "update_weights", "finish"))
    receive = inspect.getsource(nccl_engine.NCCLWeightTransferEngine.receive_weights)
    assert receive.count("self.model.load_weights") == 2, "an error in it would leave the sender waiting"
    for engine in (trainer, nccl_engine.NCCLWeightTransferEngine):
        shutdown = inspect.getsource(engine.shutdown)
        assert "self.model_update_group = None" in shutdown and "destroy" not in shutdown, "dropped, never aborted"


def test_sharded_pulls_are_refused_with_our_ray() -> None:
    """docs/decisions.md, "No sharded pulls and no sparse updates"."""
    with pytest.raises(ValueError, match=re.escape(sharded_rdt_common.RDT_MIN_RAY_VERSION)):
        sharded_rdt_common.check_ray_rdt_version()


def test_vllms_communicator_sends_nothing_without_nccl() -> None:
    """On this machine there is none. It raises nothing either."""
    group = StatelessProcessGroup(0, 2, SimpleNamespace())
    communicator = pynccl.PyNcclCommunicator(group, CPU, library_path="libno_such_nccl.so")
    assert communicator.disabled
    assert communicator.broadcast(torch.zeros(1), src=0) is None


def test_vllms_destroy_aborts_and_disables() -> None:
    source = inspect.getsource(pynccl.PyNcclCommunicator.destroy)
    assert "self.nccl.ncclCommAbort(self.comm)" in source and "self.disabled = True" in source
    assert "abort_thread.join(timeout=5.0)" in source, "so it returns even if NCCL does not"


def test_vllm_asks_for_buckets_on_streams_of_its_own() -> None:
    """They do not wait for the stream on which the optimizer writes, and load in turns; `NcclGroup` adds the waits."""
    producer = inspect.getsource(packed_tensor.packed_nccl_broadcast_producer)
    assert producer.index("torch.cuda.stream(streams[buffer_idx])") < producer.index("pack_tensors(iterator")
    consumer = inspect.getsource(packed_tensor.packed_nccl_broadcast_consumer)
    assert "wait_stream" not in producer + consumer + inspect.getsource(packed_tensor.pack_tensors)


# -- without NCCL -----------------------------------------------------------------------------------------------------


def test_a_member_without_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = StatelessProcessGroup(0, 2, SimpleNamespace())
    missing = pynccl.PyNcclCommunicator(group, CPU, library_path="libno_such_nccl.so")
    monkeypatch.setattr(nccl_common, "stateless_init_process_group", lambda *_: missing)
    with pytest.raises(TransportError, match=r"^NCCL could not be loaded in the policy, .* VLLM_DISABLE_PYNCCL"):
        NcclGroup(Membership("nccl", "127.0.0.1", 1, 0, NAMES), CPU)


def test_nothing_is_sent_over_a_communicator_that_is_disabled_later(started: list[Engine]) -> None:
    started.append(Engine())
    sync = connect(started, backend="nccl")
    group: Any = sync._group
    group._communicator.disabled = True
    with pytest.raises(WeightSyncError, match="NCCL could not be loaded in the policy"):
        sync.update(Policy(), 1)
    assert started[0].version is None


# -- over the stand-in ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("count", "workers"), [(1, 1), (2, 2)])
def test_every_worker_gets_every_tensor_of_every_version(started: list[Engine], count: int, workers: int) -> None:
    started += [Engine(workers=workers) for _ in range(count)]
    sync, policy = connect(started, backend="nccl"), Policy()
    for policy.version in (3, 4):
        sync.update(policy, policy.version)
        for engine in started:
            assert engine.received == {name: t.tolist() for name, t in weights(policy.version).items()}
            assert engine.version == policy.version


def test_a_chunk_holds_twice_the_largest_bucket_at_most(
    started: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM closes a chunk when it exceeds the size: 112 and 32 bytes, then 112 and 112."""
    sizes: list[int] = []
    broadcast = NcclGroup.broadcast

    def counting(group: NcclGroup, tensor: torch.Tensor, src: int) -> None:
        sizes.append(tensor.numel())
        broadcast(group, tensor, src)

    monkeypatch.setattr(NcclGroup, "broadcast", counting)
    started.append(Engine())
    connect(started, backend="nccl").update(Policy(), 1)
    assert sizes == [112 + 32, 112 + 112]


@pytest.mark.slow
def test_old_communicators_are_aborted_before_new_ones_are_formed(started: list[Engine]) -> None:
    """At both ends, or the stand-in refuses to form one, as NCCL may. The other engines keep theirs meanwhile."""
    started += [Engine(), Engine()]
    sync, policy = connect(started, backend="nccl"), Policy()
    sync.update(policy, 1)
    started[1].kill()
    started[1] = Engine()
    sync.connect({1: started[1]})
    sync.update(policy, 2)
    assert [engine.version for engine in started] == [1, 2]
    sync.connect(dict(enumerate(started)))
    sync.update(policy, 3)
    assert [engine.version for engine in started] == [3, 3]
    assert [call for call in Library.log if call != "broadcast"] == ["init", "abort"] * 2 + ["init"]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["policy", "engine"])
def test_a_communicator_that_is_only_dropped_blocks_the_next(
    started: list[Engine], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """So the test above would notice."""
    close = NcclGroup.close

    def drop(group: NcclGroup) -> None:
        if (group._name == "the policy") is not (end == "policy"):
            close(group)

    monkeypatch.setattr(NcclGroup, "close", drop)
    started.append(Engine())
    sync = connect(started, backend="nccl")
    with pytest.raises((NcclError, WeightSyncError), match="a communicator that was not aborted"):
        sync.connect(dict(enumerate(started)))


@pytest.mark.slow
def test_an_engine_that_dies_in_the_middle_is_named(started: list[Engine]) -> None:
    """NCCL would wait for it for ever; the policy aborts."""
    started += [Engine(), Engine()]
    sync = connect(started, backend="nccl")
    started[1].faults = {0: "dies"}
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 1 failed while receiving weights"):
        sync.update(Policy(), 1)
    assert Library.log[-1] == "abort"


@pytest.mark.slow
def test_a_worker_that_fails_alone_ends_the_update_for_all(started: list[Engine]) -> None:
    """Worker 0 of its engine, whose answer is read first, waits in a broadcast; it is woken up."""
    started += [Engine(workers=2), Engine(workers=2)]
    sync = connect(started, backend="nccl")
    started[1].faults = {1: "memory"}
    with pytest.raises(
        WeightSyncError, match=r"^vLLM engine 1, worker 1 failed: OutOfMemoryError: CUDA out of memory"
    ):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


@pytest.mark.slow
def test_an_engine_that_never_answers_is_given_up_by_all(started: list[Engine]) -> None:
    started += [Engine(workers=2), Engine(workers=2)]
    sync = connect(started, backend="nccl", limit_s=3.0)
    started[1].faults = {0: "hangs"}
    with pytest.raises(
        WeightSyncError, match=r"^no weights have moved for 3 s; .*no answer from .*vLLM engine 1, worker 0"
    ):
        sync.update(Policy(), 1)
    assert Library.log[-1] == "abort"


@pytest.mark.slow
def test_engines_do_not_wait_for_ever_for_a_policy_that_stops(started: list[Engine]) -> None:
    """The policy's main thread hangs; its engine says so by itself."""
    started.append(Engine())
    sync = connect(started, backend="nccl", limit_s=3.0)
    told = started[0].receive_update.remote(Policy.manifest.to_plain(), sums=False)
    with pytest.raises(Exception, match=r"no weights have moved for 3 s; vLLM engine 0, worker 0 has waited"):
        told.result(timeout=30)
    del sync


def test_the_stand_in_matches_calls_by_their_order(stand_in: None) -> None:
    """It is no use if it would forgive what NCCL does not."""
    library = Library()
    unique = library.ncclGetUniqueId()
    ends: dict[int, Any] = {}

    def join(rank: int) -> None:
        Library.living.clear()
        ends[rank] = library.ncclCommInitRank(2, unique, rank)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
        thread.join(0.1)
    for thread in threads:
        thread.join()
    waiting = threading.Thread(target=ends[0].call, args=(1, memoryview(bytearray(4))))
    waiting.start()
    with pytest.raises(NcclError, match="is expected"):
        ends[1].call(1, memoryview(bytearray(8)))
    assert waiting.is_alive(), "until it is aborted"
    ends[0].aborted.set()
    waiting.join(5)
    assert not waiting.is_alive()
