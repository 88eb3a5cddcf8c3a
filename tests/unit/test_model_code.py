"""Models that bring code along: nothing of it runs unless it was asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that the model's code makes."""
    return tmp_path / "code_ran"


@pytest.fixture
def model(tmp_path: Path, marker: Path) -> Path:
    """A folder whose configuration has code of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    write(folder, "config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}})
    (folder / "model.safetensors").touch()
    return folder


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def plain(folder: Path) -> Path:
    """Without code."""
    write(folder, "config.json", {"model_type": "llama"})
    return folder


def test_code_of_a_configuration_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model_code(FLAG, str(model), trusted=False)
    assert str(caught.value) == (
        f"{FLAG} is '{model}': its config.json names code of its own (own.Own), which would run here. "
        "Read that code. If you trust it, give --trust_remote_code."
    )
    check_model_code(FLAG, str(model), trusted=True)


def test_a_model_without_code_passes(model: Path) -> None:
    check_model_code(FLAG, str(plain(model)), trusted=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Slow", None]}}),
        ("tokenizer_config.json", {"auto_map": ["own.Slow", None]}),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "own.P"}}),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "own.P"}}),
        ("config.json", {"model_type": "llava", "text_config": {"auto_map": {"AutoModel": "own.M"}}}),
        ("config.json", {"parts": [{"auto_map": "someone/else--own.M"}]}),
    ],
)
def test_code_is_found_wherever_it_is_named(model: Path, name: str, content: Any) -> None:
    write(plain(model), name, content)
    with pytest.raises(ConfigError, match=f"its {name} names code of its own"):
        check_model_code(FLAG, str(model), trusted=False)


def test_base_model_of_an_adapter_is_looked_at(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").touch()
    write(adapter, "adapter_config.json", {"base_model_name_or_path": str(model)})
    with pytest.raises(ConfigError, match=f"base model of {adapter} is '{model}'"):
        check_model_code(FLAG, str(adapter), trusted=False)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_refused(model: Path, name: str) -> None:
    (plain(model) / name).touch()
    check_model_code(FLAG, str(model), trusted=False)  # the safetensors are taken
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=rf"its weights are pickled \({name}\), and loading them can run code"):
        check_model_code(FLAG, str(model), trusted=False)
    check_model_code(FLAG, str(model), trusted=True)


def test_a_broken_configuration_is_named(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json': it is not valid JSON"):
        check_model_code(FLAG, str(plain(model)), trusted=False)


@pytest.mark.slow
def test_a_hub_model_is_looked_at_in_the_cache(model: Path, tmp_path: Path) -> None:
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
    assert "its config.json names code of its own (own.Own)" in first
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
def test_no_command_runs_code_of_a_model(verb: str, model: Path, marker: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1 = ?", "answer": "2"}\n' * 2)
    stand = {"MODEL": str(model), "ROWS": str(rows), "OUT": str(tmp_path / "out")}
    words = [stand.get(word, word) for word in VERBS[verb]]
    command = [sys.executable, "-m", "openrlhf_ada.cli.main", verb, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "its config.json names code of its own (own.Own), which would run here" in done.stderr
    assert not marker.exists()
