"""Mixtures of experts: engines hold what the policy has, before and after it is trained.

transformers joins the experts of a layer, a checkpoint has them apart, and vLLM packs them for its kernels. Real vLLM
engines on a CPU get them as on a shared GPU (tests/support/ipc_stand_in.py); and one family on the whole stack.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Toy, run_script, steps_of, toy_flags, train
from safetensors.torch import load_file
from shared_results import once
from transformers import AutoConfig, AutoModelForCausalLM

from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

REWARDS = """
def reward_func(queries, prompts, labels):
    return {"rewards": [float(sum(map(ord, query)) % 2) for query in queries]}
"""
"""A model with random weights is right half of the time."""

CLOSE = 0.01
"""Nats per token, in single precision; the engine's attention computes in half of it."""

FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {"num_experts": 4, "norm_topk_prob": True},
    "olmoe": {"num_experts": 4},
    "glm4_moe": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "granitemoe": {"num_local_experts": 4},
    "gpt_neox": {},
}
"""The last has none: its output layer has another name in a checkpoint."""

SCRIPT = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
os.environ |= without_gpu.worker_environment() | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
os.environ["OPENRLHF_ADA_CPU_DTYPE"] = "float32"
sys.path += ["tests/support"]
import ipc_stand_in, torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.config import set_current_vllm_config
from openrlhf_ada.host.ports import free_port
from openrlhf_ada.platforms.without_gpu.engine import cpu_engine_arguments
from openrlhf_ada.weights import receiver, sender
from openrlhf_ada.weights.engine_side import ReceivesWeights
from openrlhf_ada.weights.ipc import IpcGroup
from openrlhf_ada.weights.policy_side import PolicyWeights
from openrlhf_ada.weights.receiver import JoinGroup, Update, pack_experts_anew
from openrlhf_ada.weights.transport import SHARED, Membership

IDS = list(range(3, 40))

CPU = torch.device("cpu")

def update(worker, weights, *, is_untrained):
    # By vLLM's packed IPC, as on a shared GPU.
    engine = worker.weight_transfer_engine
    first = Membership(SHARED, "127.0.0.1", free_port(), 0, ["the policy", "the engine"])
    group = IpcGroup(first, CPU)
    engine.init_transfer_engine(JoinGroup({name: value for name, value in asdict(first).items() if name != "rank"}, 1))
    with set_current_vllm_config(engine.vllm_config), ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender._send, weights, group, CPU, sums=True)
        engine.start_weight_update()
        engine.receive_weights(Update(weights.manifest.to_plain(), True, is_untrained))
        engine.finish_weight_update()
        assert sent.result() == engine.sums
    assert not worker.unused_tensors(), worker.unused_tensors()

def by_vllm(llm):
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (answer,) = llm.generate({"prompt_token_ids": IDS}, asked, use_tqdm=False)
    return torch.tensor([next(iter(of.values())).logprob for of in answer.prompt_logprobs[1:]])

def by_policy(policy):
    ids = torch.tensor([IDS])
    with torch.no_grad():
        return policy(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]

def gap(one, other):
    return float((one - other).abs().max())

def look_at(family, changes, folder):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=100, hidden_size=64, num_hidden_layers=2, intermediate_size=96,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, moe_intermediate_size=32, num_experts_per_tok=2,
        initializer_range=0.2, **changes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = PolicyWeights(policy, lambda _: nullcontext(), lambda p: p.shape, bucket_bytes=10_000)
    arguments = ReceivesWeights().with_receiver(cpu_engine_arguments({}))
    llm = LLM(str(folder), skip_tokenizer_init=True, max_model_len=64, enable_prefix_caching=False, **arguments)
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    before = by_vllm(llm)
    found = {"loaded": gap(before, by_policy(policy))}
    update(worker, weights, is_untrained=True)
    found["reloaded"] = gap(before, by_vllm(llm))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    update(worker, weights, is_untrained=False)
    found |= {"trained": gap(by_vllm(llm), by_policy(policy)), "moved": gap(before, by_vllm(llm))}
    receiver.pack_experts_anew = lambda model: None
    try:
        update(worker, weights, is_untrained=True)
        found["noticed"] = None
    except RuntimeError as error:
        found["noticed"] = str(error)
    receiver.pack_experts_anew = pack_experts_anew
    llm.llm_engine.engine_core.shutdown()
    return found

if __name__ == "__main__":
    ipc_stand_in.install(setattr)
    families, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    print(json.dumps({family: look_at(family, changes, folder / family) for family, changes in families.items()}))
"""


@pytest.fixture(scope="module")
def by_family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("experts")
        return run_script(SCRIPT, folder, json.dumps(FAMILIES), str(folder))

    return once(tmp_path_factory, "experts", look)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_engine_computes_what_the_policy_does(by_family: dict[str, Any], family: str) -> None:
    """Of the same weights once more, the same to the bit: also its kernels' packing."""
    found = by_family[family]
    assert found["loaded"] < CLOSE and found["reloaded"] == 0, found
    assert found["trained"] < CLOSE < 0.05 < found["moved"], found


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_that_vllm_does_not_pack_are_named(by_family: dict[str, Any], family: str) -> None:
    """As it would be without `pack_experts_anew`."""
    told = by_family[family]["noticed"]
    assert told is None if family == "gpt_neox" else "experts.routed_experts.w13_weight" in told


def test_a_mixture_of_experts_trains_and_its_average_is_exported(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(toy.model, model, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    known = AutoConfig.from_pretrained(toy.model)
    config = AutoConfig.for_model(
        "mixtral", vocab_size=known.vocab_size, hidden_size=64, num_hidden_layers=2, intermediate_size=96,
        num_attention_heads=2, num_key_value_heads=2, num_experts_per_tok=2, initializer_range=0.2,
        num_local_experts=4, bos_token_id=known.bos_token_id, eos_token_id=known.eos_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    rewards = tmp_path / "reward.py"
    rewards.write_text(REWARDS)
    flags: dict[str, Any] = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16, "actor__adam__lr": 3e-3}
    flags |= {"ada_verify_sync": "always", "ada_logprob_steps": 1, "train__enable_ema": True, "train__ema_beta": 0.5}
    train(toy_flags(toy, run, actor__model_name_or_path=model, reward__remote_url=rewards, **flags))
    assert [row["ada/logprob_gap_mean"] < CLOSE for row in steps_of(run)] == [True, True], steps_of(run)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, run / "model"))
    assert {name: t.shape for name, t in after.items()} == {name: t.shape for name, t in before.items()}
    assert any(not torch.equal(after[name].float(), before[name].float()) for name in before)
