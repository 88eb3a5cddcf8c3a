"""What the adapter overrides and reads in TRL 1.16."""

from __future__ import annotations

import inspect
from dataclasses import fields

from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker
from trl.trainer.grpo_trainer import GRPOTrainer


def test_hooks_of_the_synchronous_trainer() -> None:
    text = inspect.getsource(GRPOTrainer)
    made = "prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images"
    for said in (
        "self._generate_single_turn(\n                prompt_ids, images, multimodal_fields, num_generations\n",
        f"return {made}\n",
        "self._generate(prompts)\n",
        "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)",
        *(f'self._metrics[mode]["{name}"].append' for name in ("reward", "reward_std", "frac_reward_zero_std")),
        'self._logs["advantages"].extend(all_process_advantages.tolist())',
        "self._pending_extra_logs.clear()",
        "def _save_checkpoint(self, model, trial):",
    ):
        assert text.count(said) == 1, said


def test_hooks_of_the_asynchronous_trainer() -> None:
    loop, worker = async_rollout_worker._AsyncRolloutLoop, async_rollout_worker.AsyncRolloutWorker
    assert worker._loop_cls is loop and "self._loop_kwargs," in inspect.getsource(worker.start)
    assert "group_id, row = next(work_iter)" in inspect.getsource(loop._generate_loop)
    assert "samples = await self._score_group(group)" in inspect.getsource(loop._score_loop)
    needed = {"advantage", "model_version", "group_id", "metrics"}
    assert needed <= {f.name for f in fields(async_rollout_worker.RolloutSample)}
    text = inspect.getsource(async_grpo_trainer.AsyncGRPOTrainer)
    assert "rollout_queue=self.rollout_queue," in text
    assert '_loop_kwargs["dataset_start_index"] = rollout_state["prompt_index"]' in text
