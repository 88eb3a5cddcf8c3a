"""How long the policy's weights take to the engines: ours, and OpenRLHF's own way, in turns over the same engines.

SmolLM2-135M on this machine's CPU. OpenRLHF sends one parameter per call (tests/support/host_weight_sync.py makes that
run without a GPU); ours sends buckets, in one call. Seconds are of whole updates, until the engines may sample.
"IPC": policy and one engine on the same GPU, whose shared memory files stand for (tests/support/ipc_stand_in.py).

    python benchmarks/weight_sync.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from machine import machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

import host_weight_sync  # noqa: E402
import ipc_stand_in  # noqa: E402

from openrlhf_ada.demo.model import build_smollm2  # noqa: E402
from openrlhf_ada.platforms import without_gpu  # noqa: E402
from openrlhf_ada.platforms.without_gpu import compute_dtype  # noqa: E402

EXTENSION = "both_extensions.BothExtensions"
BUCKETS_MIB, STANDARD_MIB = (16, 32, 64), 32
COUNTS = (1, 2)
HOST_IPC, OUR_IPC = "host, IPC", "ours, IPC"


def start(model: str, count: int) -> list[Any]:
    """Engines that can be sent weights both ways."""
    environment = {"env_vars": {without_gpu.ENGINES_VARIABLE: str(count)}}
    import ray

    from openrlhf_ada.rollout.engine import AdaRolloutActor

    class Engine(AdaRolloutActor):
        def with_receiver(self, arguments: dict[str, Any]) -> dict[str, Any]:
            return super().with_receiver(arguments) | {"worker_extension_cls": EXTENSION}

        def forbid_pickle(self) -> None:
            """OpenRLHF's calls carry torch's types."""

    arguments = {
        "model": model, "num_gpus": 0, "enable_prefix_caching": True, "max_model_len": 256, "seed": 1,
        "distributed_executor_backend": "uni", "tensor_parallel_size": 1,
    }  # fmt: skip
    engines = [ray.remote(num_cpus=0, runtime_env=environment)(Engine).remote(**arguments) for _ in range(count)]
    ray.get([engine.ready.remote() for engine in engines])
    return engines


class Counted:
    """An engine whose calls are counted."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)

        def remote(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            return method.remote(*args, **kwargs)

        return SimpleNamespace(remote=remote, options=lambda **_: SimpleNamespace(remote=remote))


class Host:
    """OpenRLHF's trainer as far as sending weights goes."""

    def __init__(self, model: Any, engines: list[Any], *, over_ipc: bool = False) -> None:
        from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

        vllm = SimpleNamespace(num_engines=len(engines), tensor_parallel_size=1, enable_prefix_caching=True)
        ds = SimpleNamespace(zero_stage=2, tensor_parallel_size=1)
        self.trainer: Any = ActorPPOTrainer.__new__(ActorPPOTrainer)
        self.trainer.strategy = SimpleNamespace(args=SimpleNamespace(vllm=vllm, ds=ds))
        self.trainer.actor = SimpleNamespace(model=SimpleNamespace(module=model))
        self.trainer.vllm_engines, self.trainer.use_cuda_ipc = engines, over_ipc
        if over_ipc:
            named = [(name, host_weight_sync.MappedParameter(p)) for name, p in model.named_parameters()]
            self.trainer.actor.model.module = SimpleNamespace(named_parameters=lambda: named)
        else:
            self.trainer._init_vllm_sync_group("gloo")

    def update(self) -> None:
        self.trainer.broadcast_to_vllm()


class Ours:
    def __init__(
        self, model: Any, engines: list[Any], *, bucket_mib: int, verify: str = "off", backend: str = "gloo"
    ) -> None:
        import torch

        from openrlhf_ada.host.sharding import sharding
        from openrlhf_ada.rollout.engine_restart import EngineWaiter
        from openrlhf_ada.weights.policy_side import PolicyWeights
        from openrlhf_ada.weights.sender import WeightSync

        ds = SimpleNamespace(zero_stage=2, tensor_parallel_size=1)
        gather, shape_of = sharding(SimpleNamespace(ds=ds), model)
        self.weights = PolicyWeights(model, gather, shape_of, bucket_bytes=bucket_mib << 20)
        self.sync = WeightSync(backend, torch.device("cpu"), 1, verify)
        self.engines = dict(enumerate(engines))
        self.waiter = EngineWaiter(engines)
        self.version = 0

    def connect(self) -> None:
        self.sync.connect(self.engines)

    def update(self) -> None:
        """As `AdaActorTrainer.broadcast_to_vllm`."""
        self.version += 1
        self.waiter.wait()
        self.sync.begin()
        self.sync.update(self.weights, self.version)


def measure(model: Any, engines: list[Any], repeats: int) -> dict[str, list[float]]:
    """Seconds of each update, without the first of each kind."""
    ways: dict[str, Any] = {"host": Host(model, engines)}
    if len(engines) == 1:
        ways[HOST_IPC] = Host(model, engines, over_ipc=True)
        ways[OUR_IPC] = Ours(model, engines, bucket_mib=STANDARD_MIB, backend="ipc")
    for mib in BUCKETS_MIB:
        ways[f"ours, buckets of {mib} MiB"] = Ours(model, engines, bucket_mib=mib)
    ways["ours, verified"] = Ours(model, engines, bucket_mib=STANDARD_MIB, verify="always")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            if isinstance(way, Ours):
                # Engines are in one group of ours at a time. OpenRLHF's stays; ours, too, is used before it counts.
                way.connect()
                way.update()
            begun = time.perf_counter()
            way.update()
            if turn:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def calls(model: Any, engine: Any) -> dict[str, int]:
    """To the engine, of one update over IPC when it is not the first."""
    counted = Counted(engine)
    ours, host = Ours(model, [counted], bucket_mib=STANDARD_MIB, backend="ipc"), Host(model, [counted], over_ipc=True)
    ours.connect()
    found: dict[str, int] = {}
    for name, way in (("ipc_calls", ours), ("host_ipc_calls", host)):
        way.update()
        before = counted.num_calls
        way.update()
        found[name] = counted.num_calls - before
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 turns instead of 9")
    args = parser.parse_args()
    host_weight_sync.activate_policy()
    ipc_stand_in.install(setattr)
    host_weight_sync.share_by_files(setattr)
    paths = [str(HERE), str(HERE.parent / "tests" / "support"), *sys.path]
    os.environ |= without_gpu.worker_environment() | {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    import ray
    import torch
    from transformers import AutoModelForCausalLM

    path = build_smollm2(HERE.parent / ".cache" / "smollm2-chat-model")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, compute_dtype()))
    ray.init(
        num_cpus=4, log_to_driver=False, runtime_env={"worker_process_setup_hook": "host_weight_sync.activate_policy"}
    )
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    results: dict[str, Any] = {}
    figures: dict[str, float] = {}
    for count in COUNTS:
        engines = start(str(path), count)
        seconds = measure(model, engines, 3 if args.quick else 9)
        if count == 1:
            figures |= calls(model, engines[0])
        for engine in engines:
            ray.kill(engine)
        medians = {name: statistics.median(of) for name, of in seconds.items()}
        print(count, medians, file=sys.stderr)
        results[f"{count} engines"] = {"seconds": seconds, "medians": medians}
        if count == 1:
            figures["host_over_ours_ipc"] = medians[HOST_IPC] / medians[OUR_IPC]
        figures[f"host_over_ours_{count}"] = medians["host"] / medians[f"ours, buckets of {STANDARD_MIB} MiB"]
    out = HERE / "results" / ("weight_sync_quick.json" if args.quick else "weight_sync.json")
    out.write_text(
        json.dumps({"dtype": compute_dtype(), "figures": figures, "results": results, "machine": machine()}, indent=1)
        + "\n"
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
