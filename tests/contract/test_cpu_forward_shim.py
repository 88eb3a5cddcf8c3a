"""Logits of the answers only (platforms/cpu.py, adapt_actor): same log-probabilities and gradients as the host's."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import actor as host_actor
from transformers import LlamaConfig, LlamaForCausalLM

from openrlhf_ada.platforms import cpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is never on beside a GPU")


def replaced(function: Any, name: str) -> Any:
    """The host's own function, which the shim calls."""
    return inspect.getclosurevars(function).nonlocals[name]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.fixture(scope="module")
def actor() -> host_actor.Actor:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=37, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    actor = host_actor.Actor(LlamaForCausalLM(config).eval())
    actor.packing_samples = False
    return actor


def make_batch() -> dict[str, torch.Tensor]:
    """Prompts of 3, 5 and 4 tokens, answers of 4, 2 and 5, padded on the right as the host does."""
    sequences = torch.randint(1, 37, (3, 9), generator=torch.Generator().manual_seed(1))
    prompt, total = torch.tensor([[3], [5], [4]]), torch.tensor([[7], [7], [9]])
    position = torch.arange(9)
    attention_mask = (position < total).long()
    action_mask = ((position >= prompt) & (position < total))[:, 1:]
    return {"sequences": sequences, "attention_mask": attention_mask, "action_mask": action_mask}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_of_the_tail_are_those_of_the_full_forward(actor: host_actor.Actor, temperature: float) -> None:
    actor.temperature = temperature
    full_forward = replaced(host_actor.Actor.forward, "forward")
    batch = make_batch()
    computed: list[int] = []
    handle = actor.model.lm_head.register_forward_hook(lambda _m, _i, out: computed.append(out.shape[1]))
    gradients = []
    for forward in (full_forward, host_actor.Actor.forward):
        actor.zero_grad()
        log_probs = forward(actor, **batch)
        log_probs.sum().backward()
        gradients.append((log_probs.detach(), actor.model.model.embed_tokens.weight.grad.clone()))
    handle.remove()
    (expected, expected_gradient), (tail, tail_gradient) = gradients
    assert computed == [9, 7], "logits at 9 positions, then from the first answer's predecessor on"
    torch.testing.assert_close(tail, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tail_gradient, expected_gradient, rtol=1e-5, atol=1e-5)
    assert tail[~batch["action_mask"]].abs().max() == 0


def test_full_logits_where_they_are_asked_for(actor: host_actor.Actor) -> None:
    with torch.compiler.set_stance("force_eager"):  # the host compiles its entropy, which takes seconds
        _, output = actor(**make_batch(), return_output=True, return_entropy=True)
    assert output["logits"].shape[1] == 9
    assert output.entropy.shape == (3, 8)
    assert actor(
        make_batch()["sequences"], attention_mask=make_batch()["attention_mask"], return_logprobs=True
    ).shape == (3, 8)


def test_batch_without_any_answer_token_is_computed_whole(actor: host_actor.Actor) -> None:
    batch = make_batch() | {"action_mask": torch.zeros(3, 8, dtype=torch.bool)}
    assert actor(**batch).abs().max() == 0


def test_model_that_cannot_cut_its_logits_is_left_alone() -> None:
    class Plain(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> dict[str, Any]:
            return {"logits": torch.nn.functional.one_hot(input_ids, 37).float()}

    plain = host_actor.Actor(Plain())
    plain.packing_samples = False
    assert plain(**make_batch()).shape == (3, 8)
    assert cpu._keeps_logits(SimpleNamespace(module=LlamaForCausalLM)), "through DeepSpeed's engine as well"


def test_forward_and_log_probs_have_the_signatures_that_the_shims_expect() -> None:
    assert parameters(replaced(host_actor.Actor.forward, "forward"))[:4] == [
        *("self", "sequences", "action_mask", "attention_mask")
    ]
    original = replaced(host_actor.log_probs_from_logits, "log_probs_from_logits")
    assert parameters(original) == ["logits", "labels", "temperature"]
