"""What host/vllm_engine.py and the engine's side of a weight update stand on in vLLM's engine."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import re
from types import SimpleNamespace

import pytest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import BackgroundResources, MPClient
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.utils import CoreEngineProcManager

from openrlhf_ada.host.model_code import EXPERTS
from openrlhf_ada.host.vllm_engine import ended_cores, knows_request


def test_abort_finds_a_request_by_the_id_that_we_look_for() -> None:
    """The id of the caller, which `generate` was given; vLLM has another one inside."""
    processor = OutputProcessor(None, log_stats=False)
    llm = SimpleNamespace(output_processor=processor)
    assert not knows_request(llm, "r")
    processor.external_req_ids["r"].append("r-inside")
    processor.request_states["r-inside"] = SimpleNamespace(
        external_req_id="r", parent_req=None, lora_name=None, queue=None, detokenizer=None
    )
    assert knows_request(llm, "r") and not knows_request(llm, "r-inside")
    assert "abort_requests(request_ids, internal)" in inspect.getsource(AsyncLLM.abort)
    assert inspect.signature(AsyncLLM.abort).parameters["internal"].default is False
    assert "self.external_req_ids.pop(request_id" in inspect.getsource(OutputProcessor.abort_requests)
    assert "self.output_processor = OutputProcessor(" in inspect.getsource(AsyncLLM.__init__)


def test_the_exit_code_of_a_core_is_known() -> None:
    """Processes are those of multiprocessing, which tells a signal as a negative code."""
    manager = CoreEngineProcManager.__new__(CoreEngineProcManager)
    core = multiprocessing.get_context("fork").Process(name="EngineCore_DP0", target=os._exit, args=(3,))
    manager.processes = [core]
    llm = SimpleNamespace(engine_core=SimpleNamespace(resources=BackgroundResources(ctx=None)))
    assert ended_cores(llm) == {}, "an engine that another process has started"
    llm.engine_core.resources.engine_manager = manager
    core.start()
    core.join()
    assert ended_cores(llm) == {"EngineCore_DP0": 3}
    assert "self.resources = BackgroundResources(" in inspect.getsource(MPClient.__init__)
    assert "self.resources.engine_manager = " in inspect.getsource(MPClient.__init__)


@pytest.mark.parametrize("name", ["errored", "dead_error"])
def test_a_dead_core_is_seen_from_outside(name: str) -> None:
    assert isinstance(getattr(AsyncLLM, name), property)


def test_running_requests_are_counted() -> None:
    processor = OutputProcessor(None, log_stats=False)
    llm = SimpleNamespace(output_processor=processor)
    assert AsyncLLM.get_num_unfinished_requests(llm) == 0  # type: ignore[arg-type]
    processor.request_states["r"] = SimpleNamespace()
    assert AsyncLLM.get_num_unfinished_requests(llm) == 1  # type: ignore[arg-type]


def test_experts_are_recognised_by_the_names_that_vllm_reads() -> None:
    # It cannot be imported before the engine.
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    source = inspect.getsource(ModelArchConfigConvertorBase.get_num_experts)
    assert set(re.findall(r'"(\w+)",  #', source)) == set(EXPERTS)
    assert 'block.get("n_routed_experts"' in inspect.getsource(
        ModelArchConfigConvertorBase.get_num_experts_from_block_configs
    )
