"""Weights of known models by their shapes alone, as their checkpoints name them."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_ada.weights.manifest import Manifest, TensorSpec


@dataclass(frozen=True)
class Shapes:
    """The numbers of a config.json. `experts`: per layer, 0 for a dense model; `inner`: width of one MLP or expert;
    `biases`: of query, key and value."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int = 128
    experts: int = 0
    tied: bool = False
    biases: bool = False

    def manifest(self) -> Manifest:
        """All tensors in bfloat16, in the order of the checkpoint."""
        sizes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (self.vocabulary, self.hidden))]
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            query, key = self.heads * self.head_size, self.kv_heads * self.head_size
            sizes += [
                (f"{at}.self_attn.q_proj.weight", (query, self.hidden)),
                (f"{at}.self_attn.k_proj.weight", (key, self.hidden)),
                (f"{at}.self_attn.v_proj.weight", (key, self.hidden)),
                (f"{at}.self_attn.o_proj.weight", (self.hidden, query)),
            ]
            if self.biases:
                sizes += [(f"{at}.self_attn.{name}_proj.bias", (query if name == "q" else key,)) for name in "qkv"]
            parts = [f"{at}.mlp.experts.{e}" for e in range(self.experts)] or [f"{at}.mlp"]
            for names, shape in (
                (("gate_proj", "up_proj"), (self.inner, self.hidden)),
                (("down_proj",), (self.hidden, self.inner)),
            ):
                sizes += [(f"{part}.{name}.weight", shape) for part in parts for name in names]
            if self.experts:
                sizes.append((f"{at}.mlp.gate.weight", (self.experts, self.hidden)))
            sizes += [(f"{at}.{norm}.weight", (self.hidden,)) for norm in ("input_layernorm", "post_norm")]
        sizes.append(("model.norm.weight", (self.hidden,)))
        if not self.tied:
            sizes.append(("lm_head.weight", (self.vocabulary, self.hidden)))
        return Manifest(tuple(TensorSpec(name, "bfloat16", shape, _source(name)) for name, shape in sizes))


def _source(name: str) -> str:
    """transformers joins the experts of a layer to two parameters."""
    layer, experts, projection = name.partition(".experts.")
    return "" if not experts else f"{layer}.experts.{'down' if 'down' in projection else 'gate_up'}_proj"


MODELS = {
    "Qwen2.5-1.5B": Shapes(151_936, 1_536, 8_960, 28, 12, 2, tied=True, biases=True),
    "Qwen3-4B": Shapes(151_936, 2_560, 9_728, 36, 32, 8, tied=True),
    "Qwen2.5-7B": Shapes(152_064, 3_584, 18_944, 28, 28, 4, biases=True),
    "Llama-3.1-70B": Shapes(128_256, 8_192, 28_672, 80, 64, 8),
    "Qwen3-30B-A3B (experts)": Shapes(151_936, 2_048, 768, 48, 32, 4, experts=128),
    "Mixtral-8x7B (experts)": Shapes(32_000, 4_096, 14_336, 32, 32, 8, experts=8),
}
