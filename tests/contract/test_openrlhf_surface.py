"""The surface of OpenRLHF that this package stands on. A host upgrade fails here first, by name, in seconds.

Signatures here, facts about the source in test_openrlhf_facts.py, run-time objects in test_openrlhf_objects.py. Each
entry names the file of ours that has to change with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import openrlhf_ada
from openrlhf_ada import HOST_VERSION
from openrlhf_ada.host.parser import TRAIN_MODULE, host_root

PACKAGE = Path(openrlhf_ada.__file__).parent

FETCH = "self, queries_list, prompts_list, labels_list"
LOSS_INFO = "strategy, loss_mask, *, replay_buffer=, step=, dynamic_batch=, batch_num_tokens=, global_batch_size="
ENGINES = (
    "num_engines, tensor_parallel_size, pretrain, seed, full_determinism, enable_prefix_caching, enforce_eager, "
    "max_model_len, shared_pg=, gpu_memory_utilization=, vllm_enable_sleep=, logprobs_mode=, agent_func_path=, "
    "remote_rm_url=, max_images_per_prompt="
)

SIGNATURES = {  # (our file, OpenRLHF's file): {name: parameters}
    ("trainer/ppo_trainer.py", "trainer/ppo_trainer.py"): {
        "PPOTrainer.__init__": (
            "self, pretrain, strategy, actor_model_group, critic_model_group, reward_model_group, "
            "reference_model_group, vllm_engines, **generate_kwargs"
        ),
        "PPOTrainer.fit": "self, global_step=",
        "PPOTrainer.evaluate": "self, global_step, **generate_kwargs",
        "PPOTrainer.get_max_steps": "self",
        "BasePPOTrainer.init_checkpoint_states": "self",
    },
    ("trainer/recorded_training.py", "trainer/ppo_trainer.py"): {
        "BasePPOTrainer.train_step": "self, rollout_samples, global_step",
        "BasePPOTrainer.save_logs_and_checkpoints": "self, global_step, logs_dict=, client_states=",
        "BasePPOTrainer.save_best_checkpoint": "self, eval_metrics, global_step, client_states=",
    },
    ("trainer/ppo_trainer_async.py", "trainer/ppo_trainer_async.py"): {
        "PPOTrainerAsync.__init__": (
            "self, pretrain, strategy, actor_model_group, critic_model_group, reward_model_group, "
            "reference_model_group, vllm_engines, **generate_kwargs"
        ),
        "PPOTrainerAsync.fit": "self",
        "GenerateSamplesActor.__init__": (
            "self, pretrain, strategy, vllm_engines, *, vllm_lock, rollout_queue, rollout_slots, **generate_kwargs"
        ),
        "GenerateSamplesActor.get_max_steps": "self",
        "TrainingActor.__init__": (
            "self, pretrain, strategy, actor_model_group, critic_model_group, reward_model_group, "
            "reference_model_group, vllm_engines, *, vllm_lock, rollout_queue, rollout_slots"
        ),
        "TrainingActor.fit": "self, global_step=",
        "TrainingActor.broadcast_to_vllm": "self",
        "VLLMLock.__init__": "self",
    },
    ("host/trainer.py", "trainer/ppo_trainer_async.py"): {"GenerateSamplesActor._run_eval": "self"},
    ("host/trainer.py", "trainer/ppo_trainer.py"): {
        "BasePPOTrainer.train_step": "self, rollout_samples, global_step",
    },
    ("trainer/ppo_trainer_async.py", "trainer/ppo_trainer.py"): {"BasePPOTrainer.broadcast_to_vllm": "self"},
    ("trainer/prompt_critic.py", "trainer/ray/ppo_critic.py"): {
        "CriticModelActor.forward": "self, sequences, action_mask=, attention_mask=, packed_seq_lens=",
        "CriticModelActor.init_model_from_pretrained": "self, strategy, pretrain, max_steps",
    },
    ("trainer/prompt_critic.py", "trainer/ray/launcher.py"): {
        "RayActorGroup.async_run_method_batch": "self, method_name, **kwargs",
        "RayActorGroup.async_run_method": "self, method_name, *args, **kwargs",
    },
    ("rollout/reward_model.py", "trainer/ray/launcher.py"): {
        "RewardModelActor.forward": "self, sequences, attention_mask=, packed_seq_lens=, pad_sequence=",
        "RayActorGroup.async_run_method_batch": "self, method_name, **kwargs",
    },
    ("trainer/prompt_critic.py", "utils/utils.py"): {"zero_pad_sequences": "sequences, side=, value=, stack="},
    ("rollout/samples_generator.py", "trainer/ppo_utils/samples_generator.py"): {
        "SamplesGenerator.generate_samples": "self, **generate_kwargs",
    },
    ("host/generator.py", "trainer/ppo_utils/samples_generator.py"): {
        "SamplesGenerator.__init__": "self, strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines",
        "SamplesGenerator._process_response_into_experience": "self, response, **generate_kwargs",
    },
    ("rollout/recorded_generator.py", "trainer/ppo_utils/samples_generator.py"): {
        "SamplesGenerator.generate_eval_samples": "self, **generate_kwargs",
    },
    ("rollout/engine.py", "trainer/ray/vllm_engine.py"): {
        "RolloutRayActor.__init__": (
            "self, *args, bundle_indices=, agent_func_path=, remote_rm_url=, mm_pad_token_ids=, **kwargs"
        ),
        "RolloutRayActor.generate": "self, prompt_token_ids, sampling_params, multi_modal_data=",
        "RolloutRayActor.pause_generation": "self",
        "RolloutRayActor.reset_prefix_cache": "self",
    },
    ("rollout/engine.py", "utils/agent.py"): {
        "AgentExecutorBase.execute": (
            "self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images="
        ),
    },
    ("host/engine.py", "utils/agent.py"): {"SingleTurnAgentExecutor._fetch_rewards_via_http": FETCH},
    ("host/engine.py", "trainer/ray/vllm_engine.py"): {
        "RolloutRayActor._configure_vllm_env": "self, version, vllm, full_determinism",
        "create_vllm_engines": ENGINES,
    },
    ("rollout/responses.py", "trainer/ppo_utils/samples_generator.py"): {
        "SamplesGenerator._dispatch_prompts_to_vllm": "self, prompts, labels, *, images=, **generate_kwargs",
    },
    ("host/models.py", "trainer/ray/ppo_actor.py"): {
        "ActorPPOTrainer._init_vllm_sync_group": "self, backend",
        "PolicyModelActor.init_model_from_pretrained": "self, strategy, pretrain, max_steps=, vllm_engines=",
    },
    ("host/models.py", "trainer/ray/ppo_critic.py"): {
        "CriticModelActor.init_model_from_pretrained": "self, strategy, pretrain, max_steps",
    },
    ("trainer/policy.py", "trainer/ray/ppo_actor.py"): {
        "ActorPPOTrainer.broadcast_to_vllm": "self",
        "PolicyModelActor.broadcast_to_vllm": "self",
        "PolicyModelActor.fit": "self, kl_ctl=",
        "PolicyModelActor.save_model": "self",
        "PolicyModelActor.save_checkpoint": "self, tag, client_states=, metric_value=, metric_key=",
        "ActorPPOTrainer.training_step": "self, experience, kl_ctl, step, loss_batch_info=",
    },
    ("trainer/policy.py", "utils/deepspeed/deepspeed.py"): {
        "DeepspeedStrategy.save_model": "self, model, tokenizer, output_dir, **kwargs",
    },
    ("trainer/policy.py", "utils/loss_utils.py"): {
        "get_loss_batch_info": LOSS_INFO,
    },
    ("trainer/policy.py", "utils/distributed_util.py"): {"torch_dist_barrier_and_cuda_sync": ""},
    ("trainer/sampling_only.py", "trainer/ray/vllm_engine.py"): {"create_vllm_engines": ENGINES},
    ("trainer/sampling_only.py", "trainer/ppo_trainer.py"): {"prepare_datasets": "strategy, tokenizer"},
    ("rollout/responses.py", "trainer/ppo_utils/length_penalty.py"): {
        "apply_length_penalties": "experiences, args",
    },
    ("rollout/samples_generator.py", "trainer/ray/vllm_engine.py"): {
        "batch_vllm_engine_call": "engines, method_name, *args, rank_0_only=, **kwargs",
    },
    ("trainer/experience_maker.py", "trainer/ppo_utils/experience_maker.py"): {
        "RemoteExperienceMaker.__init__": (
            "self, actor_model_group, critic_model_group, reward_model_group, initial_model_group, "
            "kl_controller, strategy, tokenizer, **kwargs"
        ),
        "RemoteExperienceMaker.make_experience_batch": "self, rollout_samples",
        "RemoteExperienceMaker.split_rollout_samples": "self, rollout_samples",
        "RemoteExperienceMaker.compute_advantages_and_returns": "self, experiences",
        "RemoteExperienceMaker.get_advantages_and_returns": "self, values, rewards, action_mask, gamma, lambd",
        "RemoteExperienceMaker.get_cumulative_returns": "self, rewards, action_mask, gamma",
    },
    ("trainer/experience_maker.py", "models/utils.py"): {
        "compute_reward": "r, kl_coef, kl, action_mask=, reward_clip_range=",
    },
    ("trainer/critic.py", "models/loss.py"): {
        "ValueLoss.__init__": "self, clip_eps=, token_level_loss=",
        "ValueLoss.forward": (
            "self, values, old_values, returns, action_mask=, dp_size=, batch_num_tokens=, global_batch_size="
        ),
    },
    ("trainer/critic.py", "trainer/ray/ppo_critic.py"): {
        "CriticPPOTrainer.__init__": (
            "self, strategy, critic, critic_optim, critic_scheduler, micro_train_batch_size=, buffer_limit=, "
            "buffer_cpu_offload=, value_clip=, dataloader_pin_memory=, **kwargs"
        ),
        "CriticPPOTrainer.training_step": "self, experience, step, loss_batch_info=",
    },
    ("host/parser.py", "cli/train_ppo_ray.py"): {
        "train": "args",
    },
    ("host/parser.py", "utils/config.py"): {
        "hierarchize": "args",
    },
    ("host/generator.py", "datasets/prompts_dataset.py"): {
        "PromptDataset.__getitem__": "self, idx",
        "PromptDataset.collate_fn": "self, item_list",
    },
}

ATTRIBUTES = {  # (our file, OpenRLHF's file, constructor): what it sets and we read
    ("trainer/ppo_trainer.py", "trainer/ppo_trainer.py", "PPOTrainer.__init__"): {
        *("prompts_dataloader", "eval_dataloader", "max_steps", "generate_kwargs", "samples_generator"),
    },
    ("trainer/recorded_training.py", "trainer/ppo_trainer.py", "BasePPOTrainer.__init__"): {
        *("strategy", "args", "vllm_engines", "tokenizer", "experience_maker", "critic_model_group"),
        "reward_model_group",
    },
    ("trainer/ppo_trainer_async.py", "trainer/ppo_trainer_async.py", "GenerateSamplesActor.__init__"): {
        *("args", "prompts_dataloader", "generate_kwargs", "samples_generator", "vllm_lock", "max_steps"),
    },
    ("trainer/ppo_trainer_async.py", "trainer/ppo_trainer_async.py", "PPOTrainerAsync.__init__"): {
        *("generator_actor", "trainer_actor"),
    },
    ("trainer/ppo_trainer_async.py", "trainer/ppo_trainer_async.py", "TrainingActor.__init__"): {
        "vllm_lock",
    },
    ("host/classes.py", "trainer/ray/launcher.py", "RayActorGroup._initiate_actors"): {"_actor_handlers"},
    ("trainer/prompt_critic.py", "trainer/ray/ppo_critic.py", "CriticModelActor.init_model_from_pretrained"): {
        *("critic", "critic_optim", "critic_scheduler"),
    },
    ("rollout/engine.py", "trainer/ray/vllm_engine.py", "RolloutRayActor.__init__"): {"executor", "llm"},
    ("trainer/policy.py", "trainer/ray/ppo_actor.py", "ActorPPOTrainer.__init__"): {
        *("use_cuda_ipc", "vllm_engines", "strategy", "actor", "replay_buffer", "actor_loss_fn", "args"),
    },
    ("trainer/policy.py", "trainer/ray/ppo_actor.py", "PolicyModelActor.init_model_from_pretrained"): {
        *("trainer", "vllm_engines", "tokenizer", "actor", "checkpoint_states", "disable_ds_ckpt"),
    },
    ("host/generator.py", "trainer/ppo_utils/samples_generator.py", "SamplesGenerator.__init__"): {
        *("strategy", "args", "tokenizer", "vllm_engines", "prompts_dataloader", "eval_dataloader"),
    },
    ("trainer/experience_maker.py", "trainer/ppo_utils/experience_maker.py", "RemoteExperienceMaker.__init__"): {
        *("actor_model_group", "critic_model_group", "reward_model_group", "initial_model_group"),
        *("kl_ctl", "strategy", "args", "tokenizer", "advantage_estimator"),
    },
    ("trainer/critic.py", "trainer/ray/ppo_critic.py", "CriticPPOTrainer.__init__"): {"value_clip", "critic_loss_fn"},
    ("host/generator.py", "datasets/prompts_dataset.py", "PromptDataset.__init__"): {
        *("prompts", "labels", "images", "datasources"),
    },
}


def signatures() -> list[Any]:
    return [
        pytest.param(ours, path, name, expected, id=name)
        for (ours, path), entries in SIGNATURES.items()
        for name, expected in entries.items()
    ]


def test_every_table_names_files_of_ours() -> None:
    named = {place[0] for place in (*SIGNATURES, *ATTRIBUTES)}
    assert [name for name in sorted(named) if not (PACKAGE / name).is_file()] == []


@pytest.mark.parametrize(("ours", "path", "name", "expected"), signatures())
def test_signature(host_source: Any, ours: str, path: str, name: str, expected: str) -> None:
    found = host_source.parameters(path, name)
    assert found == expected, f"openrlhf_ada/{ours} overrides or calls {name} of openrlhf/{path}"


@pytest.mark.parametrize(("ours", "path", "name"), ATTRIBUTES, ids=[name for _, _, name in ATTRIBUTES])
def test_attributes(host_source: Any, ours: str, path: str, name: str) -> None:
    missing = ATTRIBUTES[ours, path, name] - host_source.attributes_set(path, name)
    assert not missing, f"openrlhf_ada/{ours} reads {sorted(missing)} of {name} in openrlhf/{path}"


def test_version_is_pinned() -> None:
    """`host_root` refuses any other; everything in these files was read in this one."""
    assert HOST_VERSION == "0.11.2"
    assert (host_root() / TRAIN_MODULE).is_file()
