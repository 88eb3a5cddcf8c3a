"""Micro-batches by tokens (--train.dynamic_batch_enable): every sample is trained once, with its weight.

OpenRLHF's splitting, balancing, replay buffer and trainer in two processes: see tests/support/dynamic_training.py.
Of packing, flash-attn's kernels are left out: tests/gpu/test_packing.py.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dynamic_training import CAP, CASES, CONSTANT, LENGTHS, MICRO, MICRO_SIZES, PROMPT, coefficient, critic_weight
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.utils.seqlen_balancing import get_minimum_num_micro_batch_size, get_seqlen_balanced_partitions
from shared_results import printed_once

pytestmark = pytest.mark.rehearsal

ROOT = Path(__file__).parents[2]
SKIPPED = [name for name in CASES if name.startswith("skipped")]
OTHERS = [name for name in CASES if not name.startswith(("skipped", "computed")) and "epochs" not in name]
DYNAMIC = [name for name in OTHERS if not name.startswith(("fixed", "micro"))]
WHOLE = [name for name in DYNAMIC if name != "host"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """By case, what each of the two processes did."""
    return printed_once(tmp_path_factory, "dynamic batches", "dynamic_training.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_sample_is_trained_once_with_its_coefficient(found: dict[str, list[dict[str, Any]]], name: str) -> None:
    batches = [batch for of_process in found[name] for batch in of_process["seen"]]
    assert sorted(i for batch in batches for i in batch["ids"]) == list(range(len(LENGTHS)))
    for batch in batches:
        assert batch["critic_weights"] == pytest.approx([critic_weight(i) for i in batch["ids"]])
        for i, advantages in zip(batch["ids"], batch["advantages"], strict=True):
            assert advantages == pytest.approx([coefficient(i)] * LENGTHS[i])


@pytest.mark.slow
@pytest.mark.parametrize("name", DYNAMIC)
def test_processes_share_micro_batches_within_the_limit(found: dict[str, list[dict[str, Any]]], name: str) -> None:
    first, second = found[name]
    assert first["steps"] == second["steps"], "or one would wait for the other"
    assert sum(first["steps"]) == first["optimizer_steps"] == len(LENGTHS) // CASES[name]["batch"]
    assert len(first["seen"]) == len(second["seen"]) == len(first["steps"])
    for batch in first["seen"] + second["seen"]:
        assert batch["tokens"] <= CAP or len(batch["ids"]) == 1, "one sample may be longer than that"
    assert max(batch["tokens"] for batch in first["seen"] + second["seen"]) == max(LENGTHS) + PROMPT > CAP
    samples = [[i for batch in p["seen"] for i in batch["ids"]] for p in (first, second)]
    assert [len(s) for s in samples] == [len(LENGTHS) // 2] * 2
    # As even as it gets: dealt out from the longest on, the first takes the longest of each pair in turn.
    tokens = [sum(LENGTHS[i] for i in s) for s in samples]
    assert abs(tokens[0] - tokens[1]) < max(LENGTHS) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in WHOLE if n != "two steps"])
def test_micro_batch_split_keeps_sample_weights(found: dict[str, list[dict[str, Any]]], name: str) -> None:
    """The step is that of micro-batches of fixed size, under both ways to average a loss, padded and packed."""
    kind, rest = name.split(", ", 1)
    fixed, dynamic = (found[f"{k}, {rest}"][0] for k in ("fixed", kind))
    size = max(map(abs, fixed["moved"]))
    assert size > 0.01
    assert dynamic["moved"] == pytest.approx(fixed["moved"], abs=1e-3 * size)
    assert dynamic["grad_norm"] == pytest.approx(fixed["grad_norm"], rel=1e-4)
    assert dynamic["status"] == pytest.approx(fixed["status"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MICRO)
def test_figures_do_not_depend_on_micro_batches(found: dict[str, list[dict[str, Any]]], name: str) -> None:
    """In single precision without ZeRO, where the weights move by the gradient if nothing clips it."""
    smallest, *others = (found[f"micro {size}, {name}"][0] for size in MICRO_SIZES)
    assert smallest["status"]["policy_loss"]
    for other in others:
        assert other["status"] == pytest.approx(smallest["status"], abs=1e-5)
        assert other["grad_norm"] == pytest.approx(smallest["grad_norm"], rel=1e-4)
    if name == "token-mean":
        losses = [-coefficient(i) * LENGTHS[i] for i in range(len(LENGTHS))]
        assert smallest["status"]["policy_loss"] == pytest.approx(sum(losses) / sum(LENGTHS), rel=1e-5)
        assert smallest["grad_norm"] == pytest.approx(smallest["moved_norm"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SKIPPED)
def test_skipped_zeros_change_no_gradient(found: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Rollouts of coefficient 0 count in the average, in whichever micro-batch they are; in two processes."""
    of_all, of_rest = (found[name.replace("skipped", kind)][0] for kind in ("computed", "skipped"))
    size = max(map(abs, of_all["moved"]))
    assert size > 0.01
    assert of_rest["moved"] == pytest.approx(of_all["moved"], abs=1e-5 * size)
    assert of_rest["grad_norm"] == pytest.approx(of_all["grad_norm"], rel=1e-4)
    assert of_rest["status"]["policy_loss"] == pytest.approx(of_all["status"]["policy_loss"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "dynamic", "packed"])
def test_own_losses_divide_by_totals_of_all_processes(found: dict[str, list[dict[str, Any]]], kind: str) -> None:
    """In one step a constant per sample is the mean over tokens, times tokens / (samples x constant)."""
    mean = found[f"{kind}, ZeRO 2, token-mean"][0]["grad_norm"]
    ratio = sum(LENGTHS) / (len(LENGTHS) * CONSTANT)
    assert found[f"{kind}, sequence-constant"][0]["grad_norm"] == pytest.approx(ratio * mean, rel=1e-4)


@pytest.mark.slow
def test_host_alone_trains_only_the_last_micro_batch(found: dict[str, list[dict[str, Any]]]) -> None:
    """Why trainer/training_step.py is there. When this fails, OpenRLHF is mended, and it can go."""
    host, whole = found["host"][0], found["dynamic, ZeRO 2, token-mean"][0]
    assert host["seen"] == whole["seen"], "it computes them all"
    assert host["grad_norm"] < 0.5 * whole["grad_norm"]
    size = max(map(abs, whole["moved"]))
    assert max(abs(a - b) for a, b in zip(host["moved"], whole["moved"], strict=True)) > 0.1 * size


def lengths_of(kind: str, rng: random.Random, count: int) -> list[int]:
    """Tokens of the samples of a step."""
    if kind == "balanced":
        # Adaptive groups: half of a prompt's kept samples right and short, half wrong and up to the limit.
        return [rng.choice([rng.randint(40, 400), rng.randint(2000, 4096)]) for _ in range(count)]
    if kind == "lognormal":
        return [min(int(rng.lognormvariate(6.3, 0.9)) + 60, 4096) for _ in range(count)]
    return [4096 if i % 64 == 0 else rng.randint(60, 80) for i in range(count)]


@pytest.mark.parametrize("cap", [4096, 16384])
@pytest.mark.parametrize("kind", ["balanced", "lognormal", "few long"])
def test_host_micro_batches_keep_limit_within_half_percent(kind: str, cap: int) -> None:
    """It counts micro-batches by first fit and fills them by largest differences, which promises nothing."""
    for seed in range(8):
        lengths = lengths_of(kind, random.Random(seed), 128)
        count = get_minimum_num_micro_batch_size(lengths, cap, 1, 1)
        parts = get_seqlen_balanced_partitions(lengths, count, equal_size=False)
        assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
        tokens = [sum(lengths[i] for i in part) for part in parts]
        assert max(t for t, part in zip(tokens, parts, strict=True) if len(part) > 1 or t <= cap) <= cap * 1.02


def test_log_probs_use_up_to_twice_the_tokens() -> None:
    """Before training OpenRLHF rounds the number of micro-batches down to whole rounds of all processes: 15 to 8."""
    args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=True),
        rollout=SimpleNamespace(max_tokens_per_gpu=100),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=8),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
    maker.args, maker.tokenizer = args, SimpleNamespace(pad_token_id=0)
    samples = [
        Experience(sequences=torch.zeros(1, 100, dtype=torch.long), total_length=torch.tensor([100.0]))
        for _ in range(15)
    ]
    batches = maker.split_rollout_samples(samples)
    assert [len(batch.sequences) for batch in batches] == [2] * 7 + [1]
    assert sorted(i for batch in batches for i in batch.index) == list(range(15))
