"""What our code takes for granted of vLLM's model runner, held against Model Runner V2, which GPUs use.

CPUs have V1, so no run on a CPU shows any of this. The code that is called here is V2's own; only its kernels and
buffers on the GPU are replaced. docs/gpu.md lists the assumptions and names these tests.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.config import vllm as vllm_config
from vllm.model_executor.model_loader import base_loader
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.sampling_params import SamplingParams
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu import async_utils, attn_utils, input_batch, model_runner
from vllm.v1.worker.gpu.sample import gumbel, logit_bias, logprob, sampler, states

from openrlhf_ada.rollout.tokens_only import ask_for_tokens_only
from openrlhf_ada.rollout.tracked_engine import SEED_RANGE
from openrlhf_ada.weights.engine_side import ReceivesWeights
from openrlhf_ada.weights.manifest import Manifest, TensorSpec, bucket_size, checksum, pack
from openrlhf_ada.weights.receiver import BACKEND, WeightReceiver

V2 = model_runner.GPUModelRunner
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


# -- which runner -----------------------------------------------------------------------------------------------------

LIKE_QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("over_ipc", [False, True])
def test_nothing_that_we_ask_for_keeps_a_gpu_from_v2(
    over_ipc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM goes back to V1, with one line in a log, for what V2 does not have yet."""
    (tmp_path / "config.json").write_text(json.dumps(LIKE_QWEN))
    actor = ReceivesWeights()
    actor.over_ipc = over_ipc
    host = {"enable_prefix_caching": True, "worker_extension_cls": "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"}
    arguments = vllm.AsyncEngineArgs(
        model=str(tmp_path), skip_tokenizer_init=True, distributed_executor_backend="uni", **actor.with_receiver(host)
    )
    config = arguments.create_engine_config()
    assert config._get_v2_model_runner_unsupported_features() == []
    assert config.use_v2_model_runner is False, "this machine has no Triton: tests of the real engine here show V1"
    monkeypatch.setattr(vllm_config, "HAS_TRITON", True)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    assert config.use_v2_model_runner is True


# -- sampling ---------------------------------------------------------------------------------------------------------


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
    """The host asks for one token at least. V2 then takes 128 end tokens of a model at most, where V1 takes any
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


# -- weights ----------------------------------------------------------------------------------------------------------


class TinyModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)

    def load_weights(self, weights: Any) -> None:
        for name, weight in weights:
            parameter: Any = self.get_parameter(name)
            parameter.weight_loader(parameter, weight)


class Group:
    """Hands out one bucket."""

    def __init__(self, packed: torch.Tensor) -> None:
        self.packed = packed

    def arrivals(self, sizes: Sequence[int]) -> Any:
        assert list(sizes) == [self.packed.numel()]
        yield self.packed


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's GPU worker with a V2 runner, as `load_model` leaves them."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    runner: Any = V2.__new__(V2)
    runner.lora_config = None
    model = TinyModel().requires_grad_(False)
    layerwise.record_metadata_for_reloading(model)

    def load_model(load_dummy_weights: bool) -> None:
        runner.model = model

    runner.load_model = load_model
    made: Any = gpu_worker.Worker.__new__(gpu_worker.Worker)
    made.vllm_config = VllmConfig(weight_transfer_config=WeightTransferConfig(backend=BACKEND))
    made.device, made.rank, made.model_runner = torch.device("cpu"), 0, runner
    made._weight_update_active = made._weight_update_is_draft = False
    made.load_model()
    return made


def test_updates_reach_the_runners_model_in_place(worker: Any) -> None:
    """Captured CUDA graphs read the weights where they lay when they were captured."""
    model = worker.model_runner.get_model()
    receiver = worker.weight_transfer_engine
    assert isinstance(receiver, WeightReceiver) and receiver.model is model
    places = [parameter.data_ptr() for parameter in model.parameters()]
    sent = {name: torch.full(p.shape, 3.5) for name, p in model.named_parameters()}
    specs = tuple(TensorSpec(name, "float32", tuple(t.shape)) for name, t in sent.items())
    (bucket,) = Manifest(specs, True, bucket_bytes=1 << 20).buckets()
    packed = torch.empty(bucket_size(bucket), dtype=torch.uint8)
    pack(bucket, [sent[spec.name] for spec in bucket], packed)
    receiver._group = Group(packed)
    worker.start_weight_update()
    worker.update_weights({"manifest": Manifest(specs, True, bucket_bytes=1 << 20).to_plain(), "sums": True})
    worker.finish_weight_update()
    assert receiver.sums == [checksum(sent[spec.name]) for spec in bucket]
    assert all(bool((parameter == 3.5).all()) for parameter in model.parameters())
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_v2_loads_models_so_that_they_can_be_reloaded() -> None:
    """With what vLLM's layerwise reload needs to know of every layer, recorded when the model is made."""
    assert "model_loader.load_model(" in inspect.getsource(V2.load_model)
    assert "initialize_model(" in inspect.getsource(base_loader.BaseModelLoader.load_model)
    assert "record_metadata_for_reloading(model)" in inspect.getsource(initialize_model)


def test_the_hosts_extension_finds_what_it_loads_into(host_source: Any) -> None:
    """Where policy and engine share a GPU, weights go the host's way: it reads these of the worker."""
    text = host_source.text("trainer/ray/vllm_worker_wrap.py", "WorkerWrap.update_weight_cuda_ipc")
    assert "self.model_runner.model.load_weights(" in text
    assert "dtype == self.model_config.dtype" in text
    assert "device_id = self.device.index" in text
    assert "self.model = model_loader.load_model(" in inspect.getsource(V2.load_model)


def test_images_cached_by_old_weights_can_be_forgotten() -> None:
    """V2 keeps what the image encoder has made, by image, and beyond a request."""
    cleared: list[str] = []
    runner: Any = V2.__new__(V2)
    runner.pooling_runner = None
    runner.encoder_cache = SimpleNamespace(reset_encoder_cache=lambda: cleared.append("encoder"))
    runner.reset_encoder_cache()
    assert cleared == ["encoder"]


# -- sleep ------------------------------------------------------------------------------------------------------------


def test_the_cache_lies_in_memory_that_sleep_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing but the cache: V2 allocates it alone in that pool."""
    told: list[str] = []

    @contextmanager
    def pool() -> Any:
        told.append("in")
        yield
        told.append("out")

    monkeypatch.setattr(attn_utils, "allocate_kv_cache", lambda *_: told.append("cache") or {})
    monkeypatch.setattr(attn_utils, "get_shared_kv_cache_layers", lambda _: {})
    monkeypatch.setattr(attn_utils, "bind_kv_cache", lambda *_: told.append("bound"))
    config: Any = SimpleNamespace(
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: None),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen2")),
    )
    attn_utils.init_kv_cache([], {}, SimpleNamespace(), torch.device("cpu"), [], config, pool())  # type: ignore[arg-type]
    assert told == ["in", "cache", "out", "bound"]
    assert "kv_cache_allocation_context=kv_cache_allocation_context" in inspect.getsource(V2.initialize_kv_cache)
    assert 'tag="kv_cache"' in inspect.getsource(gpu_worker.Worker.initialize_from_config)


def test_engines_must_sleep_at_level_1(host_source: Any) -> None:
    """Level 1 keeps a copy of the weights' pool. V2 makes its sampler there too, with what requests asked for; level 2
    would bring back the model's buffers only."""
    assert "self.sampler = Sampler(" in inspect.getsource(V2.load_model)
    loads = inspect.getsource(gpu_worker.Worker.load_model)
    assert loads.index('tag="weights"') < loads.index("self.model_runner.load_model(")
    assert host_source.parameters("trainer/ray/vllm_engine.py", "RolloutRayActor.sleep") == "self, level="
    assert host_source.text("trainer/ray/vllm_engine.py", "RolloutRayActor.sleep").startswith(
        "async def sleep(self, level=1)"
    )
    text = host_source.text("trainer/ppo_utils/samples_generator.py", "SamplesGenerator")
    assert "batch_vllm_engine_call(self.vllm_engines, 'sleep')" in text


def test_the_page_on_gpus_names_all_of_these() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    section = page.split("## What our code takes for granted of vLLM's model runner")[1].split("\n## ")[0]
    ours = {name for name in globals() if name.startswith("test_")} - {"test_the_page_on_gpus_names_all_of_these"}
    assert set(re.findall(r"`(test_\w+)`", section)) == ours
