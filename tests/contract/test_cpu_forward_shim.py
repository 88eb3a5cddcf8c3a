"""The policy's forward pass on a CPU (platforms/without_gpu/forward.py): OpenRLHF's log-probabilities and gradients.

Logits of the answers only, and each prompt computed once for all of its answers.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import actor as host_actor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from openrlhf_ada.platforms.without_gpu import forward as cpu_forward
from openrlhf_ada.platforms.without_gpu.forward import merge_prompts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is never on beside a GPU")


def replaced(function: Any, name: str) -> Any:
    """OpenRLHF's own function, which the shim calls."""
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
    """Prompts of 3, 5 and 4 tokens, answers of 4, 2 and 5, padded on the right as OpenRLHF does."""
    sequences = torch.randint(1, 37, (3, 9), generator=torch.Generator().manual_seed(1))
    prompt, total = torch.tensor([[3], [5], [4]]), torch.tensor([[7], [7], [9]])
    position = torch.arange(9)
    attention_mask = (position < total).long()
    action_mask = ((position >= prompt) & (position < total))[:, 1:]
    return {"sequences": sequences, "attention_mask": attention_mask, "action_mask": action_mask}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tail_log_probs_equal_full_forward(actor: host_actor.Actor, temperature: float) -> None:
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
    _, output = actor(**make_batch(), return_output=True, return_entropy=True)
    assert output["logits"].shape[1] == 9
    assert output.entropy.shape == (3, 8)
    assert actor(
        make_batch()["sequences"], attention_mask=make_batch()["attention_mask"], return_logprobs=True
    ).shape == (3, 8)


def test_batch_without_any_answer_token_is_computed_whole(actor: host_actor.Actor) -> None:
    batch = make_batch() | {"action_mask": torch.zeros(3, 8, dtype=torch.bool)}
    assert actor(**batch).abs().max() == 0


def merged_batch(
    prompts: list[int], answers: list[list[int]], left: int = 0, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Groups of answers of these lengths to prompts of these lengths, rows shuffled, `left` columns of padding."""
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> torch.Tensor:
        return torch.randint(1, 37, (size,), generator=generator)

    total = left + max(p + max(sizes, default=0) for p, sizes in zip(prompts, answers, strict=True))
    rows = []
    for size, lengths in zip(prompts, answers, strict=True):
        prompt = draw(size)
        for length in lengths:
            tokens, attended, actions = torch.zeros(3, total, dtype=torch.long)
            end = left + size + length
            tokens[left:end] = torch.cat([prompt, draw(length)])
            attended[left:end] = 1
            actions[left + size : end] = 1
            rows.append(torch.stack([tokens, attended, actions]))
    order = torch.randperm(len(rows), generator=generator)
    sequences, attention_mask, actions = torch.stack(rows)[order].unbind(1)
    return {"sequences": sequences, "attention_mask": attention_mask, "action_mask": actions[:, 1:].bool()}


MERGED = {
    "groups of four": merged_batch([9, 9], [[3, 3, 3, 3], [2, 4, 1, 3]]),
    "prompts of other lengths": merged_batch([12, 7], [[2, 5, 3], [4, 2, 2]]),
    "one row alone": merged_batch([9, 9], [[3, 3, 3], [4]]),
    "an answer of one token": merged_batch([5], [[1, 1, 2]]),
    "a row without an answer": merged_batch([9, 9], [[3, 3, 0], [3, 0, 0]]),
    "padding on the left": merged_batch([9, 6], [[3, 3, 3], [2, 3]], left=3),
}


def family(name: str, **changes: Any) -> host_actor.Actor:
    """A small random model of this type with OpenRLHF's actor around it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.for_model(name, **(sizes | heads | changes))
    actor = host_actor.Actor(AutoModelForCausalLM.from_config(config).eval())
    actor.packing_samples = False
    return actor


def computed_tokens(actor: host_actor.Actor) -> list[int]:
    """Filled with the number of tokens of every forward pass to come."""
    seen: list[int] = []
    actor.model.model.embed_tokens.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].numel()))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("case", MERGED)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_shared_prompts_keep_log_probs_and_gradients(name: str, case: str) -> None:
    actor = family(name)
    actor.temperature = 0.8
    batch = MERGED[case]
    full_forward = replaced(host_actor.Actor.forward, "forward")
    weights = torch.rand(batch["action_mask"].shape, generator=torch.Generator().manual_seed(5))
    tokens, results = computed_tokens(actor), []
    for forward in (full_forward, host_actor.Actor.forward):
        actor.zero_grad()
        log_probs, _ = forward(actor, **batch, return_output=True)
        (log_probs * weights).sum().backward()
        results.append((log_probs.detach(), [p.grad.clone() for p in actor.parameters()]))
    assert tokens[1] < tokens[0], "fewer tokens"
    (expected, expected_gradients), (merged, merged_gradients) = results
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-5)
    for gradient, reference in zip(merged_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-5)


def test_plain_attention_of_short_rows_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to those in single precision as torch's other kernel comes."""
    batch = MERGED["groups of four"]
    gradients: dict[str, torch.Tensor] = {}
    for name, dtype, longest in (
        ("exact", torch.float32, 0),
        ("flash", torch.bfloat16, 0),
        ("plain", torch.bfloat16, 128),
    ):
        monkeypatch.setattr(cpu_forward, "SHORT_ROW", longest)
        actor = family("llama")
        actor.temperature = 1.0
        actor.model.to(dtype)
        actor(**batch).sum().backward()
        gradients[name] = torch.cat([p.grad.float().flatten() for p in actor.parameters()])
    errors = {name: float((gradients[name] - gradients["exact"]).norm()) for name in ("flash", "plain")}
    assert 0 < errors["plain"] < 1.5 * errors["flash"] < 0.1 * float(gradients["exact"].norm())
    assert errors["plain"] != errors["flash"], "another kernel"


def test_answers_with_environment_turns() -> None:
    """The mask has a gap; what the environment said is part of the answer's past and has no log-probability."""
    batch = merged_batch([9], [[5, 5, 5, 5]])
    batch["action_mask"][:, 10] = False
    actor = family("llama")
    expected = replaced(host_actor.Actor.forward, "forward")(actor, **batch)
    torch.testing.assert_close(actor(**batch), expected, rtol=1e-4, atol=1e-5)
    assert actor(**batch)[:, 10].abs().max() == 0


@pytest.mark.parametrize(
    ("prompts", "answers", "shape"),
    [
        ([5, 5, 5], [[3], [3], [3]], (3, 7)),  # nothing to share but the answers' last tokens, which predict nothing
        ([2], [[40, 40, 40, 40]], None),  # side by side, long answers are more pairs of tokens than apart
        ([5, 5], [[1, 1], [0, 0]], (1, 5)),
        ([5, 5], [[0, 0], [0, 0]], None),
        ([0], [[3, 3]], None),  # nothing to predict the first token from
    ],
)
def test_rows_are_merged_where_that_pays(
    prompts: list[int], answers: list[list[int]], shape: tuple[int, int] | None
) -> None:
    merged = merge_prompts(**merged_batch(prompts, answers, left=int(prompts == [0])))
    assert (merged and tuple(merged.tokens.shape)) == shape


def test_answer_with_attention_gap_is_left_to_host() -> None:
    batch = merged_batch([9], [[5, 5, 5, 5]])
    batch["attention_mask"][0, 11] = 0
    assert merge_prompts(**batch) is None
    batch["attention_mask"][0] = 0
    assert merge_prompts(**batch) is None, "actions that nothing attends"


def test_other_attention_and_opt_out_keep_host_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_forward._shares_prompts(family("llama").model)
    window = family("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert not cpu_forward._shares_prompts(window.model)
    assert not cpu_forward._shares_prompts(family("mistral").model)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert not cpu_forward._shares_prompts(family("llama", rope_parameters=dynamic).model)
    monkeypatch.setenv(cpu_forward.SHARE_VARIABLE, "0")
    assert not cpu_forward._shares_prompts(family("llama").model)


def test_model_that_cannot_cut_its_logits_is_left_alone() -> None:
    class Plain(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> dict[str, Any]:
            return {"logits": torch.nn.functional.one_hot(input_ids, 37).float()}

    plain = host_actor.Actor(Plain())
    plain.packing_samples = False
    assert plain(**make_batch()).shape == (3, 8)
    assert cpu_forward._keeps_logits(SimpleNamespace(module=LlamaForCausalLM)), "through DeepSpeed's engine as well"


def test_forward_and_log_probs_keep_their_signatures() -> None:
    assert parameters(replaced(host_actor.Actor.forward, "forward"))[:4] == [
        *("self", "sequences", "action_mask", "attention_mask")
    ]
    original = replaced(host_actor.log_probs_from_logits, "log_probs_from_logits")
    assert parameters(original) == ["logits", "labels", "temperature"]
