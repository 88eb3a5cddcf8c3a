"""Weights of a policy that DeepSpeed has split over two processes (ZeRO-3): gathered, averaged and exported whole.

Two real processes on one machine; what is sent to engines is gathered in the same way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared_results import once

pytestmark = [pytest.mark.slow, pytest.mark.rehearsal]

ROOT = Path(__file__).parents[2]
KINDS = ["plain", "adapters", "experts"]

SCRIPT = """
import json, os, sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
import torch

def work(rank, port, folder):
    os.environ |= {
        "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
        "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
    }
    from openrlhf_ada.platforms import without_gpu
    without_gpu.activate()
    import deepspeed, torch

    torch.set_num_threads(1)
    # Its own is compiled on first use.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    deepspeed.comm.all_gather_into_tensor = as_late_as_allowed(deepspeed.comm.all_gather_into_tensor)
    for kind in KINDS:
        model = folder / ("mixture" if kind == "experts" else "model")
        train(rank, kind == "adapters", model, folder / kind)
    torch.distributed.barrier()
    os._exit(0)

def as_late_as_allowed(gather):
    # What is gathered is there when it is waited for, no sooner.
    def gathered(output, part, group=None, async_op=False):
        found = torch.empty_like(output)
        handle = gather(found, part, group=group, async_op=async_op)
        if not async_op:
            output.copy_(found)
            return handle
        return SimpleNamespace(wait=lambda: (handle.wait(), output.copy_(found)))

    return gathered

class Whole:
    # A policy of one process that has weights of these shapes.
    def __init__(self, tensors):
        from openrlhf_ada.weights.manifest import Manifest, TensorSpec

        self.tensors = tensors
        self.manifest = Manifest(tuple(TensorSpec(n, "float32", tuple(t.shape)) for n, t in tensors.items()))

    def gathered(self, bucket):
        return nullcontext([torch.zeros_like(self.tensors[spec.name]) for spec in bucket])

def train(rank, adapts, model, folder):
    import deepspeed, torch
    from openrlhf_ada.platforms import without_gpu
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig
    from openrlhf_ada.weights.export import export_whole, whole_weights
    from openrlhf_ada.host.sharding import sharding
    from openrlhf_ada.weights.policy_side import PolicyWeights
    from openrlhf_ada.weights import average as averaging
    from openrlhf_ada.weights.average import WeightAverage, visit
    from safetensors.torch import load_file

    config = {
        "train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 64},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}},
    }
    config = without_gpu.on_cpu(config)
    is_split = HfDeepSpeedConfig(config)
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    torch.manual_seed(0)
    if adapts:
        model = get_peft_model(
            model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    assert any(p.numel() == 0 for p in engine.module.parameters()), "nothing is split"
    args = SimpleNamespace(ds=SimpleNamespace(zero_stage=3, tensor_parallel_size=1))
    weights = PolicyWeights(engine.module, *sharding(args, engine.module), as_saved=False, bucket_bytes=4000)
    is_first = rank == 0
    # Several pieces for each tensor, and a part of one that is shorter.
    averaging.PIECE = 50
    average = WeightAverage(weights, 0.5, rank, 2)
    expected = {name: t.float() for name, t in whole_weights(weights, is_first=is_first).items()}
    ids = torch.arange(9).view(1, -1)
    for _ in range(3):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        average.update()
        now = whole_weights(weights, is_first=is_first)
        expected = {name: tensor.lerp(now[name].float(), 0.5) for name, tensor in expected.items()}
    average.save(folder / "average.safetensors")
    averages = average.tensors()
    resumed = WeightAverage(weights, 0.5, rank, 2)
    resumed.load(folder / "average.safetensors")
    again = resumed.tensors()
    size = sum(tensor.numel() for tensor in average._tensors.values())
    engine.eval()
    with torch.no_grad():
        before = engine(input_ids=ids).logits
        tensors = whole_weights(weights, is_first=is_first)
        sent = {}
        for_engines = PolicyWeights(engine.module, *sharding(args, engine.module), bucket_bytes=4000)
        visit(for_engines, lambda spec, tensor: sent.update({spec.name: tensor.clone()}))
        after = engine(input_ids=ids).logits
    if is_first:
        export_whole(engine.module, SimpleNamespace(save_pretrained=lambda path: None), tensors, folder / "export")
        torch.save((ids, before), folder / "seen.pt")
        exported = load_file(folder / "export" / "model.safetensors")
        whole = WeightAverage(Whole(expected), 0.5)
        whole.load(folder / "average.safetensors")
        found = {
            "part": size / sum(tensor.numel() for tensor in expected.values()),
            "resumes": all(torch.equal(again[n], averages[n]) for n in expected),
            "resumes_alone": all(torch.equal(t, whole.tensors()[n]) for n, t in expected.items()),
            "is_unchanged": torch.equal(before, after),
            "has_averages": all(torch.equal(averages[n], t.bfloat16()) for n, t in expected.items()),
            "names": sorted(averages),
            "sends": sent.keys() == exported.keys() and all(torch.equal(sent[n], t) for n, t in exported.items()),
        }
        (folder / "found.json").write_text(json.dumps(found))
    else:
        assert not tensors and not averages and not again

if __name__ == "__main__":
    import multiprocessing, socket
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    shape = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True)).save_pretrained(folder / "model")
    experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, num_key_value_heads=2, head_dim=8)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts)).save_pretrained(folder / "mixture")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=work, args=(rank, port, folder), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    by_kind = {}
    for kind in KINDS:
        ids, seen = torch.load(folder / kind / "seen.pt")
        exported = AutoModelForCausalLM.from_pretrained(folder / kind / "export", dtype=torch.bfloat16).eval()
        with torch.no_grad():
            logits = exported(input_ids=ids).logits
        plain = sorted(name for name, _ in type(exported)(exported.config).named_parameters())
        found = json.loads((folder / kind / "found.json").read_text())
        by_kind[kind] = found | {"plain": plain, "distance": float((logits - seen).abs().max())}
    print(json.dumps(by_kind))
"""


@pytest.fixture(scope="module")
def by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    def train() -> Any:
        folder = tmp_path_factory.mktemp("sharded")
        script = folder / "script.py"
        script.write_text(f"KINDS = {KINDS}\n{SCRIPT}")
        for kind in KINDS:
            (folder / kind).mkdir()
        done = subprocess.run(
            [sys.executable, str(script), str(folder)],
            capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return once(tmp_path_factory, "sharded weights", train)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_two_processes_are_one_model(by_kind: dict[str, dict[str, Any]], kind: str) -> None:
    found = by_kind[kind]
    assert found["is_unchanged"] and found["has_averages"]
    assert found["sends"], "as exported, experts apart"
    assert found["part"] == pytest.approx(0.5, abs=0.01), "each process averages a half"
    assert found["resumes"] and found["resumes_alone"]
    assert found["names"] == found["plain"]
    # In units of the last place of half precision: the same sums in another order.
    assert found["distance"] < 0.05
