"""A model with random weights in a known architecture, and prompts for it, so that nothing has to be downloaded.

Its answers are noise and end at the limit of tokens. Seconds and memory are those of the architecture.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from openrlhf_ada.demo.artifacts import build_directory

SPECIAL = ("<pad>", "<eos>")


@dataclass(frozen=True, slots=True)
class Shape:
    """As Qwen2Config names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int


QWEN_1_5B = Shape(1536, 8960, 28, 12, 2, 151_936, 32_768)
"""Qwen2.5-1.5B."""

TINY = Shape(64, 128, 2, 2, 2, 512, 512)
"""Heads of 32, the smallest that vLLM's attention on a CPU supports."""


def build_random_model(folder: Path, shape: Shape) -> Path:
    """In bfloat16; at once where it is complete. Returns the folder."""
    return build_directory(folder, {"model": "random", "version": 2} | asdict(shape), lambda made: _build(made, shape))


def _build(folder: Path, shape: Shape) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    words = [*SPECIAL, *sorted(ByteLevel.alphabet())]
    words += [f"w{i}" for i in range(shape.vocab_size - len(words))]
    pad, eos = SPECIAL
    # Without merges a letter is a token.
    numbers = {word: number for number, word in enumerate(words)}
    Qwen2Tokenizer(vocab=numbers, merges=[], pad_token=pad, eos_token=eos, unk_token=pad).save_pretrained(folder)
    special: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Qwen2ForCausalLM(
            Qwen2Config(**asdict(shape), tie_word_embeddings=True, rope_theta=1e6, dtype="bfloat16", **special)
        )
    finally:
        torch.set_default_dtype(before)
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(folder)


def write_prompts(file: Path, count: int, tokens: int) -> None:
    """Of so many letters each."""
    random = Random(0)
    rows = ({"input": "".join(random.choices(ascii_lowercase, k=tokens)), "label": ""} for _ in range(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
