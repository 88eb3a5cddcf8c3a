"""The policy's processes: OpenRLHF's, which send their weights our way."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from peft import PeftModel

from openrlhf_ada.host.checkpoints import POLICY, latest_tag
from openrlhf_ada.host.model_code import has_experts
from openrlhf_ada.host.models import HostPolicyActor, HostPolicyTrainer, HostReferenceActor, HostRewardActor
from openrlhf_ada.host.sharding import sharding
from openrlhf_ada.platforms.folders import check_space
from openrlhf_ada.rollout.engine_restart import EngineWaiter
from openrlhf_ada.trainer.checkpoints import Origin, average_of, commit, discard, rotate
from openrlhf_ada.trainer.skipped_rollouts import as_idle, log_probs_of_rest, rest_of_training, shorten
from openrlhf_ada.trainer.training_step import (
    FiniteSteps,
    StepMeans,
    advantage_factors,
    loss_totals,
    mark_boundary,
    seed_step,
    without_negative,
)
from openrlhf_ada.weights.average import WeightAverage
from openrlhf_ada.weights.export import MERGED, export_whole, whole_weights
from openrlhf_ada.weights.policy_side import PolicyWeights
from openrlhf_ada.weights.sender import EngineGoneError, WeightSync, send_along, take_part
from openrlhf_ada.weights.transport import SHARED

logger = logging.getLogger(__name__)


class AdaActorTrainer(HostPolicyTrainer):
    """OpenRLHF's, with --ada_loss, and with a way of our own to send weights."""

    version = 0
    """Training steps that the weights have had, the trainer's count."""

    next_version = 0
    """`version` after the step that is running."""

    average: WeightAverage | None = None
    """Of the weights after each step of the optimizer (--train.enable_ema)."""

    _epoch = -1
    """Over the step that is trained, from 0 on; -1 before the first."""

    _members: Sequence[str] = ()
    """Start ids of the engines in the group over which weights are sent."""

    @cached_property
    def _sync(self) -> WeightSync:
        args = self.strategy.args
        if args.ada.verify_sync == "off" and self._has_experts():
            raise RuntimeError("--ada_verify_sync is off, but only its checks see whether vLLM packs experts rightly")
        backend = SHARED if self.use_cuda_ipc else args.vllm.sync_backend
        senders = torch.distributed.get_world_size() if self.use_cuda_ipc else 1
        workers = args.vllm.tensor_parallel_size
        return WeightSync(backend, self._device, workers, args.ada.verify_sync, senders=senders)

    @property
    def _device(self) -> torch.device:
        return torch.device(torch.cuda.current_device())

    @cached_property
    def _weights(self) -> PolicyWeights:
        actor = self.actor
        gather, shape_of = sharding(self.strategy.args, actor.model.module)
        # An image encoder stays what the engines have loaded.
        return PolicyWeights(actor.model.module, gather, shape_of, only_trained=getattr(actor, "is_vlm", False))

    @cached_property
    def all_weights(self) -> PolicyWeights:
        """All weights, also those that the engines are not sent, under the model's own names."""
        model = self.actor.model.module
        return PolicyWeights(model, *sharding(self.strategy.args, model), as_saved=False)

    @cached_property
    def _means(self) -> StepMeans:
        return StepMeans()

    @cached_property
    def _finite(self) -> FiniteSteps:
        return FiniteSteps("policy", self.actor_loss_fn, self.actor.model)

    def training_step(self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None) -> Any:
        """OpenRLHF's, with the average of --ada_loss, and what follows a step of the optimizer. `step`: from 0 on in
        each epoch.

        Raises NotFiniteError where a number is NaN or infinite.
        """
        mark_boundary(self, self.actor.model, step)
        self._epoch += step == 0
        if not self.args.ada.trains_wrong(self._epoch):
            experience.advantages = without_negative(experience.advantages, experience.action_mask)
        if self.args.ada.loss != "host":
            loss_batch_info = loss_batch_info or loss_totals(self, experience.action_mask, step)
            by_token = self.actor_loss_fn.token_level_loss
            factors = advantage_factors(experience, loss_batch_info, self.args, by_token=by_token)
            experience.advantages = experience.advantages * factors
        skips = self.args.ada.skips_zeros
        rest = rest_of_training(experience) if skips else experience
        before = self.actor.model.global_steps
        with self._finite.step(rest):
            status = super().training_step(rest, kl_ctl, step, loss_batch_info)
        self._note_figures(status, experience, step, loss_batch_info)
        if self.average is not None and self.actor.model.global_steps > before:
            self.average.update()
        is_idle = skips and not (rest.advantages * rest.action_mask).any()
        return as_idle(status) if is_idle else status

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """OpenRLHF's; losses are means over the whole step. The rollouts that are there are this process's."""
        if self.args.ada.skips_zeros:
            shorten(self.replay_buffer.items)
        self._epoch = -1
        status = super().ppo_train(kl_ctl)
        return status and status | self._means.take(partial(self.strategy.all_reduce, op="sum"))

    def _note_figures(self, status: Any, experience: Any, step: int, loss_batch_info: Any) -> None:
        """Of one micro-batch. `experience`: with what was skipped of it, whose part in a loss is 0."""
        totals = loss_batch_info or loss_totals(self, experience.action_mask, step)
        self._means.add_policy(status, experience.action_mask, totals, self.actor_loss_fn, self.args.algo.kl)

    @cached_property
    def _waiter(self) -> EngineWaiter:
        return EngineWaiter(self.vllm_engines)

    def broadcast_to_vllm(self) -> None:
        """To all engines; also to those that Ray has started anew since the last time."""
        # Also where the step has trained the critic alone (--critic.freezing_steps).
        self.version = self.next_version
        torch.cuda.empty_cache()
        if torch.distributed.get_rank() == 0:
            self._gather_engines()
        self._send(are_ready=True)
        torch.cuda.empty_cache()
        torch_dist_barrier_and_cuda_sync()

    def _send(self, *, are_ready: bool) -> None:
        """By the first process, or over IPC by all of them, if the first finds that the engines `are_ready`."""
        number = torch.distributed.get_rank()
        group = self._sync.membership if are_ready and not number else None
        if self.use_cuda_ipc:
            told = [group]
            torch.distributed.broadcast_object_list(told)
            (group,) = told
        if group is None:
            take_part(self._weights)
        elif number:
            send_along(self._weights, group, number, self._device)
        else:
            self._sync.update(self._weights, self.version)

    def _gather_engines(self) -> None:
        """Every engine is up, in the group, and ready for an update; one that dies on the way is waited for."""
        while True:
            members = self._waiter.wait()
            try:
                if members != self._members:
                    self._sync.connect(dict(enumerate(self.vllm_engines)))
                    self._members = members
                self._sync.begin()
            except EngineGoneError as error:
                logger.warning("%s", error)
                continue
            return

    def _has_experts(self) -> bool:
        """By its configuration, or by its tensors' names where that is composed in another way."""
        named = any(".experts." in tensor.name for tensor in self._weights.manifest.tensors)
        return named or has_experts(self.actor.model.module.config.to_dict())

    def send_to(self, engine: int, *, alone: bool) -> None:
        """To one engine only. To be called in all of the policy's processes, or in the first, `alone`, where that has
        the weights whole. Raises EngineGoneError in the first if the engine has died once more."""
        gone: EngineGoneError | None = None
        if torch.distributed.get_rank() == 0:
            # The next update is for all engines again.
            self._members = ()
            try:
                self._sync.connect({engine: self.vllm_engines[engine]})
                self._sync.begin()
            except EngineGoneError as error:
                gone = error
        self._send(are_ready=gone is None)
        if not alone:
            torch_dist_barrier_and_cuda_sync()
        if gone is not None:
            raise gone


class AdaPolicyActor(HostPolicyActor):
    """OpenRLHF's, with our trainer in it, and with averages and exports of our own."""

    trainer: AdaActorTrainer
    trainer_class = AdaActorTrainer

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        self._exports = strategy.args.ckpt.save_hf
        self._uncommitted: dict[str, float | None] = {}
        self.trainer.version = self.trainer.next_version = self.checkpoint_states.get("global_step", 0)
        if strategy.args.ckpt.save_steps > 0:
            self._check_space("a checkpoint of this run")
        if strategy.args.train.enable_ema:
            self.trainer.average = self._start_average()

    def _start_average(self) -> WeightAverage:
        """In place of OpenRLHF's, which in half precision stands still and after a resume begins anew."""
        args = self.strategy.args
        part = torch.distributed.get_rank(), torch.distributed.get_world_size()
        in_main_memory = args.ds.adam_offload or args.ds.enable_sleep
        average = WeightAverage(self.trainer.all_weights, args.train.ema_beta, *part, in_main_memory=in_main_memory)
        if self.checkpoint_states:
            average.load(average_of(self._root, latest_tag(self._root / POLICY) or ""))
        return average

    @property
    def _root(self) -> Path:
        return Path(self.strategy.args.ckpt.path)

    def save_model(self) -> None:
        self._export(Path(self.strategy.args.ckpt.output_dir))

    def save_checkpoint(
        self,
        tag: str,
        client_states: dict[str, Any] | None = None,
        metric_value: float | None = None,
        metric_key: str | None = None,
    ) -> None:
        """In place of OpenRLHF's, which removes older ones first. It counts when it is committed, with the critic's.

        Raises NoSpaceError, before anything is written, where the disk has no room for it.
        """
        if not self.disable_ds_ckpt:
            self._check_space(f"checkpoint {tag}")
            if torch.distributed.get_rank() == 0:
                discard(self._root, tag)
                self._uncommitted[tag] = metric_value
            torch_dist_barrier_and_cuda_sync()
            if self.trainer.average is not None:
                self.trainer.average.save(average_of(self._root, tag))
            folder = str(self._root / POLICY)
            self.actor.model.save_checkpoint(folder, tag, client_state=client_states or {}, save_latest=False)
        if self._exports:
            self._export(self._root / f"{tag}_hf")
        torch_dist_barrier_and_cuda_sync()

    def commit_checkpoints(self, origin: Origin) -> None:
        """In the first process, when those of the critic are written as well."""
        ckpt = self.strategy.args.ckpt
        for tag, metric in self._uncommitted.items():
            commit(self._root, tag, metric, origin)
            rotate(self._root, ckpt.max_num, ckpt.max_mem)
        self._uncommitted.clear()

    def _check_space(self, what: str) -> None:
        """For a checkpoint on this node: each node may have a disk of its own for its part."""
        args = self.strategy.args
        if torch.distributed.get_rank() == 0 and not self.disable_ds_ckpt:
            check_space(Path(args.ckpt.path), self._checkpoint_bytes() // args.actor.num_nodes, what)

    def _checkpoint_bytes(self) -> int:
        """Of all processes together: all weights, and in single precision what is trained with Adam's two moments."""
        _, shape_of = sharding(self.strategy.args, self.actor.model.module)
        sizes = [(prod(shape_of(p)), p) for p in self.actor.model.module.parameters()]
        return sum(size * (p.element_size() + 12 * p.requires_grad) for size, p in sizes)

    def _export(self, path: Path) -> None:
        """The average, else OpenRLHF's export; of adapters also the whole model, which vLLM needs."""
        model, average = self.actor.model.module, self.trainer.average
        is_first = torch.distributed.get_rank() == 0
        if average is not None:
            tensors = average.tensors()
        else:
            self.strategy.save_model(self.actor, self.tokenizer, str(path))
            if not isinstance(model, PeftModel):
                return
            tensors, path = whole_weights(self.trainer.all_weights, is_first=is_first), path / MERGED
        if is_first:
            export_whole(model, self.tokenizer, tensors, path)
        torch_dist_barrier_and_cuda_sync()

    def forward(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor,
        attention_mask: torch.Tensor,
        mm_train_inputs_list: list[Any] | None = None,
    ) -> torch.Tensor:
        """OpenRLHF's log-probabilities of all actions, shape (B, A); 0 for rollouts that are to be skipped."""
        if not self.strategy.args.ada.skips_zeros:
            return super().forward(sequences, action_mask, attention_mask, mm_train_inputs_list=mm_train_inputs_list)
        forward = super().forward
        return log_probs_of_rest(
            lambda *shown: forward(*shown[:3], mm_train_inputs_list=shown[3]),
            *(sequences, action_mask, attention_mask, mm_train_inputs_list or []),
        )

    def begin_step(self, version: int) -> None:
        """A training step begins, after which the weights are of this version."""
        self.trainer.next_version = version
        seed_step(self.strategy.args, version)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        status = super().fit(*args, **kwargs)
        self.trainer.version = self.trainer.next_version
        return status

    def restore_engine(self, engine: int, *, alone: bool = False) -> None:
        """See `AdaActorTrainer.send_to`."""
        self.trainer.send_to(engine, alone=alone)


RayAdaPolicyActor = ray.remote(num_gpus=1)(AdaPolicyActor)

RayReferenceActor = ray.remote(num_gpus=1)(HostReferenceActor)

RayRewardActor = ray.remote(num_gpus=1)(HostRewardActor)
