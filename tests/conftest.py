"""Shared by all tests: how hypothesis runs, the host importable without a GPU, and a command line that is right."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

from openrlhf_ada.platforms import cpu

settings.register_profile("ada", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ada")

if importlib.util.find_spec("flash_attn") is None:
    # Without it the host cannot even be imported. This only prepares the process: nothing heavy is loaded here.
    cpu.activate()


@pytest.fixture
def valid_flags(tmp_path: Path) -> dict[str, str]:
    """Flags of a run in mode seq that passes every check: 3 prompts, batches of 2 prompts x 4 samples."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
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
