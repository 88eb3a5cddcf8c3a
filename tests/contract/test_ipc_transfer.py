"""What weights through memory of a shared GPU stand on: vLLM's packed CUDA IPC, run here over mapped files.

The stand-in is tests/support/ipc_stand_in.py. The same engines over gloo: tests/unit/test_weights_sender.py.
"""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipc_stand_in
import pytest
import torch
from torch.multiprocessing import reductions
from vllm.config import VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer import ipc_engine, packed_tensor
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from weight_engines import CPU, Engine, Policy, connect, fall_ill, replace_ray, weights

from openrlhf_ada.host.ports import free_port
from openrlhf_ada.weights import ipc
from openrlhf_ada.weights import sender as weight_sync
from openrlhf_ada.weights.ipc import CLASSES, IpcGroup
from openrlhf_ada.weights.manifest import TensorSpec
from openrlhf_ada.weights.policy_side import PolicyWeights
from openrlhf_ada.weights.receiver import BACKEND, JoinGroup, Update, WeightReceiver
from openrlhf_ada.weights.sender import WeightSync, WeightSyncError, send_along
from openrlhf_ada.weights.transport import SHARED, Membership

pytestmark = pytest.mark.rehearsal


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_ray(monkeypatch)
    monkeypatch.setattr(weight_sync, "GRACE_S", 5.0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Engine]]:
    ipc_stand_in.install(monkeypatch.setattr)
    monkeypatch.setattr(ipc_stand_in, "FOLDER", tmp_path)
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.kill()
    ipc_stand_in.remove_all()


def on(*gpus: int) -> dict[str, Any]:
    """An engine with a worker on each of these GPUs."""
    return {"workers": len(gpus), "prepare": lambda worker: ipc_stand_in.be_on(f"GPU-{gpus[worker]}")}


# -- what vLLM and torch have -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (packed_tensor.packed_ipc_producer, ["iterator", "gpu_uuid", "post_iter_func", "buffer_size_bytes"]),
        (
            packed_tensor.packed_ipc_consumer,
            ["ipc_handle", "names", "shapes", "dtype_names", "tensor_sizes", "device_index", "importer"],
        ),
        (packed_tensor.PackedBufferImporter.close, ["self"]),
    ],
)
def test_vllm_has_the_functions_that_we_call(function: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_vllms_own_engine_moves_its_bytes_by_the_same_functions() -> None:
    """So what we run is what vLLM's tests run."""
    worker, trainer = ipc_engine.IPCWeightTransferEngine, ipc_engine.IPCTrainerWeightTransferEngine
    receive = inspect.getsource(worker.receive_weights)
    assert "packed_ipc_consumer(" in receive and "disable_mtp_completeness_check()" in receive
    assert "importer=self._packed_importer" in receive, "one mapping for all chunks"
    assert "initialize_layerwise_reload(self.model)" in inspect.getsource(worker.start_weight_update)
    assert "packed_ipc_producer(" in inspect.getsource(trainer._send_packed)
    assert "torch.cuda.ipc_collect()" in inspect.getsource(trainer._post_send_sync)
    assert "get_device_properties(self.device_index).uuid" in inspect.getsource(trainer.__init__)


def test_why_vllms_whole_engines_are_not_used() -> None:
    """docs/decisions.md, "NCCL and CUDA IPC: vLLM's functions". If one changes, look again."""
    trainer = ipc_engine.IPCTrainerWeightTransferEngine
    send = inspect.getsource(trainer.send_weights)
    calls = ["self.client.start_weight_update()", "self._send(source)", "self.client.finish_weight_update()"]
    assert [send.index(call) for call in calls] == sorted(send.index(call) for call in calls), "nothing is compared"
    assert "self._do_send(" in inspect.getsource(trainer._send_packed), "a call to the engines for every chunk"


def test_vllm_waits_before_a_chunk_is_handed_over_and_copies_it_at_the_other_end() -> None:
    """Its reload keeps tensors of a layer, and the sender writes over the buffer meanwhile."""
    producer = inspect.getsource(packed_tensor.packed_ipc_producer)
    assert producer.count("torch.cuda.current_stream().synchronize()") == producer.count("yield PackedIpcChunk") == 2
    assert "t.clone()" in inspect.getsource(packed_tensor.packed_ipc_consumer)


def test_a_handle_holds_nothing_but_plain_values_and_three_classes() -> None:
    """So that it is sent without pickle."""
    parameters = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    assert [parameters[place] for place in CLASSES] == ["tensor_cls", "storage_cls", "dtype"]
    kinds = [type(torch.empty(1)), type(torch.empty(1)._typed_storage()), torch.uint8]
    assert kinds == list(CLASSES.values())
    source = inspect.getsource(reductions.reduce_tensor)
    assert "type(tensor),\n" in source and "type(storage),\n" in source
    handle = [torch.Tensor, torch.Size([4]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 0, b"handle", False]
    assert literal_eval(repr(ipc._as_plain(handle))) == [None, (4,), (1,), 0, None, None, 0, b"handle", False]


JOIN = """
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
from vllm.v1.worker import cpu_worker, gpu_worker
from openrlhf_ada.weights.receiver import PolicyWeightsExtension as extension
for worker in (cpu_worker.CPUWorker, gpu_worker.Worker):
    assert not [name for name in dir(extension) if not name.startswith("__") and hasattr(worker, name)]
    joined = type("Joined", (worker,), {})
    joined.__bases__ += (extension,)
    assert joined.received_sums is extension.received_sums
"""


@pytest.mark.slow
def test_vllms_real_workers_take_our_extension() -> None:
    """As vLLM does it when it makes a worker. In a process of its own, since importing a worker changes torch."""
    done = subprocess.run([sys.executable, "-c", JOIN], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


# -- over the stand-in ------------------------------------------------------------------------------------------------


class Others:
    """The policy's other processes, on GPUs 1, 2 and so on, during one update. `faults`: see `fall_ill`."""

    def __init__(self, sync: WeightSync, *versions: int, faults: Sequence[str] = ()) -> None:
        fork = multiprocessing.get_context("fork")
        self._membership = sync.membership
        told = zip(versions, [*faults, *[""] * len(versions)], strict=False)
        self.processes = [
            fork.Process(target=self._run, args=(number, *of), daemon=True) for number, of in enumerate(told, 1)
        ]
        for process in self.processes:
            process.start()

    def _run(self, number: int, version: int, fault: str) -> None:
        gc.freeze()
        ipc_stand_in.SHARED.clear()
        ipc_stand_in.be_on(f"GPU-{number}")
        policy = Policy()
        policy.version = version
        if fault:
            policy.gathered = failing(policy.gathered, fault)  # type: ignore[method-assign]
        try:
            send_along(policy, self._membership, number, CPU)
        finally:
            ipc_stand_in.remove_all()
            # Without what the parent's process would do at its end.
            os._exit(sys.exc_info()[0] is not None)

    def ended(self) -> list[int | None]:
        for process in self.processes:
            process.join(20)
        return [process.exitcode for process in self.processes]


def failing(gathered: Callable[[Sequence[TensorSpec]], Any], fault: str) -> Any:
    """At the second batch."""
    batches: list[Any] = []

    @contextmanager
    def gather(batch: Sequence[TensorSpec]) -> Iterator[list[torch.Tensor]]:
        batches.append(batch)
        if len(batches) == 2:
            if fault == "raises":
                raise torch.OutOfMemoryError("CUDA out of memory")
            fall_ill(fault)
        with gathered(batch) as tensors:
            yield tensors

    return gather


@pytest.mark.slow
@pytest.mark.parametrize("layout", [[[0]], [[0], [1]], [[0, 1]], [[1, 3], [2, 0]]], ids=str)
def test_every_worker_gets_every_tensor_of_every_version(started: list[Engine], layout: list[list[int]]) -> None:
    """From the policy's process on its own GPU; none of them is left with a buffer."""
    started += [Engine(**on(*gpus)) for gpus in layout]
    senders = sum(map(len, layout))
    sync, policy = connect(started, backend=SHARED, senders=senders), Policy()
    for policy.version in (3, 4):
        others = Others(sync, *[policy.version] * (senders - 1))
        sync.update(policy, policy.version)
        assert others.ended() == [0] * (senders - 1)
        assert not ipc_stand_in.SHARED
        for engine in started:
            assert engine.received == {name: t.tolist() for name, t in weights(policy.version).items()}
            assert engine.version == policy.version


@pytest.mark.slow
def test_a_process_of_the_policy_with_other_weights_is_noticed(started: list[Engine]) -> None:
    """Engine 1 has them from that process, and nobody samples with them."""
    started += [Engine(**on(0)), Engine(**on(1))]
    sync = connect(started, backend=SHARED, senders=2)
    Others(sync, 1)
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 1, worker 0: 4 of 4 tensors arrived with other values"):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]


@pytest.mark.slow
def test_one_engine_alone_is_sent_by_the_process_on_its_gpu(started: list[Engine]) -> None:
    """When Ray has started it again. The others gather what it is sent."""
    started += [Engine(**on(0)), Engine(**on(1))]
    sync = connect(started, backend=SHARED, senders=3)
    sync.connect({1: started[1]})
    others = Others(sync, 0, 0)
    sync.update(Policy(), 5)
    assert others.ended() == [0, 0]
    assert [engine.version for engine in started] == [None, 5]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ((0, 7), "vLLM engine 0, worker 1 is on GPU GPU-7, where no process of the policy is"),
        ((0, 0), "two of vLLM's"),
    ],
)
def test_a_worker_that_no_process_can_send_to_is_refused(
    started: list[Engine], gpus: tuple[int, int], message: str
) -> None:
    started.append(Engine(**on(*gpus)))
    sync = connect(started, backend=SHARED, senders=2)
    others = Others(sync, 0)
    with pytest.raises(WeightSyncError, match=message):
        sync.update(Policy(), 1)
    assert started[0].version is None
    others.ended()


def test_the_buffer_is_free_for_the_sender_when_the_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it is only asked for: a GPU copies later."""
    log: list[str] = []
    ipc_stand_in.install(monkeypatch.setattr)
    stream = SimpleNamespace(synchronize=lambda: log.append("copied"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(packed_tensor, "packed_ipc_consumer", lambda *_: [("", torch.zeros(1)), ("", torch.zeros(1))])
    group = IpcGroup(Membership(SHARED, "127.0.0.1", 0, 0, ["the policy"]), CPU)
    arriving = [repr(([2, 2], [])).encode(), repr(([2], [])).encode()]
    mail = {"get": lambda _: arriving.pop(0), "set": lambda key, _: log.append(key)}
    group._mail = SimpleNamespace(**mail, add=lambda *_: None, delete_key=lambda _: None)
    group._receive([2, 2, 2], lambda _: log.append("loaded"))
    assert log[:5] == ["copied", "free/0", "loaded", "loaded", "copied"]


class Model(torch.nn.Module):
    """A layer whose weights come in two buckets, and vLLM's way to load them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(20, 10)
        self.second = torch.nn.Linear(10, 1, bias=False)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, weight)


def test_vllms_reload_keeps_what_came_while_the_buffer_is_written_again(started: list[Engine]) -> None:
    """Its tensors of a layer that is not complete are none of the buffer's."""
    policy, model = Model().requires_grad_(False), Model().requires_grad_(False)
    expected = {name: parameter.clone() for name, parameter in policy.named_parameters()}
    layerwise.record_metadata_for_reloading(model)
    receiver: Any = WeightReceiver(WeightTransferConfig(backend=BACKEND), VllmConfig(), CPU, model)
    source = PolicyWeights(policy, lambda _: nullcontext(), lambda p: p.shape, bucket_bytes=800)
    assert [len(bucket.tensors) for bucket in source.manifest.buckets()] == [1, 2]
    first = Membership(SHARED, "127.0.0.1", free_port(), 0, ["the policy", "the engine"])
    group = IpcGroup(first, CPU)
    receiver.parallel_config = SimpleNamespace(rank=0)
    plain = {name: value for name, value in asdict(first).items() if name != "rank"}
    receiver.init_transfer_engine(JoinGroup(plain, 1))
    with set_current_vllm_config(receiver.vllm_config), ThreadPoolExecutor(1) as pool:
        receiver.start_weight_update()
        sent = pool.submit(weight_sync._send, source, group, CPU, sums=True)
        receiver.receive_weights(Update(source.manifest.to_plain(), True))
        receiver.finish_weight_update()
        assert sent.result() == receiver.sums
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in expected.items())


# -- members that fail ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dies", r"^vLLM engine 1 failed while receiving weights"),
        ("hangs", r"^no weights have moved for 3 s; .*no answer from .*vLLM engine 1, worker 0"),
        ("stops", r"^no weights have moved for 3 s; .*no answer from .*vLLM engine 1, worker 0"),
    ],
)
def test_an_engine_that_fails_is_named_and_no_engine_serves(started: list[Engine], fault: str, message: str) -> None:
    """Its sender is another process of the policy than the first, and is told to end."""
    started += [Engine(**on(0)), Engine(**on(1))]
    sync = connect(started, backend=SHARED, senders=2, limit_s=3.0)
    started[1].faults = {0: fault}
    others = Others(sync, 0)
    with pytest.raises(WeightSyncError, match=message):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]
    assert others.ended() == [1]


@pytest.mark.slow
def test_a_worker_that_fails_alone_ends_the_update_for_all(started: list[Engine]) -> None:
    """Worker 0 of its engine, whose answer is read first, is done; the others are told at once."""
    started += [Engine(**on(0, 1)), Engine(**on(2, 3))]
    sync = connect(started, backend=SHARED, senders=4)
    started[1].faults = {1: "memory"}
    others = Others(sync, 0, 0, 0)
    with pytest.raises(
        WeightSyncError, match=r"^vLLM engine 1, worker 1 failed: OutOfMemoryError: CUDA out of memory"
    ):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]
    assert others.ended()[2] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"^the policy's process 1 failed: OutOfMemoryError: CUDA out of memory"),
        ("dies", r"^no weights have moved for 3 s; .*no answer from the policy's process 1$"),
        ("hangs", r"^no weights have moved for 3 s; .*"),
    ],
)
def test_a_process_of_the_policy_that_fails_is_named(started: list[Engine], fault: str, message: str) -> None:
    started += [Engine(**on(0)), Engine(**on(1))]
    sync = connect(started, backend=SHARED, senders=2, limit_s=3.0)
    others = Others(sync, 0, faults=[fault])
    with pytest.raises(WeightSyncError, match=message):
        sync.update(Policy(), 1)
    assert [engine.version for engine in started] == [None, None]
    for process in others.processes:
        process.kill()


@pytest.mark.slow
def test_engines_do_not_wait_for_ever_for_a_policy_that_stops(started: list[Engine]) -> None:
    started.append(Engine(**on(0)))
    sync = connect(started, backend=SHARED, limit_s=3.0)
    told = started[0].receive_update.remote(Policy.manifest.to_plain(), sums=False)
    with pytest.raises(Exception, match=r"no weights have moved for 3 s; vLLM engine 0, worker 0 has waited"):
        told.result(timeout=30)
    del sync


@pytest.mark.slow
def test_engines_notice_a_policy_that_is_gone(started: list[Engine]) -> None:
    started.append(Engine(**on(0)))
    sync = connect(started, backend=SHARED, limit_s=60.0)
    told = started[0].receive_update.remote(Policy.manifest.to_plain(), sums=False)
    group: Any = sync._group
    sync._group = None
    group.close()
    group._store = None
    del group
    gc.collect()
    with pytest.raises(Exception, match=r"vLLM engine 0, worker 0 failed|the policy is gone"):
        told.result(timeout=20)
