"""Facts about OpenRLHF's source that this package builds on and no signature shows.

Each names the file of ours that has to change when OpenRLHF's line changes, and what is built on it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime.engine import DeepSpeedEngine

import openrlhf_ada
from openrlhf_ada.config.loss_rules import POLICY_LOSSES
from openrlhf_ada.host.checkpoints import POLICY, latest_tag, name_latest
from openrlhf_ada.host.parser import TRAIN_MODULE, _main_block, host_root

PACKAGE = Path(openrlhf_ada.__file__).parent

TRAINER, ASYNC = "trainer/ppo_trainer.py", "trainer/ppo_trainer_async.py"
GENERATOR = "trainer/ppo_utils/samples_generator.py"

ENGINE, ACTOR, AGENT = "trainer/ray/vllm_engine.py", "trainer/ray/ppo_actor.py", "utils/agent.py"
CRITIC = "trainer/ray/ppo_critic.py"

FACTS = {  # (our file, OpenRLHF's file, function): [(what must stand in it, what we build on that)]
    ("trainer/ppo_trainer.py", TRAINER, "PPOTrainer.fit"): [
        (
            "rollout_samples, filter_pass_rate, prompts_consumed, is_exhausted = "
            "self.samples_generator.generate_samples(**self.generate_kwargs)",
            "our generator returns these four",
        ),
        ("self.init_checkpoint_states()", "we read the same states before it does"),
        ("self.train_step(rollout_samples, global_step)", "we add metrics to its status"),
        ("self.save_logs_and_checkpoints(global_step, status, client_states)", "the record is written there"),
        ("self.wandb_logger.close()", "our trackers stand there, and stay open for a last evaluation"),
        ("eval_logs = self.evaluate(global_step, **eval_generate_kwargs)", "its figures come back with their scores"),
        ("self.save_best_checkpoint(eval_logs, global_step, client_states)", "evaluations are recorded there"),
        ("for episode in range(start_episode, self.args.train.num_episodes)", "episodes_done starts there"),
    ],
    ("rollout/engine.py", ENGINE, "RolloutRayActor.generate"): [
        (
            "self.llm.generate(prompt, deepcopy(sampling_params), request_id=random_uuid())",
            "our engine takes its place, may change the parameters, and aborts by this id",
        ),
        ("async for request_output in generator", "one last output is enough"),
    ],
    ("rollout/engine.py", ENGINE, "RolloutRayActor.generate_responses"): [
        ("llm_engine=self", "an executor calls the actor's generate, and so our engine's"),
    ],
    ("rollout/samples_generator.py", ACTOR, "ActorPPOTrainer.broadcast_to_vllm"): [
        ("engine.reset_prefix_cache.remote()", "prefix caching may be on: no rollout sees another policy's cache"),
    ],
    ("trainer/recorded_training.py", TRAINER, "BasePPOTrainer.train_step"): [
        ("status['generated_samples'] = sample0", "it is not a metric and left out"),
        ("return (status, global_step + 1)", "we return the same pair"),
        ("self.experience_maker.make_experience_batch(rollout_samples)", "our maker takes its place"),
    ],
    ("host/trainer.py", TRAINER, "BasePPOTrainer.train_step"): [
        ("if self.critic_model_group is not None:", "a pass-rate critic is hidden there"),
        ("status = self.ppo_train(global_step)", "and from there"),
    ],
    ("trainer/training_step.py", ACTOR, "ActorPPOTrainer.ppo_train"): [
        ("status_mean[k] = vals[-1] if vals else 0.0", "the optimizer's figures are the last ones"),
        ("total_tokens = sum((s['_num_action_tokens'] for s in status_list))", "others are means over tokens"),
        ("total_samples = sum((s['_num_samples'] for s in status_list))", "or over samples"),
    ],
    ("trainer/policy.py", ACTOR, "ActorPPOTrainer.ppo_train"): [
        (
            "for epoch in range(self.max_epochs):\n        pbar = tqdm(dataloader,",
            "epochs are loops over the same rollouts, by micro-batches of fixed size and by tokens",
        ),
        (
            "for step, (experience, loss_batch_info) in enumerate(micro_batches):\n"
            "            experience.to_device(device)\n"
            "            status = self.training_step(experience, kl_ctl, step, loss_batch_info)",
            "step 0 begins an epoch (--ada_wrong_epochs)",
        ),
        ("lambda e: e.action_mask)", "losses are divided by all rollouts' totals, whatever their advantages"),
    ],
    ("trainer/policy.py", ACTOR, "PolicyModelActor.fit"): [
        ("status = self.trainer.ppo_train(kl_ctl)", "once in a training step: its epochs are counted anew"),
    ],
    ("trainer/training_step.py", "trainer/ppo_utils/replay_buffer.py", "NaiveReplayBuffer.setup_dynamic_batch"): [
        ("self.items[idx].action_mask.sum().item()", "by tokens, too, totals know nothing of advantages"),
    ],
    (
        "config/host_rules.py",
        "trainer/ppo_utils/experience_maker.py",
        "RemoteExperienceMaker.make_experience",
    ): [
        (
            "if self.initial_model_group is not None and (not args.algo.kl.use_loss):",
            "with --algo.kl.use_loss no KL is in an advantage",
        ),
    ],
    ("trainer/training_step.py", ACTOR, "ActorPPOTrainer.training_step"): [
        ("metrics = {'policy_loss': actor_loss.detach()}", "divided by the step's totals"),
        ("metrics['entropy_loss'] = entropy_loss.detach()", "and this one"),
        ("experience.info['kl'] = kl_loss.detach()", "and this, where it is a loss"),
        ("weights[k] = 'token' if v.dim() == 0 else 'sample'", "which tells a KL loss from a mean over samples"),
    ],
    ("host/trainer.py", TRAINER, "BasePPOTrainer.save_logs_and_checkpoints"): [
        ("self.critic_model_group.async_run_method(", "and must be there again when checkpoints are written"),
    ],
    ("trainer/recorded_training.py", TRAINER, "BasePPOTrainer.__init__"): [
        ("WandbLogger(self.args) if self.args.logger.wandb.key else None", "opened here, by the name we substitute"),
        (
            "TensorboardLogger(self.args) if self.args.logger.tensorboard_dir else None",
            "and this one, with its writer",
        ),
    ],
    ("trainer/recorded_training.py", TRAINER, "BasePPOTrainer.save_logs_and_checkpoints"): [
        ("self.wandb_logger.log_train(global_step, logs_dict)", "our trackers stand there, and get what we pass"),
        ("ray.get(refs)", "all processes have written their checkpoint when it returns"),
    ],
    ("trainer/recorded_training.py", TRAINER, "PPOTrainer.evaluate"): [
        ("self.wandb_logger.log_eval(global_step, logs)", "OpenRLHF's own figures, without eval/ in front"),
    ],
    ("trainer/recorded_training.py", ASYNC, "TrainingActor.fit"): [
        ("self.wandb_logger.log_eval(eval_step, eval_metrics)", "what the generator sent, ours among them"),
    ],
    ("trainer/recorded_training.py", TRAINER, "BasePPOTrainer.save_best_checkpoint"): [
        ("if not eval_metrics:", "it takes our dict of figures as its own"),
        ("ray.get(refs)", "all processes have written their checkpoint when it returns"),
    ],
    ("host/trainer.py", ASYNC, "PPOTrainerAsync.__init__"): [
        ("vllm_lock = VLLMLock.remote()", "the name that is substituted"),
        ("self.generator_actor = GenerateSamplesActor.remote(", "the name that is substituted"),
        ("self.trainer_actor = TrainingActor.remote(", "the name that is substituted"),
    ],
    ("trainer/ppo_trainer_async.py", ASYNC, "PPOTrainerAsync.fit"): [
        ("ray.get(self.trainer_actor.init_checkpoint_states.remote())", "we read the same states before it does"),
        ("self.trainer_actor.broadcast_to_vllm.remote()", "a resumed run broadcasts before its first step"),
    ],
    ("trainer/ppo_trainer_async.py", ASYNC, "GenerateSamplesActor.fit"): [
        ("self.samples_generator.generate_samples(**self.generate_kwargs)", "our generator takes OpenRLHF's place"),
        (
            "self.rollout_queue.put((rollout_samples, client_states, filter_pass_rate, generation_time), block=True)",
            "record and checkpoint cross with the samples",
        ),
    ],
    ("host/trainer.py", ASYNC, "GenerateSamplesActor.fit"): [
        ("eval_metrics = self._run_eval()", "its figures come back with their scores"),
        ("self.rollout_queue.put(('eval', global_step, eval_metrics), block=True)", "and are sent as they are"),
    ],
    ("trainer/ppo_trainer_async.py", ASYNC, "TrainingActor.__init__"): [
        (
            "self._partial_rollout = getattr(strategy.args.train, 'partial_rollout_enable', False)",
            "we read the same flag",
        ),
    ],
    ("trainer/ppo_trainer_async.py", ASYNC, "TrainingActor.fit"): [
        ("rollout_samples, client_states, filter_pass_rate, generation_time = payload", "what arrives"),
        ("self.save_best_checkpoint(eval_metrics, eval_step, client_states)", "evaluations are recorded there"),
        ("self.save_logs_and_checkpoints(global_step, status, client_states)", "the record is written there"),
        ("self.wandb_logger.close()", "our trackers stand there, and stay open for a last evaluation"),
    ],
    ("trainer/ppo_trainer_async.py", ASYNC, "TrainingActor.broadcast_to_vllm"): [
        ("batch_vllm_engine_call(self.vllm_engines, 'pause_generation')", "we pause in the same way"),
        ("batch_vllm_engine_call(self.vllm_engines, 'resume_generation')", "and resume"),
        ("ray.get(self.vllm_lock.acquire.remote())", "it waits until no evaluation is sampled"),
    ],
    ("trainer/policy.py", ACTOR, "PolicyModelActor.init_model_from_pretrained"): [
        ("self.checkpoint_states = states", "how many steps the weights have had"),
    ],
    ("host/checkpoints.py", ACTOR, "PolicyModelActor.init_model_from_pretrained"): [
        ("ckpt_path = os.path.join(args.ckpt.path, '_actor')", "beside it lie the averages"),
        ("strategy.load_ckpt(self.actor.model, ckpt_path)", "the one that DeepSpeed's file 'latest' names"),
    ],
    ("host/checkpoints.py", CRITIC, "CriticModelActor.init_model_from_pretrained"): [
        ("ckpt_path = os.path.join(args.ckpt.path, '_critic')", "the critic's, by the same name of the latest"),
        ("strategy.load_ckpt(self.critic, ckpt_path)", "the one that DeepSpeed's file 'latest' names"),
    ],
    ("trainer/policy.py", ACTOR, "PolicyModelActor.save_checkpoint"): [
        ("os.path.join(args.ckpt.path, f'{tag}_hf')", "where exports lie"),
        ("os.path.join(args.ckpt.path, '_actor')", "DeepSpeed writes there for us too"),
        ("if not self.disable_ds_ckpt:", "and not at all with this flag"),
    ],
    ("trainer/critic.py", CRITIC, "CriticModelActor.save_checkpoint"): [
        ("os.path.join(args.ckpt.path, '_critic')", "DeepSpeed writes there for us too"),
        ("if not self.disable_ds_ckpt:", "and not at all with this flag"),
    ],
    ("trainer/policy.py", "utils/deepspeed/deepspeed.py", "DeepspeedStrategy.save_ckpt"): [
        ("model.save_checkpoint(save_dir, tag=tag, client_state=client_state, save_latest=save_latest)", "as we do"),
    ],
    ("host/checkpoints.py", TRAINER, "BasePPOTrainer.init_checkpoint_states"): [
        ("ckpt_path = os.path.join(self.args.ckpt.path, '_actor')", "the trainer resumes if it is there, as we say"),
    ],
    ("host/models.py", ACTOR, "PolicyModelActor.init_model_from_pretrained"): [
        ("self.trainer = ActorPPOTrainer(", "the name that is substituted"),
        ("args = strategy.args", "it reads its flags from the strategy that it is given"),
        ("if args.train.enable_ema:", "its average is ours, so this is switched off"),
        ("self.save_hf_ckpt = args.ckpt.save_hf", "exports are ours, so this is switched off"),
    ],
    ("trainer/policy.py", ACTOR, "PolicyModelActor.save_model"): [
        ("args.ckpt.output_dir", "where the last export lies"),
    ],
    ("host/models.py", ACTOR, "ActorPPOTrainer.__init__"): [
        ("self._init_vllm_sync_group(backend)", "which we leave for the first update"),
    ],
    ("trainer/policy.py", ACTOR, "ActorPPOTrainer.__init__"): [
        (
            "backend == 'nccl' and self.args.train.colocate_all and (not self.args.train.async_enable)",
            "where weights go through memory of shared GPUs",
        ),
    ],
    ("trainer/policy.py", ACTOR, "ActorPPOTrainer.training_step"): [
        (
            "loss_batch_info = get_loss_batch_info(self.strategy, action_mask, replay_buffer=self.replay_buffer, "
            "step=step, dynamic_batch=self.args.train.dynamic_batch_enable)",
            "--ada_loss needs these totals earlier, and gives them to it",
        ),
        ("advantages = experience.advantages", "--ada_loss has scaled them by then"),
        ("kl_loss = aggregate_loss(kl, experience.action_mask, **loss_batch_info)", "a mean over tokens in any case"),
    ],
    ("trainer/training_step.py", "utils/loss_utils.py", "_optimizer_step_loss_norm"): [
        (
            "{'dp_size': dp_size, 'batch_num_tokens': num_tokens / gas, 'global_batch_size': num_samples / gas}",
            "the ratio of both totals is that of the optimizer step",
        ),
    ],
    ("trainer/training_step.py", "models/loss.py", "PolicyLoss.__init__"): [
        ("self.token_level_loss = token_level_loss", "by this name OpenRLHF's average is known"),
        (
            "if policy_loss_type == 'gspo':\n        self.token_level_loss = False",
            "loss_rules.POLICY_LOSSES says so, too",
        ),
    ],
    ("trainer/policy.py", ACTOR, "ActorPPOTrainer.broadcast_to_vllm"): [
        ("p.requires_grad or not getattr(self.actor, 'is_vlm', False)", "frozen image encoders are not sent"),
    ],
    ("trainer/prompt_critic.py", "trainer/ray/launcher.py", "RayActorGroup.async_run_method_batch"): [
        ("effective_actors = num_actors // self.duplicate_actors", "how many processes see different data"),
        ("for j in range(self.duplicate_actors):", "results of copies stand next to each other"),
    ],
    ("rollout/reward_model.py", "trainer/ray/launcher.py", "RayActorGroup.async_run_method_batch"): [
        ("chunk_size += 1", "the last process may get fewer: answers are filled up to a multiple"),
    ],
    ("config/host_rules.py", "cli/train_ppo_ray.py", "train"): [
        ("if not args.reward.remote_url:", "scored_by_model says the same"),
        ("if reward_model is not None and args.reward.model_name_or_path:", "and that a model must be named"),
    ],
    (
        "rollout/reward_model.py",
        "trainer/ppo_utils/experience_maker.py",
        "RemoteExperienceMaker.make_experience",
    ): [
        ("use_reward_model = samples_list[0].rewards is None", "rewards that are there are not asked for again"),
        ("pad_sequence=[True] * len(samples_list)", "the model is asked in the same way"),
    ],
    ("trainer/prompt_critic.py", "models/model.py", "_get_critic_model"): [
        ("values = values[:, :-1]", "the last position has no value: one more token stands there"),
        (
            "action_values = values[:, -action_mask.shape[1]:] * action_mask.float()",
            "the mask chooses the value of the last prompt token",
        ),
    ],
    ("host/generator.py", GENERATOR, "SamplesGenerator.generate_samples"): [
        ("self._sample_buffer = self._sample_buffer[chunk_size:]", "what is sampled ahead waits there"),
        ("not getattr(self, '_sample_buffer', None)", "an empty buffer from the start changes nothing"),
    ],
    ("rollout/recorded_generator.py", GENERATOR, "SamplesGenerator.generate_eval_samples"): [
        ("dynamic_filtering=False", "evaluation draws nothing again"),
    ],
    ("host/generator.py", GENERATOR, "SamplesGenerator.generate_eval_samples"): [
        ("if getattr(self, '_eval_dataloader_iter', None) is None:", "without it an evaluation begins anew"),
    ],
    ("host/generator.py", GENERATOR, "SamplesGenerator._generate_vllm"): [
        (
            "self._process_response_into_experience(response, **generate_kwargs) for response in ray.get(ref)",
            "what the filter rejects is seen nowhere else",
        ),
    ],
    ("rollout/prompts.py", "trainer/ray/ppo_critic.py", "CriticPPOTrainer.ppo_train"): [
        ("drop_last=True", "why an incomplete batch is carried over"),
    ],
    ("rollout/samples_generator.py", "utils/agent.py", "SingleTurnAgentExecutor.execute"): [
        ("score_value = rewards_info.get('rewards')", "the metric is the reward where there is no score"),
    ],
    ("rollout/samples_generator.py", GENERATOR, "SamplesGenerator._dispatch_prompts_to_vllm"): [
        (
            "generate_kwargs.get('n_samples_per_prompt', self.args.rollout.n_samples_per_prompt)",
            "how a wave asks for its count",
        ),
    ],
    (
        "trainer/experience_maker.py",
        "trainer/ppo_utils/experience_maker.py",
        "RemoteExperienceMaker.split_rollout_samples",
    ): [
        ("sample.index = [i]", "tags are found by this position"),
    ],
    (
        "trainer/experience_maker.py",
        "trainer/ppo_utils/experience_maker.py",
        "RemoteExperienceMaker.make_experience_batch",
    ): [
        ("self.compute_advantages_and_returns(experiences)", "the method that we replace"),
    ],
    (
        "trainer/experience_maker.py",
        "trainer/ppo_utils/experience_maker.py",
        "RemoteExperienceMaker.compute_advantages_and_returns",
    ): [
        ("['gae', 'reinforce', 'reinforce_baseline']", "the estimators that OpenRLHF whitens (WHITENED)"),
    ],
    ("trainer/critic.py", "trainer/ray/ppo_critic.py", "CriticPPOTrainer.__init__"): [
        ("self.critic_loss_fn = ValueLoss(value_clip)", "replaced by the weighted loss"),
    ],
    ("trainer/critic.py", "trainer/ray/ppo_critic.py", "CriticPPOTrainer.training_step"): [
        (
            "self.critic_loss_fn(values, old_values, returns, action_mask=experience.action_mask, **loss_batch_info)",
            "how the loss is called",
        ),
    ],
    ("host/models.py", "trainer/ray/ppo_critic.py", "CriticModelActor.init_model_from_pretrained"): [
        ("self.trainer = CriticPPOTrainer(", "the name that is substituted"),
    ],
    ("trainer/critic.py", "models/loss.py", "aggregate_loss"): [
        (
            "return (loss * loss_mask).sum() / batch_num_tokens * dp_size",
            "a weighted mask weighs the loss and not its normaliser",
        ),
    ],
    ("host/classes.py", "trainer/ray/launcher.py", "RayActorGroup._initiate_actors"): [
        ("self._actor_handlers = [master_actor]", "the first is the one of rank 0"),
    ],
    ("host/engine.py", ENGINE, "RolloutRayActor.__init__"): [
        ("self._configure_vllm_env(", "called before the engine is made"),
    ],
    ("host/classes.py", "cli/train_ppo_ray.py", "train"): [
        (
            "from openrlhf.trainer.ppo_trainer import PPOTrainer",
            "imported at the call: our class is in its place by then",
        ),
        ("from openrlhf.trainer.ppo_trainer_async import PPOTrainerAsync as PPOTrainer", "and so is this one"),
        (
            "critic_model = RayActorGroup(args.critic.num_nodes, args.critic.num_gpus_per_node, CriticModelActor,",
            "the name that is substituted",
        ),
    ],
    ("platforms/session.py", "cli/train_ppo_ray.py", "train"): [
        ("if not ray.is_initialized():", "Ray is ours by then"),
    ],
    ("data/files.py", "datasets/utils.py", "blending_datasets"): [
        ("ext in ['.json', '.jsonl', '.csv', '.parquet', '.arrow']", "what is a file by its ending"),
    ],
    ("rollout/prompts.py", TRAINER, "prepare_datasets"): [
        (
            "strategy.setup_dataloader(prompts_dataset, 1, True, True, prompts_dataset.collate_fn,",
            "batches of one prompt, shuffled",
        ),
    ],
    ("host/generator.py", GENERATOR, "_collect_prompt_batch"): [
        (
            "_, batch_prompts, batch_labels, batch_images = next(dataloader_iter)",
            "the loop ignores the slot of our row number",
        ),
    ],
}


def facts() -> list[Any]:
    return [
        pytest.param(*place, fact, why, id=f"{place[2]}-{i}")
        for place, entries in FACTS.items()
        for i, (fact, why) in enumerate(entries)
    ]


@pytest.mark.parametrize(("ours", "path", "name", "fact", "why"), facts())
def test_fact(host_source: Any, ours: str, path: str, name: str, fact: str, why: str) -> None:
    assert fact in host_source.text(path, name), f"openrlhf_ada/{ours} stands on this line of openrlhf/{path}: {why}"


def test_the_table_names_files_of_ours() -> None:
    assert [name for name in sorted({place[0] for place in FACTS}) if not (PACKAGE / name).is_file()] == []


def read_of(tree: ast.AST, owner: str) -> set[str]:
    """Attributes that are read of a variable, by their names or with getattr."""
    named = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == owner}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "getattr"]
    return named | {ast.literal_eval(n.args[1]) for n in calls if ast.unparse(n.args[0]) == owner}


def test_deepspeed_names_the_checkpoint_in_latest(tmp_path: Path) -> None:
    """host/checkpoints.py"""
    assert '"latest_universal" if self.load_universal_checkpoint() else "latest"' in inspect.getsource(
        DeepSpeedEngine.load_checkpoint
    )
    assert "if save_latest and self.global_rank == 0:" in inspect.getsource(DeepSpeedEngine.save_checkpoint)
    folder = tmp_path / POLICY
    folder.mkdir()
    assert latest_tag(folder) is None
    (folder / "latest").write_text("global_step7\n")
    assert latest_tag(folder) == "global_step7"
    name_latest(folder, "global_step8")
    assert latest_tag(folder) == "global_step8"
    assert [path.name for path in folder.iterdir()] == ["latest"]


def test_checkpoint_states_hold_what_resuming_needs(host_source: Any) -> None:
    needed = {"episode", "global_step", "total_consumed_prompts", "data_loader_state_dict"}
    for name in ("BasePPOTrainer.init_checkpoint_states", "PPOTrainer.fit"):
        dicts = [
            {key.value for key in node.keys if isinstance(key, ast.Constant)}
            for node in ast.walk(host_source.find(TRAINER, name))
            if isinstance(node, ast.Dict)
        ]
        assert needed in dicts, f"openrlhf_ada/trainer/ppo_trainer.py resumes with {sorted(needed)} of {name}"


def test_every_policy_loss_of_the_host_is_known(host_source: Any) -> None:
    (flag,) = (
        node
        for node in ast.walk(host_source.module(TRAIN_MODULE))
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) == "'--actor.policy_loss_type'"
    )
    (choices,) = (ast.literal_eval(keyword.value) for keyword in flag.keywords if keyword.arg == "choices")
    assert set(choices) == POLICY_LOSSES.keys(), "loss_rules.py: does the new one divide by a sample's length?"


def test_data_sources_are_read_for_evaluation_only(host_source: Any) -> None:
    """rollout/prompts.py keeps a training row's number in that slot."""
    readers = [
        f"{path.name}: {function.name}"
        for path in sorted((host_root() / "trainer").rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and "datasource" in ast.unparse(function)
    ]
    assert readers == ["ppo_trainer.py: compute_eval_metrics"]


# -- the command line's __main__ block (host/parser.py) --------------------------------------------------------------


def test_main_block_has_the_shape_that_is_executed(host_source: Any) -> None:
    _main_block()  # raises HostError otherwise
    block = host_source.module(TRAIN_MODULE).body[-1]
    assert isinstance(block, ast.If)
    text = ast.unparse(ast.Module(body=block.body, type_ignores=[]))
    assert "parser = argparse.ArgumentParser()" in text
    assert "args = parser.parse_args()" in text
    assert "args = hierarchize(args)" in text


def test_main_block_needs_no_more_names_than_it_is_given(host_source: Any) -> None:
    block = host_source.module(TRAIN_MODULE).body[-1]
    names = [node for node in ast.walk(block) if isinstance(node, ast.Name)]
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    imported = {a.asname or a.name for n in ast.walk(block) if isinstance(n, ast.ImportFrom) for a in n.names}
    free = {n.id for n in names} - stored - imported - set(dir(builtins)) - {"__name__"}
    assert free == {"argparse", "datetime", "train"}, "host.parser.parse_host_arguments gives it the first two"
    modules = {n.module for n in ast.walk(block) if isinstance(n, ast.ImportFrom)}
    assert modules == {"openrlhf.utils.config", "modelscope.utils.hf_util"}


def test_config_module_is_light(host_source: Any) -> None:
    """host/parser.py loads it by its path, without OpenRLHF's package."""
    imports = [
        n for n in ast.walk(host_source.module("utils/config.py")) if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    assert [ast.unparse(n) for n in imports] == ["from types import SimpleNamespace"]
