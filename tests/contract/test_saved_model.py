"""transformers' conversions between a model's parameters and its checkpoint: what is sent is what it would save."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from policies import make_model, sent, weights_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import PrefixChange

from openrlhf_ada.weights.policy_side import PolicyWeights

pytestmark = pytest.mark.rehearsal

EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 8},
    "qwen3_moe": {"num_experts": 4},
    "olmoe": {"num_experts": 4},
    "glm4_moe": {"n_routed_experts": 4, "first_k_dense_replace": 1},
    "granitemoe": {"num_local_experts": 4},
}
"""Families of mixtures of experts. On real engines: tests/e2e/test_experts.py."""


@pytest.mark.slow
@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_sent_as_save_pretrained_writes_them(family: str, adapts: bool, tmp_path: Path) -> None:
    """And joined ones are gathered once each, though they fill many buckets."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8}
    config = AutoConfig.for_model(
        family, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, num_experts_per_tok=2, **sizes,
        **EXPERTS[family],
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    # Buffers, such as the load balance of experts, stay what the engines have loaded.
    buffers = {name for name, _ in model.named_buffers()}
    expected = {name: t for name, t in load_file(tmp_path / "model.safetensors").items() if name not in buffers}
    if adapts:
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    gathered: list[Any] = []
    gather: Any = lambda parameters: nullcontext(gathered.extend(parameters))  # noqa: E731
    weights = PolicyWeights(model, gather, lambda p: p.shape, bucket_bytes=500)
    found = sent(weights)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert len(gathered) == len(list(model.parameters())), "each once"
    assert sent(weights_of(model, as_saved=False)).keys() != expected.keys()


def test_conversions_that_were_not_needed_are_not_reverted() -> None:
    """transformers keeps all with ZeRO-3. This one's reversal gives every name a prefix."""
    model: Any = make_model()
    names = list(sent(weights_of(model)))
    for was_needed in (False, True):
        change = PrefixChange(prefix_to_remove="language_model")
        if was_needed:
            change.rename_source_key("language_model.lm_head.weight")
        model._weight_conversions = [change]
        prefix = "language_model." if was_needed else ""
        assert list(sent(weights_of(model))) == [prefix + name for name in names]
