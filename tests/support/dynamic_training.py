"""A training step of OpenRLHF over samples of very different lengths, in two processes: a program of its own.

    python dynamic_training.py FOLDER

OpenRLHF's splitting, balancing, replay buffer and trainer with our experience maker, once in micro-batches of fixed
size and once by tokens, padded and packed. Prints one JSON object: per case what each process trained, and how far the
weights moved. The optimizer's step is proportional to the gradient, so that every sample's share of it can be seen.
On two GPUs it is all as in a run, packing by flash-attn included. On a CPU a few lines of torch lay the tokens out,
and attention reads from the positions where a sample begins.
"""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROCESSES = 2
LENGTHS = (1, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 8, 11, 17, 30, 44)
"""Answer lengths of 16 samples: many short, few long, one beyond what a micro-batch may hold."""

CONSTANT = 8
"""--ada_loss_length."""

CAP = 40
"""Tokens of a micro-batch."""

PROMPT = 2
FIRST_ID = 8
"""Sample i begins with token FIRST_ID + i."""

FIGURES = ("policy_loss", "ppo_kl", "ppo_clip_ratio", "return")
"""Of a step's status, beside the gradient's norm."""

KINDS = ("fixed", "dynamic", "packed")


ZEROS: dict[str, tuple[str, int, str, int, dict[str, Any]]] = {
    "fixed, ZeRO 3": ("fixed", 3, "seq-mean-token-mean", len(LENGTHS), {}),
    "dynamic, ZeRO 3": ("dynamic", 3, "token-mean", len(LENGTHS), {"max_norm": 0.5}),
    "dynamic, two steps": ("dynamic", 2, "token-mean", len(LENGTHS) // 2, {"ada_loss": "sequence-constant"}),
    "packed, ZeRO 2": ("packed", 2, "token-mean", len(LENGTHS), {}),
}
"""Steps in which five of eight coefficients are 0: kind, stage, loss, rollouts of an update, and more."""

MICRO_SIZES = (1, 8)
MICRO: dict[str, dict[str, Any]] = {
    "token-mean": {"loss": "token-mean", "batch": len(LENGTHS)},
    "clipped, two epochs": {"loss": "seq-mean-token-mean", "batch": len(LENGTHS), "max_norm": 0.5, "epochs": 2},
}
"""In single precision without ZeRO; by rollouts of a micro-batch."""

SAME: dict[str, dict[str, Any]] = {
    "ZeRO 2, token-mean": {"stage": 2, "loss": "token-mean"},
    "ZeRO 3, seq-mean-token-mean": {"stage": 3, "loss": "seq-mean-token-mean"},
    "sequence-constant": {"stage": 2, "loss": "token-mean", "ada_loss": "sequence-constant"},
}
"""Steps that are to be the same in micro-batches of each kind."""

CASES: dict[str, dict[str, Any]] = (
    {f"{kind}, {name}": {"kind": kind, "batch": len(LENGTHS), **same} for name, same in SAME.items() for kind in KINDS}
    | {
        f"{kind}, ZeRO 1, clipped": {
            "kind": kind,
            "stage": 1,
            "loss": "token-mean",
            "batch": len(LENGTHS),
            "max_norm": 0.5,
        }
        for kind in ("fixed", "dynamic")
    }
    | {
        f"{zeros}, {rest}": {"kind": kind, "stage": stage, "loss": loss, "batch": batch, "zeros": zeros, **more}
        for rest, (kind, stage, loss, batch, more) in ZEROS.items()
        for zeros in ("computed", "skipped")
    }
    | {
        f"micro {size}, {name}": {"kind": "fixed", "stage": 0, "micro": size} | settings
        for name, settings in MICRO.items()
        for size in MICRO_SIZES
    }
    | {
        "host": {"kind": "host", "stage": 2, "loss": "token-mean", "batch": len(LENGTHS)},
        "two steps": {"kind": "packed", "stage": 2, "loss": "token-mean", "batch": len(LENGTHS) // 2},
    }
)


def coefficient(sample: int, *, zeros: bool = False, right: Collection[int] | None = None) -> float:
    """`right`: of which it is positive; of the even ones if it is left out."""
    is_right = sample % 2 == 0 if right is None else sample in right
    return 0.0 if zeros and sample % 8 in (0, 1, 3, 6, 7) else (1 if is_right else -1) * (1 + sample / 8)


def critic_weight(sample: int) -> float:
    return 0.25 + sample / 16


def work(rank: int, port: int, folder: Path, cases: Mapping[str, dict[str, Any]]) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(PROCESSES),
        "LOCAL_RANK": str(rank), "OPENRLHF_ADA_CPU_DTYPE": "float32", "OPENRLHF_ADA_TORCH_THREADS": "1",
    }  # fmt: skip
    from openrlhf_ada.platforms import without_gpu

    if without_gpu.is_needed():
        without_gpu.activate()
        lay_out_tokens_with_torch()
    found = {name: Run(rank, folder, **case).train() for name, case in cases.items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    import torch

    torch.distributed.barrier()
    os._exit(0)


def lay_out_tokens_with_torch() -> None:
    """In place of what OpenRLHF takes from flash_attn.bert_padding, which needs a GPU."""
    import torch
    from openrlhf.models import ring_attn_utils as host

    def unpad_input(x: Any, mask: Any) -> tuple[Any, ...]:
        places = mask.flatten().nonzero().flatten()
        return x.flatten(0, 1)[places], places, None, None, None

    def pad_input(x: Any, places: Any, batch: int, length: int) -> Any:
        padded = x.new_zeros(batch * length, *x.shape[1:]).index_copy(0, places, x)
        return padded.unflatten(0, (batch, length))

    host.unpad_input, host.pad_input = unpad_input, pad_input
    host.index_first_axis = lambda x, places: x[places]
    host.rearrange = lambda x, pattern: torch.flatten(x, 0, 1)


def flags(folder: Path, stage: int, loss: str, batch: int, ada_loss: str, micro: int, *, dynamic: bool) -> Any:
    from openrlhf_ada.config.schema import add_flags
    from openrlhf_ada.host.parser import parse_host_arguments
    from openrlhf_ada.trainer.settled import settings_of

    argv = [
        "--actor.model_name_or_path", str(folder / "model"), "--data.prompt_dataset", "none",
        "--vllm.num_engines", "1",
        "--actor.num_gpus_per_node", str(PROCESSES), "--ds.zero_stage", str(stage), "--actor.loss_agg_mode", loss,
        "--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "4", "--rollout.micro_batch_size", "2",
        "--train.batch_size", str(batch), "--train.micro_batch_size", str(micro), "--algo.kl.init_coef", "0",
        "--algo.advantage.estimator", "dr_grpo", "--reward.remote_url", "none",
        "--ada_loss", ada_loss, "--ada_loss_length", str(CONSTANT),
    ]  # fmt: skip
    if dynamic:
        argv += ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", str(CAP)]
    args = parse_host_arguments(argv, add_flags, lambda args: None, prog="test", description="")
    args.ada = settings_of(args, argv)
    return args


class Run:
    """One optimizer step (or two), in this process's part of it."""

    def __init__(
        self,
        rank: int,
        folder: Path,
        kind: str,
        stage: int,
        loss: str,
        batch: int,
        max_norm: float = 0.0,
        ada_loss: str = "host",
        zeros: str = "",
        micro: int = 2,
        epochs: int = 1,
        wrong_epochs: int = 0,
        right: Collection[int] | None = None,
    ) -> None:
        import torch
        from openrlhf.cli.train_ppo_ray import get_strategy
        from openrlhf.models import Actor
        from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

        from openrlhf_ada.platforms import without_gpu
        from openrlhf_ada.trainer.policy import AdaActorTrainer

        self.coefficient = partial(coefficient, zeros=bool(zeros), right=right)
        self.rank, self.is_dynamic = rank, kind != "fixed"
        args = self.args = flags(folder, stage, loss, batch, ada_loss, micro, dynamic=self.is_dynamic)
        args.train.max_epochs = epochs
        attention = "sdpa" if without_gpu.is_needed() else "flash_attention_2"
        skips = "skip" if zeros == "skipped" else "compute"
        args.ada = dataclasses.replace(args.ada, mode="seq", zeros=skips, wrong_epochs=wrong_epochs)
        args.ds.packing_samples, args.ds.attn_implementation = kind == "packed", attention
        self.strategy = get_strategy(args)
        self.strategy.setup_distributed()
        torch.manual_seed(0)
        actor = Actor(
            args.actor.model_name_or_path, attn_implementation=attention, packing_samples=args.ds.packing_samples,
            ds_config=self.strategy.get_ds_train_config(),
        )  # fmt: skip
        # So large an epsilon that a step is the gradient, and nothing else.
        adam = {"lr": 1e6, "betas": (0.9, 0.95), "eps": 1e6, "weight_decay": 0.0}
        config = {"optim": "adam", "muon": {}, "adam": adam, "lr_scheduler": "constant", "lr_warmup_ratio": 0.0}
        config |= {"max_norm": max_norm, "scheduler_steps": 10}
        self.actor, optimizer, scheduler = self.strategy.prepare((actor, config))
        trainer_class = ActorPPOTrainer if kind == "host" else AdaActorTrainer
        self.trainer = trainer_class(
            self.strategy, self.actor, None, optimizer, scheduler, micro_train_batch_size=micro, vllm_engines=None
        )

    def train(self) -> dict[str, Any]:
        before = self.weights()
        seen: list[dict[str, Any]] = []
        step = self.trainer.training_step

        def recorded(experience: Any, *rest: Any) -> Any:
            seen.append(describe(experience))
            return step(experience, *rest)

        self.trainer.training_step = recorded
        status = self.train_on(samples(self.coefficient))
        after = self.weights()
        return {
            "seen": seen,
            "steps": self.trainer.replay_buffer.dynamic_optimizer_step,
            "optimizer_steps": self.actor.model.global_steps,
            "status": {name: status[name] for name in FIGURES},
            "grad_norm": status["actor_grad_norm"],
            "moved_norm": math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before)),
            "moved": [float(v) for name in before for v in (after[name] - before[name]).flatten()[:50]],
        }

    def train_on(self, chosen: list[Any]) -> dict[str, float]:
        for experience in self.share(self.maker().make_experience_batch(chosen)):
            self.trainer.replay_buffer.append(experience)
        return self.trainer.ppo_train(0.0)

    def maker(self) -> Any:
        from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

        from openrlhf_ada.trainer.experience_maker import AdaptiveExperienceMaker
        from openrlhf_ada.trainer.skipped_rollouts import log_probs_of_rest

        actor = self.actor

        class Maker(AdaptiveExperienceMaker):
            """With the policy in this process."""

            def make_experience(self, samples_list: Any) -> Any:
                import torch

                def log_probs(sequences: Any, action_mask: Any, attention_mask: Any, images: list[Any]) -> Any:
                    inputs = (sequences, action_mask, attention_mask)
                    return actor(*(t.to(torch.cuda.current_device()) for t in inputs)).cpu()

                for e in samples_list:
                    with torch.no_grad():
                        inputs = (e.sequences, e.action_mask, e.attention_mask)
                        e.action_log_probs = log_probs_of_rest(log_probs, *inputs, [])
                    e.kl = torch.zeros_like(e.action_log_probs)
                return samples_list

        groups = dict.fromkeys(
            ("actor_model_group", "critic_model_group", "reward_model_group", "initial_model_group")
        )
        tokenizer = SimpleNamespace(pad_token_id=0)
        return Maker(
            SimpleNamespace(**groups, kl_ctl=FixedKLController(0.0), strategy=self.strategy, tokenizer=tokenizer)
        )

    def share(self, experiences: list[Any]) -> list[Any]:
        """As OpenRLHF's trainer and its actor group deal them out."""
        from openrlhf.trainer.ppo_utils.experience import balance_experiences

        if self.is_dynamic:
            experiences = balance_experiences(experiences, self.args)
        size = -(-len(experiences) // PROCESSES)
        return experiences[self.rank * size : (self.rank + 1) * size]

    def weights(self) -> dict[str, Any]:
        """Whole, one after the other: see `openrlhf_ada.host.sharding`."""
        from openrlhf_ada.host.sharding import sharding

        gather, _ = sharding(self.args, self.actor.model.module)
        whole: dict[str, Any] = {}
        for name, parameter in self.actor.model.module.named_parameters():
            with gather([parameter]):
                whole[name] = parameter.detach().float().cpu().clone()
        return whole


def samples(coefficient: Callable[[int], float] = coefficient) -> list[Any]:
    """In an order that has nothing to do with their lengths, as pools give them."""
    import torch

    from openrlhf_ada.rollout.records import SampleTag, TaggedExperience

    made = []
    generator = torch.Generator().manual_seed(0)
    for i in (7 * k % len(LENGTHS) for k in range(len(LENGTHS))):
        length = PROMPT + LENGTHS[i]
        tokens = torch.randint(FIRST_ID + len(LENGTHS), 64, (1, length), generator=generator)
        tokens[0, 0] = FIRST_ID + i
        mask = torch.arange(1, length).unsqueeze(0) >= PROMPT
        made.append(
            TaggedExperience(
                sequences=tokens, attention_mask=torch.ones_like(tokens), action_mask=mask,
                rewards=torch.tensor([0.0]), total_length=torch.tensor([float(length)]),
                info={"reward": torch.tensor([0.0])},
                tag=SampleTag(i // 4, i % 4, coefficient(i), critic_weight(i)),
            )
        )  # fmt: skip
    return made


def describe(experience: Any) -> dict[str, Any]:
    """A micro-batch as it comes to be trained."""
    from openrlhf_ada.trainer.experience_maker import critic_weights

    ids = (experience.sequences[:, 0] - FIRST_ID).tolist()
    rows = zip(experience.advantages, experience.action_mask.bool(), strict=True)
    return {
        "ids": ids,
        "advantages": [values[mask].tolist() for values, mask in rows],
        "critic_weights": critic_weights(experience).tolist(),
        "tokens": int(experience.attention_mask.sum()),
    }


def save_model(folder: Path) -> None:
    """A tiny one, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape)).save_pretrained(folder)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def main(folder: Path, cases: Mapping[str, dict[str, Any]]) -> None:
    save_model(folder / "model")
    port = free_port()
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=work, args=(rank, port, folder, cases), daemon=True) for rank in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    sys.stdout.write(json.dumps({name: [of_rank[name] for of_rank in found] for name in cases}))
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), CASES)
