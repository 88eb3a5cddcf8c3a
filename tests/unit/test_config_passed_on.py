"""--ada_chat_template_args and --ada_sampling_args: what is refused before anything starts, and what is warned of."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.passed_on import check_known
from openrlhf_ada.config.schema import AdaConfig


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("chat_template_args", value) for value in ("enable_thinking=False", "[1]", "{'a': 1}")),
        *(("sampling_args", value) for value in ("[]", '"</answer>"', '{"temperature": 0.6}', '{"stop": "x"}')),
        *(("sampling_args", value) for value in ('{"stop": [""]}', '{"stop": [1]}', '{"stop_token_ids": [true]}')),
        ("sampling_args", '{"stop": ["a"], "stop": ["b"]}'),
        *(("sampling_args", value) for value in ('{"stop_token_ids": ["1"]}', '{"include_stop_str_in_output": 1}')),
    ],
)
def test_what_is_no_such_object_is_refused(flag: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        AdaConfig(**{flag: value})
    assert (error.value.flag, error.value.value) == (f"--ada_{flag}", value)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A real one, with a published template, which reads enable_thinking (default: false) and tools."""
    from openrlhf_ada.demo import toy

    found, (vllm,) = toy._build_tokenizer(), find_spec("vllm").submodule_search_locations  # type: ignore[union-attr]
    path = Path(vllm) / "transformers_utils" / "chat_templates" / "template_minicpmv45.jinja"
    found.chat_template = path.read_text(encoding="utf-8")
    return found


def given(template: dict[str, Any] | None = None, **sampling: Any) -> SimpleNamespace:
    return SimpleNamespace(chat_template_args=json.dumps(template or {}), sampling_args=json.dumps(sampling))


@pytest.mark.parametrize(
    ("args", "flag", "named"),
    [
        (given({"enable_thinking": True, "thinking_budget": 9}), "chat_template_args", "thinking_budget"),
        # OpenRLHF hands these over itself, and its own would win.
        (given({"add_generation_prompt": False}), "chat_template_args", "add_generation_prompt"),
        (given({"messages": []}), "chat_template_args", "messages"),
        (given(stop_token_ids=[3, 64]), "sampling_args", "64"),
        (given(stop_token_ids=[-1]), "sampling_args", "-1"),
    ],
)
def test_what_the_model_does_not_know_is_refused(tokenizer: Any, args: Any, flag: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_known(tokenizer, args, "--ada_")
    assert error.value.flag == f"--ada_{flag}" and named in error.value.rule


def test_a_template_that_there_is_not_reads_nothing(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="enable_thinking"):
        bare = SimpleNamespace(chat_template=None, apply_chat_template=str)
        check_known(bare, given({"enable_thinking": True}), "--")


@pytest.mark.parametrize(
    ("template", "idle"),
    [
        ({"enable_thinking": True}, None),
        ({"enable_thinking": True, "tools": [{"name": "add"}]}, None),
        # The template's default, and a text where it compares with true and false.
        ({"enable_thinking": False}, "enable_thinking"),
        ({"tools": [{"name": "add"}], "enable_thinking": False}, "enable_thinking"),
        ({"tools": []}, "tools"),
    ],
)
def test_what_changes_nothing_is_warned_of(
    tokenizer: Any, template: dict[str, Any], idle: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    check_known(tokenizer, given(template, stop=["</answer>"], stop_token_ids=[0, 63]), "--ada_")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (idle is not None) and all(str(idle) in line and "--ada_" in line for line in told)
