"""What the adapter overrides and reads in TRL 1.16."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker
from trl.trainer.grpo_trainer import GRPOTrainer


def arguments(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)[1:]


def test_hooks_of_the_synchronous_trainer() -> None:
    assert arguments(GRPOTrainer._generate_and_score_completions) == ["inputs"]
    assert arguments(GRPOTrainer._generate) == ["prompts"]
    turn = ["prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"]
    assert arguments(GRPOTrainer._generate_single_turn) == turn
    assert arguments(GRPOTrainer._calculate_rewards) == ["inputs", "prompts", "completions", "completion_ids_list"]
    assert arguments(GRPOTrainer._save_checkpoint) == ["model", "trial"]
    text = inspect.getsource(GRPOTrainer)
    order = "return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images"
    assert order in text and text.count("self._generate(prompts)") == 1
    for name in ("reward", "reward_std", "frac_reward_zero_std"):
        assert text.count(f'self._metrics[mode]["{name}"].append') == 1
    assert text.count('self._logs["advantages"].extend(all_process_advantages.tolist())') == 1
    assert text.count("self._pending_extra_logs.clear()") == 1 and "self.reward_weights" in text


def test_hooks_of_the_asynchronous_trainer() -> None:
    loop, worker = async_rollout_worker._AsyncRolloutLoop, async_rollout_worker.AsyncRolloutWorker
    assert worker._loop_cls is loop
    assert arguments(loop._score_group) == ["group"] and arguments(loop._repeat_iterator) == []
    assert {"num_generations", "dataset_start_index", "dataset"} <= set(arguments(loop.__init__))
    assert "self._loop_kwargs," in inspect.getsource(worker.start)
    needed = {"advantage", "model_version", "group_id", "metrics"}
    assert needed <= {f.name for f in fields(async_rollout_worker.RolloutSample)}
    text = inspect.getsource(async_grpo_trainer.AsyncGRPOTrainer)
    assert "rollout_queue=self.rollout_queue," in text
    assert 'self.rollout_worker._loop_kwargs["dataset_start_index"] = rollout_state["prompt_index"]' in text
