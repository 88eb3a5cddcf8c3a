"""How vLLM's Model Runner V2 samples, as far as ours relies on it: see test_model_runner_v2.py.

Its kernels and its buffers on the GPU are replaced; the code around them is its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu import async_utils, input_batch
from vllm.v1.worker.gpu.sample import gumbel, logit_bias, logprob, sampler, states

from openrlhf_ada.rollout.tracked_engine import SEED_RANGE, ask_for_tokens_only

pytestmark = pytest.mark.rehearsal

VOCABULARY = 16


class OnCpu:
    """In place of a tensor that V2 keeps on the GPU and writes from the CPU."""

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype, *_: Any, **__: Any) -> None:
        self.gpu = torch.zeros(size, dtype=dtype)
        self.np = self.gpu.numpy()

    def copy_to_uva(self) -> None: ...

    def apply_write(self) -> None: ...

    def stage_write(self, index: int, start: int, values: Any) -> None:
        values = list(values)
        self.np[index, start : start + len(values)] = values


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (states, logit_bias, logprob):
        monkeypatch.setattr(module, "UvaBackedTensor", OnCpu)
    for module in (logit_bias, logprob):
        monkeypatch.setattr(module, "StagedWriteTensor", OnCpu)


def test_noise_depends_on_seed_position_and_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a rollout depends on its seed alone (but for rounding), is the same beside others, after a preemption and in
    prompts computed in parts; and needs no generator of its own, which would be a kernel per rollout and step."""
    drawn: list[tuple[int, int]] = []

    def randint(seed: int, offset: int) -> int:
        drawn.append((seed, offset))
        return (seed * 31 + offset * 7) % 1009

    def rand(seed: int, keys: torch.Tensor) -> torch.Tensor:
        return torch.frac(torch.sin(keys * 12.9898 + seed) * 43758.5453).abs()

    language = SimpleNamespace(
        randint=randint, rand=rand, log=torch.log, where=torch.where, maximum=lambda a, b: torch.clamp(a, min=b),
        max=lambda values, axis, return_indices: torch.max(values, axis),
    )  # fmt: skip
    monkeypatch.setattr(gumbel, "tl", language)
    monkeypatch.setattr(gumbel, "tldevice", SimpleNamespace(log1p=torch.log1p))
    inside = torch.ones(VOCABULARY, dtype=torch.bool)

    def token(seed: int, position: int) -> int:
        chosen = gumbel.gumbel_noised_argmax(
            torch.zeros(VOCABULARY), torch.arange(VOCABULARY), inside, seed, position, 1.0, False, False, False
        )
        return int(chosen[1])

    first = [token(seed, position) for seed in (3, SEED_RANGE - 1) for position in range(20)]
    assert first == [token(seed, position) for seed in (3, SEED_RANGE - 1) for position in range(20)]
    assert len(set(first)) > 4
    assert set(drawn) == {(seed, position) for seed in (3, SEED_RANGE - 1) for position in range(20)}


def test_the_position_is_that_in_the_whole_sequence() -> None:
    """Not that in the batch, in the part of a prompt, or after what the prefix cache had."""
    assert "pos = num_computed_tokens + block" in inspect.getsource(input_batch)
    text = inspect.getsource(sampler.Sampler.__call__)
    assert "pos = input_batch.positions[input_batch.logits_indices]" in text


class Sampled(SimpleNamespace):
    """V2's sampler for two requests; `noisy` has the seeds with which it drew."""


@pytest.fixture
def v2_sampler(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Sampled:
    noisy: list[list[int]] = []

    def draw(logits: torch.Tensor, _: Any, __: Any, seeds: torch.Tensor, *___: Any, **____: Any) -> torch.Tensor:
        noisy.append(seeds[:2].tolist())
        return logits.argmin(dim=-1)

    def by_temperature(logits: torch.Tensor, mapping: torch.Tensor, temperature: torch.Tensor) -> None:
        logits /= temperature[mapping][:, None]

    def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return logits.log_softmax(-1).gather(1, token_ids)

    class NoKernel:
        def __getitem__(self, _: Any) -> Any:
            return lambda *args, **kwargs: None

    monkeypatch.setattr(sampler, "gumbel_sample", draw)
    monkeypatch.setattr(sampler, "flashinfer_sample", None)
    monkeypatch.setattr(sampler, "apply_top_k_top_p", lambda logits, *_: logits)
    monkeypatch.setattr(sampler, "get_num_sampled_and_rejected", lambda ones, *_: (ones, ones - 1))
    monkeypatch.setattr(states, "apply_temperature", by_temperature)
    monkeypatch.setattr(logprob, "compute_token_logprobs", logprobs_of)
    monkeypatch.setattr(logprob, "_ranks_kernel", NoKernel())
    monkeypatch.setattr(logit_bias, "apply_logit_bias", lambda *_, **__: None)
    nothing: Any = SimpleNamespace(
        add_request=lambda *_: None,
        apply_penalties=lambda *_: None,
        apply_bad_words=lambda *_: None,
        apply=lambda *_: None,
        use_penalty=np.zeros(2, bool),
        num_bad_words=SimpleNamespace(np=np.zeros(2, int)),
        enabled=False,
    )
    for name in ("PenaltiesState", "BadWordsState", "ThinkingBudgetState"):
        monkeypatch.setattr(sampler, name, lambda *_: nothing)
    monkeypatch.setattr(sampler, "flashinfer_sampler_supported", lambda: True)
    requests = SimpleNamespace(prefill_len=SimpleNamespace(gpu=torch.zeros(2)))
    made = sampler.Sampler(
        2,
        VOCABULARY,
        torch.device("cpu"),
        requests,
        logprobs_mode="processed_logprobs",  # type: ignore[arg-type]
    )
    return Sampled(sampler=made, noisy=noisy)


def sample(made: Sampled, *params: SamplingParams) -> tuple[Any, torch.Tensor]:
    """V2's output for one token of two requests, and their logits."""
    for place, of_request in enumerate(params):
        made.sampler.add_request(place, 5, of_request)
    logits = torch.arange(2.0 * VOCABULARY).reshape(2, VOCABULARY) / 7
    places = torch.arange(2)
    batch = SimpleNamespace(
        expanded_idx_mapping=places,
        idx_mapping=places,
        idx_mapping_np=places.numpy(),
        cu_num_logits_np=np.arange(3),
        cu_num_logits=torch.arange(3),
        expanded_local_pos=torch.zeros(2),
        positions=torch.tensor([9, 9]),
        logits_indices=places,
        input_ids=torch.tensor([1, 1]),
        seq_lens=torch.tensor([10, 10]),
        num_reqs=2,
    )
    return made.sampler(logits.clone(), batch), logits


def lean(seed: int, **more: Any) -> SamplingParams:
    params = SamplingParams(seed=seed, logprobs=1, **more)
    ask_for_tokens_only(params)
    return params


def test_every_seed_is_used_whole(v2_sampler: Sampled) -> None:
    """FlashInfer's sampler, which knows no seeds, is not asked even for top-p."""
    sample(v2_sampler, lean(SEED_RANGE - 1, top_p=0.9), lean(7, top_p=0.9, top_k=4))
    assert v2_sampler.noisy == [[SEED_RANGE - 1, 7]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_of_the_sampled_token_and_distribution(v2_sampler: Sampled, temperature: float) -> None:
    """After the temperature, where training has it too; one column, the sampled token's."""
    output, logits = sample(v2_sampler, lean(1, temperature=temperature), lean(2, temperature=temperature))
    tokens = output.sampled_token_ids
    assert output.logprobs_tensors.logprob_token_ids.tolist() == tokens.tolist() == [[0], [0]]
    expected = (logits / temperature).log_softmax(-1)[:, :1]
    torch.testing.assert_close(output.logprobs_tensors.logprobs, expected)


def test_a_batch_may_mix_those_with_and_without_log_probabilities(v2_sampler: Sampled) -> None:
    output, _ = sample(v2_sampler, lean(1), SamplingParams(seed=2))
    assert output.logprobs_tensors.logprobs.shape == (2, 1)
    output, _ = sample(v2_sampler, SamplingParams(seed=1), SamplingParams(seed=2))
    assert output.logprobs_tensors is None


@pytest.mark.parametrize(("end_tokens", "fits"), [(1, True), (128, True), (129, False)])
def test_answers_do_not_end_before_their_first_token(on_cpu: None, end_tokens: int, fits: bool) -> None:
    """OpenRLHF asks for one token at least. V2 then takes 128 end tokens of a model at most, where V1 takes any
    number; with more, vLLM's core dies at the first rollout. (The demo's model has 91.)"""
    bias = logit_bias.LogitBiasState(1, torch.device("cpu"))
    params = SamplingParams(min_tokens=1)
    params.update_from_generation_config({"eos_token_id": list(range(2, 2 + end_tokens))}, 2)
    if not fits:
        with pytest.raises(ValueError, match="Too many stop tokens: 129"):
            bias.add_request(0, 5, params)
        return
    bias.add_request(0, 5, params)
    assert bias.use_logit_bias[0]
    assert bias.min_lens.np[0] == 6
    assert set(bias.stop_token_ids.gpu[0, :end_tokens].tolist()) == set(range(2, 2 + end_tokens))


def test_the_core_gets_what_v1_gives_it() -> None:
    """Lists of token ids, and log-probabilities that can be cut by request."""
    output: Any = async_utils.AsyncOutput.__new__(async_utils.AsyncOutput)
    output.copy_event = SimpleNamespace(synchronize=lambda: None)
    output.model_runner_output = SimpleNamespace(req_ids=["a", "b"])
    output.sampled_token_ids, output.num_sampled_tokens_np = np.array([[4], [5]]), np.array([1, 0])
    output.logprobs_tensors = logprob.LogprobsTensors(
        torch.tensor([[4], [5]]), torch.tensor([[-1.0], [-2.0]]), torch.tensor([1, 1])
    )
    output.sampling_mask_tensors = output.num_nans = output.routed_experts_cpu = output._has_fault = None
    output.prompt_logprobs_dict = {}
    made = output.get_output()
    assert made.sampled_token_ids == [[4], []], "one in the middle of its prompt has none"
    assert made.logprobs.slice_request(1, 1).logprobs.tolist() == [[-2.0]]
