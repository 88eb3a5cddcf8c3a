"""A model's configuration from which vLLM makes its own; there are no weights."""

from __future__ import annotations

import json
from pathlib import Path

LIKE_QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


def write_config(folder: Path) -> str:
    """The folder, with a configuration in it."""
    (folder / "config.json").write_text(json.dumps(LIKE_QWEN))
    return str(folder)
