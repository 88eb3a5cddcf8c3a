"""Small policies, with and without adapters, and what is sent of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from openrlhf_ada.weights.policy_side import PolicyWeights


def make_model(dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, **changes
    )
    return LlamaForCausalLM(config).to(dtype)


def with_adapters(model: LlamaForCausalLM, **changes: Any) -> Any:
    """As OpenRLHF makes them, after some training."""
    options: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "bias": "none"}
    adapted: Any = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options | changes))
    move(adapted)
    return adapted


def move(adapted: Any, step: float = 0.1) -> None:
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter += step * torch.randn_like(parameter)


def weights_of(model: Any, **options: Any) -> PolicyWeights:
    return PolicyWeights(model, lambda _: nullcontext(), lambda p: p.shape, **options)


def sent(weights: PolicyWeights) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for batch in weights.manifest.batches():
        with weights.gathered(batch) as tensors:
            found |= {spec.name: tensor.clone() for spec, tensor in zip(batch, tensors, strict=True)}
    return found
