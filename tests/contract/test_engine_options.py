"""--ada_engine_args against vLLM's own arguments: nothing of its engine is out of reach without a reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.utils.cpu_triton_utils as cpu_kernels
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.host import engine_options
from openrlhf_ada.host.engine_options import check_stops, engine_arguments, engine_notes, options_of, reasons, recorded

pytestmark = pytest.mark.rehearsal

FIELDS = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


def test_every_option_of_vllms_engine_is_taken_or_refused() -> None:
    """A new vLLM may have others, which somebody has to look at."""
    known = engine_options._parser()[1].keys()
    assert FIELDS - known - reasons("denied").keys() == set(), "out of reach"
    assert reasons("denied").keys() <= FIELDS
    for part in ("changed", "needs_gpu"):
        assert reasons(part).keys() <= known - reasons("denied").keys(), part


@pytest.mark.parametrize("name", ["tensor_parallel_size", "data_parallel_size", "enable_lora", "kv_transfer_config"])
def test_what_is_denied_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options_of(json.dumps({name.replace("_", "-"): 2}))
    assert (refused.value.flag, refused.value.value) == ("--ada_engine_args", name)
    assert refused.value.rule == reasons("denied")[name]


TAKEN: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "max_num_seqs": (64, lambda v: v == 64),
    "max_num_batched_tokens": ("16k", lambda v: v == 16000),
    "quantization": ("fp8", lambda v: v == "fp8"),
    "kv_cache_dtype": ("fp8_e4m3", lambda v: v == "fp8_e4m3"),
    "attention_backend": ("FLASHINFER", lambda v: v == "FLASHINFER"),
    "enable_expert_parallel": (True, lambda v: v is True),
    "async_scheduling": (False, lambda v: v is False),
    "optimization_level": (0, lambda v: v == "0"),
    "disable_log_stats": (False, lambda v: v is False),
    "cudagraph_capture_sizes": ([1, 2, 4], lambda v: v == [1, 2, 4]),
    "kv_cache_dtype_skip_layers": (["0", "-1"], lambda v: v == ["0", "-1"]),
    "compilation_config": ({"cudagraph_mode": "FULL"}, lambda v: v.cudagraph_mode.name == "FULL"),
    "speculative_config": (NGRAM, lambda v: v == NGRAM),
}
"""What the field asks for, as it is given, and what vLLM makes of it."""


@pytest.mark.parametrize("name", TAKEN)
def test_options_arrive_as_vllm_reads_them(name: str) -> None:
    given, is_right = TAKEN[name]
    read = engine_arguments(json.dumps({name: given}))
    assert is_right(read[name])
    # A CPU has no configuration for some; vLLM's dataclass takes them all.
    assert getattr(AsyncEngineArgs(model="none", **read), name) == read[name]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_num_seq": 64}, "Did you mean max_num_seqs?"),
        ({"max_num_seqs": "many"}, "many"),
        ({"max_num_seqs": True}, "another kind"),
        ({"max_num_seqs": 0}, "greater than or equal to 1"),
        ({"enable_expert_parallel": 1}, "true or false"),
        ({"kv_cache_dtype": "fp9"}, "fp8_e5m2"),
        ({"kv_cache_dtype": None}, "another kind"),
        ({"attention_backend": "FLASH"}, "FLASH_ATTN"),
        ({"quantization": "awq"}, "fp8_per_block"),
        ({"compilation_config": {"cudagraph_mod": "FULL"}}, "cudagraph_mod"),
        ({"speculative_config": NGRAM | {"prompt_lookup": 4}}, "Did you mean prompt_lookup_m"),
        ({"speculative_config": {"method": "eagle9"}}, "eagle3"),
        ({"speculative_config": NGRAM | {"rejection_sample_method": "synthetic"}}, "whatever the policy"),
        ({"speculative_config": NGRAM | {"num_speculative_tokens": 0}}, "greater than 0"),
        ({"speculative_config": []}, "names and values"),
        ({"load_format": "Dummy"}, "random weights"),
    ],
)
def test_what_vllm_would_not_take_is_refused_before_it_starts(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=r"^--ada_engine_args is ") as refused:
        engine_arguments(json.dumps(options))
    assert told in str(refused.value)


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        options_of('{"hf_token": "hf_abcdefgh"}')
    assert "hf_abcdefgh" not in str(refused.value)


@pytest.mark.parametrize("text", ["max-num-seqs: 64\nwatermark: 0.1\n", '{"watermark": 0.1, "max_num_seqs": 64}'])
def test_a_file_is_recorded_by_what_is_in_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "engine"
    file.write_text(text)
    assert recorded(str(file)) == '{"max_num_seqs": 64, "watermark": 0.1}' == recorded(recorded(str(file)))
    file.write_text("")
    twice = ('{"watermark": 0, "watermark": 0.1}', '{"max-num-seqs": 8, "max_num_seqs": 8}')
    for wrong in (str(file), str(tmp_path / "none.yaml"), "{max_num_seqs", *twice):
        with pytest.raises(ConfigError, match=r"^--ada_engine_args is "):
            recorded(wrong)
    assert recorded(None) is recorded("{}") is None


def host(options: dict[str, Any], correction: str = "off", steps: int = 10) -> Any:
    ada = SimpleNamespace(engine_args=json.dumps(options), sampling_args=None, logprob_steps=steps)
    return SimpleNamespace(ada=ada, algo=SimpleNamespace(advantage=SimpleNamespace(is_correction_level=correction)))


def test_what_changes_log_probabilities_names_its_guard() -> None:
    (note,) = engine_notes(host({"kv_cache_dtype": "fp8", "quantization": "fp8", "max_num_seqs": 8}))
    assert "kv_cache_dtype, quantization" in note and "max_num_seqs" not in note
    assert "ada/logprob_gap_mean" in note and "is_correction_level" in note
    assert [*engine_notes(host({"max_num_seqs": 8}))] == []


def test_what_changes_log_probabilities_is_not_taken_unseen() -> None:
    for taken in (host({"quantization": "fp8"}, "token", 0), host({"max_num_seqs": 8}, steps=0)):
        engine_options.check_in_training(taken)
    with pytest.raises(ConfigError, match=r"^--ada_logprob_steps is 0: .*quantization"):
        engine_options.check_in_training(host({"quantization": "fp8"}, steps=0))


def test_no_draft_goes_on_behind_a_stop_text() -> None:
    check_stops({"speculative_config": NGRAM}, None)
    check_stops({"max_num_seqs": 8}, ["</answer>"])
    with pytest.raises(ConfigError, match="stop_token_ids"):
        check_stops({"spec_method": "ngram"}, ["</answer>"])


def test_a_drafting_model_grows_stale_and_is_told_of() -> None:
    for options in ({"speculative_config": NGRAM}, {"spec_method": "suffix"}):
        assert [*engine_notes(host(options))] == []
    for options in ({"spec_method": "eagle3"}, {"speculative_config": {"model": "small"}}, {"spec_model": "small"}):
        (note,) = engine_notes(host(options))
        assert "no update reaches" in note


@pytest.mark.skipif(not current_platform.is_cpu(), reason="vLLM has other kernels for a GPU")
def test_a_cpus_drafted_tokens_have_no_temperature() -> None:
    """Why a CPU takes no speculative decoding: vLLM fills a copy and drops it, and divides by what memory holds. When
    this fails, vLLM has mended it: take `speculative_config` and the others out of needs_gpu."""
    current_platform.import_kernels()
    held = torch.full((2,), -7.0)
    cpu_kernels.expand_kernel[(1,)](held, torch.tensor([0.5]), torch.tensor([2]), 0, 1, MAX_NUM_TOKENS=128)
    assert held.tolist() == [-7.0, -7.0]
