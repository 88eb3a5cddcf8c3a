"""Weights through GPU memory that policy and engine share: OpenRLHF's code at both ends, with our checksums.

CUDA's handles are replaced by names, since a handle can neither be made nor opened without a GPU.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from openrlhf.trainer.ray import ppo_actor
from openrlhf.trainer.ray import utils as host_gpus
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from torch.multiprocessing import reductions
from vllm.distributed.weight_transfer import ipc_engine, packed_tensor
from vllm.v1.serial_utils import MsgpackEncoder

from openrlhf_ada.trainer.policy import AdaActorTrainer
from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.sender import WeightSyncError
from openrlhf_ada.weights.shared import SharedWeightsExtension

pytestmark = pytest.mark.rehearsal

Damage = Callable[[str, torch.Tensor], torch.Tensor]

MODEL = {"embed.weight": torch.arange(6.0).view(3, 2), "head.bias": torch.tensor([1.0, 2.0])}


class Engine:
    """The calls of a rollout actor, and the real methods of OpenRLHF's and ours in each of its workers."""

    def __init__(self, workers: int, damage: Damage | None = None) -> None:
        self.workers: list[Any] = []
        self.version: int | None = None
        for number in range(workers):
            worker: Any = SharedWeightsExtension()
            loaded: dict[str, torch.Tensor] = {}
            worker.loaded, worker.damage = loaded, damage if number == workers - 1 else None
            worker.device, worker.model_config = torch.device("cuda", number), SimpleNamespace(dtype=torch.float32)
            load = lambda weights, into=loaded: into.update({n: t.clone() for n, t in weights})  # noqa: E731
            worker.model_runner = SimpleNamespace(model=SimpleNamespace(load_weights=load))
            self.workers.append(worker)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "ready":
                return "start id"
            if name == "admit_shared":
                (self.version,) = args
                return None
            if name == "begin_shared":
                args, kwargs = tuple(kwargs.values()), {}
            return [self._in_worker(worker, name, *args, **kwargs) for worker in self.workers]

        return SimpleNamespace(remote=call)

    @staticmethod
    def _in_worker(worker: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        Handles.reader = worker
        return getattr(worker, name)(*args, **kwargs)


class Handles:
    """In place of CUDA's: a tensor by its number. The damage of the worker that opens one is done to what it sees."""

    reader: Any = None
    shared: list[torch.Tensor]

    @classmethod
    def share(cls, tensor: torch.Tensor) -> Any:
        cls.shared.append(tensor)
        return cls.open, (*[None] * 6, "the sender's device", len(cls.shared) - 1)

    @classmethod
    def open(cls, *args: Any) -> torch.Tensor:
        assert args[6] == cls.reader.device.index, "opened on the worker's device"
        tensor, damage = cls.shared[args[7]], cls.reader.damage
        return tensor if damage is None else damage(list(MODEL)[args[7] % len(MODEL)], tensor.clone())


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handles, "shared", [], raising=False)
    monkeypatch.setattr(reductions, "reduce_tensor", Handles.share)
    for module in (ppo_actor, host_gpus):
        monkeypatch.setattr(module, "get_physical_gpu_id", lambda: "GPU-1")
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda all_of, one: all_of.__setitem__(0, one))
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs, []))


def make_trainer(engines: list[Engine], verify: str = "first") -> Any:
    trainer: Any = AdaActorTrainer.__new__(AdaActorTrainer)
    flags = {"vllm": SimpleNamespace(enable_prefix_caching=False), "ada": SimpleNamespace(verify_sync=verify)}
    flags["ds"] = SimpleNamespace(zero_stage=2, tensor_parallel_size=1)
    trainer.strategy = SimpleNamespace(args=SimpleNamespace(**flags))
    module = torch.nn.ModuleDict({name.split(".")[0]: torch.nn.Module() for name in MODEL})
    for name, tensor in MODEL.items():
        room, _, kind = name.partition(".")
        module[room].register_parameter(kind, torch.nn.Parameter(tensor.clone()))
    module.config = SimpleNamespace(to_dict=dict)  # type: ignore[assignment]
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=module))
    trainer.vllm_engines, trainer.use_cuda_ipc = engines, True
    return trainer


# -- OpenRLHF's way, with checksums -----------------------------------------------------------------------------------


def test_the_hosts_method_reads_three_attributes(host_source: Any) -> None:
    """host/shared_memory.py calls it on an object that has these."""
    method = host_source.find("trainer/ray/vllm_worker_wrap.py", "WorkerWrap.update_weight_cuda_ipc")
    read = {n.attr for n in ast.walk(method) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"}
    assert read == {"device", "model_config", "model_runner"}
    assert "self.model_runner.model.load_weights(weights=[(name, weight)])" in ast.unparse(method)


def test_our_extension_keeps_all_that_the_hosts_has() -> None:
    """OpenRLHF's actor calls it by these names in vLLM's workers."""
    theirs = {name for name in vars(WorkerWrap) if not name.startswith("__")}
    assert theirs == {"init_process_group", "update_weight", "update_weight_cuda_ipc"}
    assert theirs <= set(dir(SharedWeightsExtension))


JOIN = """
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.worker import cpu_worker, gpu_worker
extension = resolve_obj_by_qualname("openrlhf_ada.weights.shared.SharedWeightsExtension")
for worker in (cpu_worker.CPUWorker, gpu_worker.Worker):
    assert not [name for name in dir(extension) if not name.startswith("__") and hasattr(worker, name)]
    joined = type("Joined", (worker,), {})
    joined.__bases__ += (extension,)
    assert joined.update_weight_cuda_ipc is extension.update_weight_cuda_ipc
"""


@pytest.mark.slow
def test_vllms_real_workers_take_our_extension() -> None:
    """As vLLM does it when it makes a worker. In a process of its own, since importing a worker changes torch."""
    done = subprocess.run([sys.executable, "-c", JOIN], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("verify", ["off", "first", "always"])
def test_a_worker_gets_what_the_policy_shares(verify: str) -> None:
    engines = [Engine(workers=2), Engine(workers=1)]
    trainer = make_trainer(engines, verify)
    for trainer.next_version, checked in ((1, verify != "off"), (2, verify == "always")):
        trainer.broadcast_to_vllm()
        for engine in engines:
            assert engine.version == trainer.next_version
            for worker in engine.workers:
                assert {name: t.tolist() for name, t in worker.loaded.items()} == {
                    name: t.tolist() for name, t in MODEL.items()
                }
                assert worker.shared_sums() == (
                    dict(zip(MODEL, checksums(list(MODEL.values())), strict=True)) if checked else {}
                )


def _one_value(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name == "head.bias":
        tensor[1] += 1e-6
    return tensor


def _not_written_yet(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """As an engine sees it that does not wait for the policy's stream."""
    return torch.zeros_like(tensor) if name == "embed.weight" else tensor


@pytest.mark.parametrize(
    ("damage", "name"), [(_one_value, "head.bias"), (_not_written_yet, "embed.weight")], ids=["one value", "too early"]
)
def test_a_tensor_that_comes_changed_is_named_and_nobody_serves(damage: Damage, name: str) -> None:
    engines = [Engine(workers=1), Engine(workers=2, damage=damage)]
    with pytest.raises(WeightSyncError, match=rf"^vLLM engine 1, worker 1: 1 of 2 tensors arrived .* first: {name}$"):
        make_trainer(engines).broadcast_to_vllm()
    assert [engine.version for engine in engines] == [None, None]


def test_a_tensor_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [Engine(workers=1)]
    load = SharedWeightsExtension.take_shared

    def lose(worker: Any, weights: Any) -> Any:
        return None if weights[0][0] == "head.bias" else load(worker, weights)

    monkeypatch.setattr(SharedWeightsExtension, "take_shared", lose)
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 0, worker 0: 1 of 2 tensors did not .* first: head.bias"):
        make_trainer(engines).broadcast_to_vllm()
    assert engines[0].version is None


def test_a_restarted_engine_is_checked_by_its_number() -> None:
    engines = [Engine(workers=1), Engine(workers=1)]
    trainer = make_trainer(engines)
    trainer.broadcast_to_vllm()
    engines[1] = trainer.vllm_engines[1] = Engine(workers=1, damage=_one_value)
    with pytest.raises(WeightSyncError, match=r"^vLLM engine 1, worker 0: 1 of 2"):
        trainer.send_to(1, alone=False)


# -- why vLLM's own transfer is not in its place: docs/decisions.md, "CUDA IPC stays OpenRLHF's" ----------------------


def test_vllms_ipc_sender_admits_before_anything_could_be_compared() -> None:
    send = inspect.getsource(ipc_engine.IPCTrainerWeightTransferEngine.send_weights)
    calls = ["self.client.start_weight_update()", "self._send(source)", "self.client.finish_weight_update()"]
    assert [send.index(call) for call in calls] == sorted(send.index(call) for call in calls)
    receive = inspect.getsource(ipc_engine.IPCWeightTransferEngine.receive_weights)
    assert "self.model.load_weights(weights)" in receive, "and nothing is between arriving and loading"


def test_vllms_ipc_transfer_copies_on_the_shared_gpu() -> None:
    """It must: its reload keeps tensors of a layer, and the sender writes over the buffer meanwhile."""
    assert "t.clone()" in inspect.getsource(packed_tensor.packed_ipc_consumer)
    assert 'torch.empty(buffer_size_bytes, dtype=torch.uint8, device="cuda")' in inspect.getsource(
        packed_tensor.packed_ipc_producer
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_part_of_vllms_ipc_transfer_runs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of a CPU goes between processes by another function, with other arguments."""
    tensors = iter([("w", torch.ones(1))])
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        next(packed_tensor.packed_ipc_producer(tensors, "GPU-1", lambda item: item[1], 16))
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        packed_tensor.packed_ipc_consumer({}, [], [], [], [], 0)
    monkeypatch.undo()
    function, arguments = reductions.reduce_tensor(torch.ones(1))
    assert function is not reductions.rebuild_cuda_tensor and len(arguments) < 7


def test_vllms_handles_need_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold classes of torch. Plain values, as our own transfer sends, need none."""
    monkeypatch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
    parameters = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    assert [parameters[i] for i in (0, 4, 5)] == ["tensor_cls", "storage_cls", "dtype"]
    handle = (torch.Tensor, [1], [1], 0, torch.UntypedStorage, torch.uint8, 0, b"handle")
    with pytest.raises(TypeError, match="VLLM_ALLOW_INSECURE_SERIALIZATION"):
        MsgpackEncoder().encode({"ipc_handles": {"GPU-1": handle}})
    assert MsgpackEncoder().encode({"ipc_handles": {"GPU-1": [0, b"handle"]}})


def test_the_policys_processes_wait_for_each_other(host_source: Any) -> None:
    """Every one shares its memory with the worker on its GPU, so all of them enter OpenRLHF's method."""
    method = host_source.text("trainer/ray/ppo_actor.py", "ActorPPOTrainer.broadcast_to_vllm")
    assert "torch.distributed.all_gather_object(ipc_handle_list, ipc_handle)" in method
