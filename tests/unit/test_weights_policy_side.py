"""What is sent of a policy: every weight under its checkpoint's name, adapters merged into copies (R24)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from policies import make_model, move, sent, weights_of, with_adapters

from openrlhf_ada.weights.policy_side import PolicyWeights

pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_all_weights_are_sent_under_their_names(ties: bool, bucket_bytes: int) -> None:
    model = make_model(tie_word_embeddings=ties)
    found = sent(weights_of(model, bucket_bytes=bucket_bytes))
    expected = dict(model.named_parameters())
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], parameter) for name, parameter in expected.items())


def test_weights_are_those_of_the_moment() -> None:
    model = make_model()
    weights = weights_of(model)
    before = sent(weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    assert all(torch.equal(tensor, before[name] + 1) for name, tensor in sent(weights).items())


def test_frozen_weights_are_not_sent_with_only_trained() -> None:
    model = make_model()
    model.model.embed_tokens.requires_grad_(False)
    weights = weights_of(model, only_trained=True)
    assert not weights.manifest.is_whole
    assert set(sent(weights)) == {name for name, p in model.named_parameters() if p.requires_grad}


# -- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]], ids=["all", "two"])
def test_adapters_are_merged_under_base_names(targets: Any) -> None:
    """What peft's own merging gives, and what a plain checkpoint calls it."""
    plain_names = [name for name, _ in make_model().named_parameters()]
    adapted = with_adapters(make_model(), target_modules=targets)
    found = sent(weights_of(adapted))
    assert list(found) == plain_names
    expected = dict(adapted.merge_and_unload().named_parameters())
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name])


def test_adapter_on_tied_output_layer_is_refused() -> None:
    """Engines have one weight for both, and the adapter changes one of them."""
    with pytest.raises(ValueError, match=r"^the adapter of lm_head cannot be merged .*tie_word_embeddings"):
        weights_of(with_adapters(make_model(tie_word_embeddings=True), target_modules=["q_proj", "lm_head"]))
    weights_of(with_adapters(make_model(tie_word_embeddings=False), target_modules=["q_proj", "lm_head"]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thousand_updates_leave_trained_weights_alone(dtype: torch.dtype) -> None:
    """To the bit, and the last one is what a single one would have been: nothing drifts (R24)."""
    adapted = with_adapters(make_model(dtype))
    weights = weights_of(adapted)
    base = {name: p.clone() for name, p in adapted.named_parameters() if "lora_" not in name}
    for _ in range(1000):
        move(adapted, step=1e-3)
        with weights.gathered(weights.manifest.tensors[1:3]) as tensors:
            last = [tensor.clone() for tensor in tensors]
    assert all(torch.equal(p, base[name]) for name, p in adapted.named_parameters() if name in base)
    fresh = weights_of(adapted)
    with fresh.gathered(fresh.manifest.tensors[1:3]) as tensors:
        assert all(torch.equal(one, other) for one, other in zip(tensors, last, strict=True))


def test_merging_is_in_single_precision_and_rounds_once() -> None:
    adapted = with_adapters(make_model(torch.bfloat16))
    layer = adapted.base_model.model.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    exact = layer.base_layer.weight.double() + layer.scaling["default"] * (b @ a)
    found = sent(weights_of(adapted))["model.layers.0.mlp.up_proj.weight"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.to(torch.bfloat16))


@pytest.mark.parametrize(
    "changes", [{"use_dora": True}, {"target_modules": ["embed_tokens"]}], ids=["DoRA", "embeddings"]
)
def test_adapters_other_than_two_factors_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^the adapter of .* cannot be merged for the engines: .*--ds.lora.target_modules"
    ):
        weights_of(with_adapters(make_model(), **changes))


def test_shards_are_gathered_batch_by_batch() -> None:
    """An adapter's factors with the weight that they add to."""
    asked: list[int] = []
    gather: Callable[[list[Any]], Any] = lambda parameters: nullcontext(asked.append(len(parameters)))  # noqa: E731
    weights = PolicyWeights(with_adapters(make_model(), target_modules=["q_proj"]), gather, lambda p: p.shape)
    (batch,) = weights.manifest.batches()
    with weights.gathered(batch):
        assert asked == [len(batch) + 2 * 2]
