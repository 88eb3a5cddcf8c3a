"""Models that bring code along: nothing of it runs unless it was asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.host.model_code import check_model_code

FLAG = "--actor.model_name_or_path"
CODE = """
from transformers import PretrainedConfig
open({marker!r}, "w").close()
class Own(PretrainedConfig):
    pass
"""


SAFE, WHOLE = "model.safetensors", {"model_type": "llama"}
UNRELATED = {"other.safetensors": b""}
# What is in a folder, and the file that the refusal must name.
CODE_IN: dict[str, tuple[dict[str, Any], str]] = {
    "configuration": ({"config.json": {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}}, "config.json"),
    "model": ({"config.json": WHOLE | {"auto_map": {"AutoModelForCausalLM": "own.Own"}}}, "config.json"),
    "part of it": ({"config.json": WHOLE | {"text_config": {"auto_map": {"AutoModel": "own.M"}}}}, "config.json"),
    "other repository": ({"config.json": {"parts": [{"auto_map": "someone/else--own.M"}]}}, "config.json"),
    "tokenizer": ({"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["own.Own", None]}}}, "tokenizer_config"),
    "old tokenizer": ({"tokenizer_config.json": {"auto_map": ["own.Own", None]}}, "tokenizer_config.json"),
    "processor": ({"processor_config.json": {"auto_map": {"AutoProcessor": "own.Own"}}}, "processor_config.json"),
    "part of a processor": ({"part/tokenizer_config.json": {"auto_map": ["own.Own", None]}}, "part/tokenizer_config"),
    "image processor": (
        {"preprocessor_config.json": {"auto_map": {"AutoImageProcessor": "own.Own"}}},
        "preprocessor_config.json",
    ),
    "video processor": (
        {"video_preprocessor_config.json": {"auto_map": {"AutoVideoProcessor": "own.Own"}}},
        "video_preprocessor_config.json",
    ),
    "generation": ({"custom_generate/generate.py": "own.py"}, "custom_generate/generate.py"),
    "pipeline": ({"config.json": WHOLE | {"custom_pipelines": {"text": {"impl": "own.Own"}}}}, "config.json"),
    "attention": ({"config.json": WHOLE | {"_attn_implementation": "someone/kernel"}}, "someone/kernel"),
    "attention of a part": ({"config.json": WHOLE | {"attn_implementation": {"text_config": "a/b:c"}}}, "a/b:c"),
    "experts": ({"config.json": WHOLE | {"experts_implementation": "someone/kernel@v1"}}, "someone/kernel@v1"),
}
PICKLES_IN: dict[str, tuple[dict[str, Any], str]] = {
    "only": ({SAFE: None, "pytorch_model.bin": b""}, "pytorch_model.bin"),
    "original": ({SAFE: None, "consolidated.00.pth": b""}, "consolidated.00.pth"),
    "vLLM's": ({SAFE: None, "model.pt": b""}, "model.pt"),
    "beside other safetensors": ({SAFE: None, "pytorch_model.bin": b""} | UNRELATED, "pytorch_model.bin"),
    "named by an index": ({SAFE: None, SAFE + ".index.json": {"weight_map": {"w": "model.dat"}}}, "model.dat"),
    "beside an index of nothing": (
        {SAFE: None, SAFE + ".index.json": {"weight_map": {"w": "gone.safetensors"}}, "pytorch_model.bin": b""},
        "pytorch_model.bin",
    ),
    "named by the configuration": (
        {"config.json": WHOLE | {"transformers_weights": "adapter_model.bin"}},
        "adapter_model.bin",
    ),
    "adapter": ({"adapter_config.json": {}, "adapter_model.bin": b""}, "adapter_model.bin"),
}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that the model's code makes."""
    return tmp_path / "code_ran"


@pytest.fixture
def model(tmp_path: Path, marker: Path) -> Path:
    """A folder with code that nothing names."""
    return fill(tmp_path / "model", marker, {})


def fill(folder: Path, marker: Path, files: dict[str, Any]) -> Path:
    code = CODE.format(marker=str(marker))
    for name, content in {"config.json": WHOLE, SAFE: b"", "own.py": "own.py", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        elif content == "own.py":
            path.write_text(code)
        else:
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


@pytest.mark.parametrize("way", CODE_IN)
def test_code_is_refused_wherever_it_is(way: str, model: Path, marker: Path) -> None:
    files, named = CODE_IN[way]
    fill(model, marker, files)
    with pytest.raises(ConfigError) as caught:
        check_model_code(FLAG, str(model), trusted=False)
    assert (caught.value.flag, caught.value.value) == (FLAG, str(model))
    assert named in caught.value.rule
    assert "--trust_remote_code" in caught.value.remedy
    check_model_code(FLAG, str(model), trusted=True)


@pytest.mark.parametrize("way", PICKLES_IN)
def test_pickled_weights_are_refused(way: str, model: Path, marker: Path) -> None:
    files, named = PICKLES_IN[way]
    fill(model, marker, {SAFE: None} | files)
    with pytest.raises(ConfigError, match=rf"pickled \({named}\)"):
        check_model_code(FLAG, str(model), trusted=False)
    check_model_code(FLAG, str(model), trusted=True)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"pytorch_model.bin": b"", "training_args.bin": b""},  # the safetensors are taken
        {SAFE: None, "a.safetensors": b"", SAFE + ".index.json": {"weight_map": {"w": "a.safetensors"}}, "o.pt": b""},
        {"config.json": WHOLE | {"attn_implementation": "paged|sdpa", "auto_map": {}}},
        {"scripts/convert.py": "own.py", "handler.py": "own.py"},
    ],
)
def test_a_model_without_code_passes(files: dict[str, Any], model: Path, marker: Path) -> None:
    check_model_code(FLAG, str(fill(model, marker, files)), trusted=False)


def test_base_model_of_an_adapter_is_looked_at(model: Path, marker: Path, tmp_path: Path) -> None:
    fill(model, marker, CODE_IN["model"][0])
    base = {"adapter_config.json": {"base_model_name_or_path": str(model)}, "adapter_model.safetensors": b""}
    adapter = fill(tmp_path / "adapter", marker, base)
    with pytest.raises(ConfigError, match=f"base model of {adapter} is '{model}'"):
        check_model_code(FLAG, str(adapter), trusted=False)


def test_a_broken_configuration_is_named(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json': it is not valid JSON"):
        check_model_code(FLAG, str(model), trusted=False)


LOADERS = {
    "configuration": "AutoConfig",
    "model": "AutoModelForCausalLM",
    "tokenizer": "AutoTokenizer",
    "old tokenizer": "AutoTokenizer",
    "processor": "AutoProcessor",
    "generation": "AutoModelForCausalLM",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", LOADERS)
def test_transformers_runs_it_only_where_it_is_trusted(
    way: str, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded as OpenRLHF does. What comes into the folder after the check does not run either."""
    import transformers

    files = CODE_IN[way][0]
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for trusted in (False, True):
        model = tmp_path / str(trusted)
        transformers.LlamaForCausalLM(config).save_pretrained(model)
        check_model_code(FLAG, str(model), trusted=trusted)
        saved = {name: (model / name).read_bytes() for name in ("config.json", SAFE)}
        fill(model, marker, saved | files)
        with suppress(Exception):
            getattr(transformers, LOADERS[way]).from_pretrained(model, trust_remote_code=True)
        assert marker.exists() == trusted


@pytest.mark.parametrize("reach", ["''.__class__", "cycler.__init__.__globals__", "messages.append(1)"])
def test_a_chat_template_reaches_nothing(reach: str) -> None:
    """So it is not refused."""
    from jinja2.exceptions import SecurityError
    from transformers.utils.chat_template_utils import render_jinja_template

    with pytest.raises(SecurityError):
        render_jinja_template([[]], chat_template=f"{{{{ {reach}.x }}}}")


@pytest.mark.slow
def test_a_hub_model_is_looked_at_in_the_cache(model: Path, marker: Path, tmp_path: Path) -> None:
    fill(model, marker, CODE_IN["generation"][0])
    commit = "0" * 40
    page = tmp_path / "hub" / "models--some--one"
    shutil.copytree(model, page / "snapshots" / commit)
    (page / "refs").mkdir()
    (page / "refs" / "main").write_text(commit)
    program = """if True:
        from openrlhf_ada.config.flags import ConfigError
        from openrlhf_ada.host.model_code import check_model_code
        for name in ("some/one", "some/other"):
            try:
                check_model_code("--model", name, trusted=False)
            except ConfigError as error:
                print(error)
    """
    offline = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=offline)
    first, second = done.stdout.splitlines()
    assert "custom_generate/generate.py" in first
    assert "it is no folder, and no model of the hub (neither the hub nor the cache has its config.json)" in second


VERBS = {
    "train": [
        *("--actor.model_name_or_path", "MODEL", "--data.prompt_dataset", "ROWS", "--reward.remote_url", "math"),
        *("--data.input_key", "question", "--data.label_key", "answer", "--vllm.num_engines", "1"),
        *(
            "--algo.advantage.estimator",
            "reinforce",
            "--ds.attn_implementation",
            "sdpa",
            "--vllm.sync_backend",
            "gloo",
        ),
    ],
    "eval": ["--model", "MODEL", "--benchmark", "ROWS", "--reward", "math"],
    "prepare-data": ["ROWS", "--model", "MODEL", "--reward", "math", "--out", "OUT"],
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("way", ["configuration", "generation"])
def test_no_command_runs_code_of_a_model(way: str, verb: str, model: Path, marker: Path, tmp_path: Path) -> None:
    files, named = CODE_IN[way]
    fill(model, marker, files)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1 = ?", "answer": "2"}\n' * 2)
    stand = {"MODEL": str(model), "ROWS": str(rows), "OUT": str(tmp_path / "out")}
    words = [stand.get(word, word) for word in VERBS[verb]]
    command = [sys.executable, "-m", "openrlhf_ada.cli.main", verb, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert not marker.exists()
