"""What a policy leaves behind: models that transformers loads, and averages to go on from.

vLLM loads them as well: tests/e2e/test_export.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ray import ppo_actor
from policies import make_model, move, sent, weights_of, with_adapters
from run_flags import settings_with
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.trainer import policy as module
from openrlhf_ada.trainer.checkpoints import Origin
from openrlhf_ada.trainer.policy import AdaActorTrainer, AdaPolicyActor

TOKENIZER_FILE = "tokenizer.json"


class Tokenizer:
    def save_pretrained(self, path: Path) -> None:
        (path / TOKENIZER_FILE).write_text("{}")


class Run:
    """A policy of one process in front of a host that saves nothing but its checkpoints' folders."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
        self.path, self.model = path, model
        self.exported: list[str] = []
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
        monkeypatch.setattr(module, "torch_dist_barrier_and_cuda_sync", lambda: None)
        host: Any = unwrap_ray_class(ppo_actor.PolicyModelActor)
        monkeypatch.setattr(host, "init_model_from_pretrained", lambda *call: self._host_init(*call))
        monkeypatch.setattr(ppo_actor.ActorPPOTrainer, "training_step", lambda *call: self._host_step(*call[:2]))

    def start(self, *, averages: bool, exports: bool = False, resumes: bool = False, sleeps: bool = False) -> Any:
        args = SimpleNamespace(
            train=SimpleNamespace(enable_ema=averages, ema_beta=0.5, dynamic_batch_enable=False),
            ckpt=SimpleNamespace(
                path=str(self.path / "ckpt"),
                output_dir=str(self.path / "model"),
                save_hf=exports,
                save_steps=1,
                max_num=2,
                max_mem=1000,
            ),
            ds=SimpleNamespace(zero_stage=2, tensor_parallel_size=1, adam_offload=False, enable_sleep=sleeps),
            ada=settings_with(loss="host", mode="off", trust_remote_code=True),
            actor=SimpleNamespace(model_name_or_path="model", num_nodes=1),
        )
        strategy = SimpleNamespace(args=args, save_model=lambda actor, tokenizer, path: self.exported.append(path))
        policy: Any = AdaPolicyActor.__new__(AdaPolicyActor)
        policy.strategy, policy.tokenizer, policy.disable_ds_ckpt = strategy, Tokenizer(), False
        self.resumes = resumes
        policy.init_model_from_pretrained(strategy, "model")
        assert (args.train.enable_ema, args.ckpt.save_hf) == (averages, exports), "the flags stay as they are"
        return policy

    def _host_init(self, policy: Any, strategy: Any, pretrain: str) -> None:
        assert not strategy.args.train.enable_ema, "OpenRLHF would load a second model"
        engine = SimpleNamespace(module=self.model, global_steps=0, save_checkpoint=self._deepspeed_save)
        policy.actor = SimpleNamespace(model=engine)
        policy.trainer = AdaActorTrainer.__new__(AdaActorTrainer)
        policy.trainer.strategy, policy.trainer.args, policy.trainer.actor = strategy, strategy.args, policy.actor
        policy.trainer._finite = SimpleNamespace(step=lambda _: nullcontext())
        policy.trainer._note_figures = lambda *_: None
        policy.checkpoint_states = {"global_step": 1} if self.resumes else {}

    def _deepspeed_save(self, folder: str, tag: str, client_state: Any, save_latest: bool) -> None:
        assert not save_latest, "it counts when it is committed"
        path = Path(folder) / tag
        path.mkdir(parents=True)
        (path / "weights.pt").write_text(tag)

    def _host_step(self, trainer: Any, is_optimizer_step: bool) -> dict[str, float]:
        if is_optimizer_step:
            trainer.actor.model.global_steps += 1
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter += 1.0
        return {"loss": 1.0}

    def averages(self) -> list[str]:
        return sorted(path.stem for path in (self.path / "ckpt" / "_average").glob("*"))


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    return lambda model=None: Run(tmp_path, monkeypatch, make_model() if model is None else model)


def loaded(path: Path) -> dict[str, torch.Tensor]:
    assert (path / TOKENIZER_FILE).exists()
    return dict(AutoModelForCausalLM.from_pretrained(path).named_parameters())


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_exported_by_host_and_merged_beside(make_run: MakeRun, ties: bool, dtype: torch.dtype) -> None:
    adapted = with_adapters(make_model(dtype, tie_word_embeddings=ties))
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    run = make_run(adapted)
    run.start(averages=False).save_model()
    assert run.exported == [str(run.path / "model")]
    assert_equal(loaded(run.path / "model" / "merged"), sent(weights_of(adapted)))
    assert_equal(adapted.state_dict(), before)


def test_model_without_adapters_is_exported_by_host_alone(make_run: MakeRun) -> None:
    run = make_run()
    policy = run.start(averages=False, exports=True)
    policy.save_checkpoint("global_step1")
    policy.save_model()
    assert run.exported == [str(run.path / "ckpt" / "global_step1_hf"), str(run.path / "model")]
    assert run.averages() == [] and not (run.path / "model").exists()


def test_persistent_buffers_are_exported_too(make_run: MakeRun) -> None:
    model = make_model()
    model.model.register_buffer("balance", torch.full((3,), 2.0))
    model.model.register_buffer("scratch", torch.ones(3), persistent=False)
    run = make_run(model)
    run.start(averages=True).save_model()
    assert torch.equal(load_file(run.path / "model" / "model.safetensors")["model.balance"], torch.full((3,), 2.0))
    assert load_file(run.path / "model" / "model.safetensors").keys() == model.state_dict().keys()


@pytest.mark.parametrize("adapts", [False, True])
def test_average_is_exported_in_place_of_weights(make_run: MakeRun, adapts: bool) -> None:
    run = make_run(with_adapters(make_model()) if adapts else None)
    weights = weights_of(run.model)
    expected = sent(weights)
    policy = run.start(averages=True, exports=True)
    for is_optimizer_step in (False, True, False, True):
        assert policy.trainer.training_step(is_optimizer_step, 0.0, 0) == {"loss": 1.0}
        if is_optimizer_step:
            now = sent(weights)
            expected = {name: expected[name].lerp(now[name], 0.5) for name in expected}
    policy.save_checkpoint("best_global_step2")
    policy.save_model()
    assert run.exported == []
    for path in (run.path / "model", run.path / "ckpt" / "best_global_step2_hf"):
        assert_equal(loaded(path), expected)


def test_resumed_run_continues_the_average(make_run: MakeRun) -> None:
    run = make_run()
    policy = run.start(averages=True)
    for step in (1, 2, 3):
        policy.trainer.training_step(True, 0.0, 0)
        policy.save_checkpoint(f"global_step{step}")
        policy.commit_checkpoints(Origin({}, ""))
    assert run.averages() == ["global_step2", "global_step3"], "of the checkpoints that are kept"
    resumed = run.start(averages=True, resumes=True, sleeps=True)
    assert_equal(resumed.trainer.average.tensors(), policy.trainer.average.tensors())
    move(run.model)
    (run.path / "ckpt" / "_average" / "global_step3.safetensors").unlink()
    with pytest.raises(RuntimeError, match=r"global_step3.safetensors is missing"):
        run.start(averages=True, resumes=True)
