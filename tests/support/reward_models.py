"""A reward model small enough for a test: the toy's layers with a linear head of known weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, LlamaForSequenceClassification


def build_reward_model(toy: Path, out_dir: Path, *, seed: int = 0) -> Path:
    """Save it as OpenRLHF's train_rm does (head `score`, one output, no bias) and return the folder."""
    language = LlamaForCausalLM.from_pretrained(toy, dtype=torch.float32)
    config = language.config
    config.num_labels = 1
    model = LlamaForSequenceClassification(config)
    model.model.load_state_dict(language.model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.score.weight.copy_(torch.randn(1, config.hidden_size, generator=generator) / config.hidden_size**0.5)
    model.bfloat16().save_pretrained(out_dir)
    AutoTokenizer.from_pretrained(toy).save_pretrained(out_dir)
    return out_dir
