"""Shared by all tests: how hypothesis runs, OpenRLHF importable without a GPU, and a command line that is right."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.trainer.training_data import prepare_training_data

# A call such as ray.put would otherwise start a whole Ray in the test's own process.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

settings.register_profile("ada", deadline=None, max_examples=40, derandomize="CI" in os.environ)
settings.load_profile("ada")

LOADS_NO_STACK = "LOADS_NO_STACK" in os.environ
"""`make quick-light`."""

if importlib.util.find_spec("flash_attn") is None:
    # Without it OpenRLHF cannot even be imported. This only prepares the process: nothing heavy is loaded here.
    without_gpu.activate()

# Torch, vLLM and Ray are millions of objects that live until the end: walking them again and again for garbage is a
# tenth of the fast tests' time.
gc.disable()


KEPT_LOGGERS = {"openrlhf_ada", "ray", "openrlhf", "py"}


def loaded() -> set[str]:
    return {"torch", "ray", "vllm"} & sys.modules.keys()


def pytest_collection_finish() -> None:
    assert not LOADS_NO_STACK or not loaded(), f"a file loads {loaded()}: it belongs to STACK in the Makefile"
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:
        # Tensors here are tiny: a second thread only waits, and on a busy machine it waits long.
        sys.modules["torch"].set_num_threads(1)
    # pytest visits every listed logger six times a test: torch and vLLM have a thousand, which work unlisted as well.
    listed = logging.root.manager.loggerDict
    for name in [name for name in listed if name.partition(".")[0] not in KEPT_LOGGERS]:
        del listed[name]


@pytest.fixture(autouse=True, scope="module")
def imports_stay() -> Iterator[None]:
    """What a file has imported is half a second of each `gc.collect()`, which OpenRLHF calls with every checkpoint."""
    before = loaded()
    yield
    assert not LOADS_NO_STACK or loaded() == before, "this file belongs to STACK in the Makefile"
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def environment_as_found() -> Iterator[None]:
    """vLLM and torch leave variables behind, which runs that later tests start would inherit."""
    before = os.environ.copy()
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference is the value itself."""
    import ray

    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda refs: refs)


Flags = dict[str, str | None]
"""A command line. None leaves a flag out, "" gives a switch, which takes no value."""


def to_argv(flags: Flags) -> list[str]:
    return [part for name, value in flags.items() if value is not None for part in (name, value) if part]


@pytest.fixture
def argv_with(valid_flags: Flags) -> Callable[[Flags], list[str]]:
    """The valid command line with some flags changed."""
    return lambda changes: to_argv(valid_flags | changes)


@pytest.fixture
def method_argv(valid_flags: Flags, tmp_path: Path) -> list[str]:
    """Model, reward, one GPU, and prompts for sixteen steps of 256: what no method sets."""
    data = tmp_path / "many.jsonl"
    data.write_text("".join(f'{{"input": "{i}+1=", "label": "{i + 1}"}}\n' for i in range(16 * 256)))
    set_by_methods = {f"--{name}" for method in METHODS.values() for name in method.flags} | {"--ada_mode"}
    needed = {name: value for name, value in valid_flags.items() if name not in set_by_methods}
    return to_argv(needed | {"--data.prompt_dataset": str(data)})


@pytest.fixture
def refusal(valid_flags: Flags) -> Callable[[Flags], Exception]:
    """The error with which the changed command line is refused: parsed, checked, its data read."""

    def refuse(changes: Flags) -> Exception:
        with pytest.raises(USER_ERRORS) as error:
            prepare_training_data(parse(to_argv(valid_flags | changes)))
        assert "\n" not in str(error.value), "one line"
        return error.value

    return refuse


@pytest.fixture
def valid_flags(tmp_path: Path) -> Flags:
    """Flags of a run in mode seq that passes every check: 3 prompts, batches of 2 prompts x 4 samples."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(f'{{"input": "{i}+1=", "label": "{i + 1}"}}\n' for i in range(3)))
    reward = tmp_path / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': [1.0]}\n")
    return {
        "--ada_mode": "seq",
        "--ada_run_dir": str(tmp_path / "run"),
        "--actor.model_name_or_path": str(model),
        "--actor.num_gpus_per_node": "1",
        "--vllm.num_engines": "1",
        "--data.prompt_dataset": str(data),
        "--data.label_key": "label",
        "--reward.remote_url": str(reward),
        "--algo.advantage.estimator": "group_norm",
        "--algo.kl.init_coef": "0",
        "--rollout.batch_size": "2",
        "--rollout.n_samples_per_prompt": "4",
        "--train.batch_size": "8",
    }
