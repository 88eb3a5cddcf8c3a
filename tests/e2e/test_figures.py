"""Every figure that a run logs, computed once more from samples.jsonl and the first model, with plain torch.

The training itself is repeated here, in one process and without micro-batches: losses, gradients, Adam, schedule. So
the exported model is compared, too.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Toy, read_jsonl, steps_of, toy_flags, train
from replayed_training import Replay, Row
from safetensors.torch import load_file

pytestmark = [pytest.mark.e2e]

N, PROMPTS = 4, 16

REWARD = """
import json
from pathlib import Path
from openrlhf_ada.reward import arithmetic

def reward_func(queries, prompts, labels, **kwargs):
    found = arithmetic.reward_func(queries, prompts, labels)
    answers = [query[len(prompt):] for query, prompt in zip(queries, prompts)]
    with Path(__file__).with_name("graded.jsonl").open("a") as file:
        for prompt, answer, score in zip(prompts, answers, found["scores"].tolist()):
            file.write(json.dumps([prompt, answer, score]) + "\\n")
    found["rewards"] = found["rewards"] - 0.25 * found["scores"].new_tensor([answer[:1] == "1" for answer in answers])
    return found | {"extra_logs": {"ones": found["scores"].new_tensor([answer.count("1") for answer in answers])}}
"""
"""Rewards are not scores; what is graded is written down, for the evaluation's answers are nowhere else."""

FLAGS: dict[str, Any] = {
    "ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16, "ada_log_texts": PROMPTS,
    "rollout__max_new_tokens": 3, "data__max_len": 9,
    "actor__adam__lr": 1e-3, "actor__adam__eps": 1e-5, "actor__eps_clip_low_high": "0.02 0.03",
    "actor__entropy_coef": 0.01, "algo__kl__init_coef": 0.05, "algo__kl__use_loss": True,
    "train__max_epochs": 2, "train__batch_size": 32, "train__micro_batch_size": 8, "rollout__micro_batch_size": 16,
}  # fmt: skip


def flags_of(toy: Toy, run: Path, **changes: Any) -> list[str]:
    reward = run.parent / "reward.py"
    reward.write_text(REWARD)
    flags = FLAGS | {"reward__remote_url": reward} | changes
    argv = toy_flags(toy, run, **flags)
    return [part for value in argv for part in (value.split() if " " in value else [value])]


EVALUATION = {"eval__n_samples_per_prompt": 4, "eval__temperature": 1.0, "ada_eval_ends": True}
PPO = {"algo__advantage__estimator": "gae", "critic__adam__lr": 0, "critic__max_norm": 1e9, "ckpt__save_steps": 1}
IN_REWARD = {"algo__kl__use_loss": None, "actor__entropy_coef": None}
NO_KL = {"algo__kl__init_coef": 0, "algo__kl__use_loss": None}
TWO = {f"{model}__num_gpus_per_node": 2 for model in ("actor", "ref", "critic")} | {"train__micro_batch_size": 4}

CASES: dict[str, dict[str, Any]] = {"seq": NO_KL}
LONGER: dict[str, dict[str, Any]] = {
    "seq, KL loss": {},
    "seq, two processes, KL in reward": TWO | IN_REWARD | {
        "algo__advantage__estimator": "reinforce_baseline", "algo__advantage__is_correction_level": "seq",
    },
    "seq, GSPO, async": {
        "actor__policy_loss_type": "gspo", "actor__dual_clip": 1.5, "train__async_enable": True,
        "algo__advantage__estimator": "group_norm",
    },
    "seq, PPO, two processes": TWO | PPO | IN_REWARD | {"algo__advantage__lambd": 0.9},
    "est": NO_KL | {
        "ada_mode": "est", "ada_wave": None, "ada_max_samples": None, "ada_budget": 4, "ada_zeros": "skip",
        "ada_loss": "sequence-constant", "ada_wrong_epochs": 1, "actor__entropy_coef": None, "train__num_episodes": 2,
    },
}  # fmt: skip


def near(value: Any) -> Any:
    return pytest.approx(value, rel=2e-3, abs=2e-6)


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(list(values))


def of_first_samples(drawn: list[list[Row]]) -> dict[str, Any]:
    """Every prompt counts the same, however many of the first n it has."""
    firsts = [pool[:N] for pool in drawn]
    of_row = {
        "rollout/reward_mean": lambda row: row["reward"],
        "rollout/response_length_mean": lambda row: row["tokens"],
        "rollout/truncated_rate": lambda row: len(row["response"]) == row["tokens"],
        "ada/first_wave_metric_mean": lambda row: row["metric"],
    }
    rewards = [row["reward"] for pool in firsts for row in pool]
    means = {name: mean(mean(map(of, pool)) for pool in firsts) for name, of in of_row.items()}
    return means | {"rollout/reward_std": statistics.stdev(rewards), "rollout/num_samples": len(rewards)}


def is_spread(pool: list[Row]) -> bool:
    return len({row["metric"] for row in pool}) > 1


def bin_of(pool: list[Row]) -> str:
    rate = mean(row["positive"] for row in pool)
    return f"{rate:g}" if rate in (0, 1) else f"{int(5 * rate) / 5:g}-{(int(5 * rate) + 1) / 5:g}"


def weight_of(pool: list[Row], in_ppo: bool) -> float:
    p = pool[0].get("predicted", (sum(row["positive"] for row in pool) + 0.5) / (len(pool) + 1))
    p, total = min(max(p, 0.001), 0.999), 0.0
    for row in (row for row in pool if row["kept"]):
        advantage = (row["positive"] - p) if in_ppo else 1
        total += row["coefficient"] * advantage / (p if row["positive"] else p - 1)
    return total / N


def of_pools(drawn: list[list[Row]], version: int, in_ppo: bool) -> dict[str, Any]:
    everything = [row for pool in drawn for row in pool]
    kept, unused = ([row for row in everything if row["kept"] == is_kept] for is_kept in (True, False))
    # With a baseline from before sampling, prompts of one outcome have coefficients, too.
    by_outcome = in_ppo or "predicted" in drawn[0][0]
    bins = {name: [pool for pool in drawn if bin_of(pool) == name] for name in map(bin_of, drawn)}
    return {
        "ada/prompts": len(drawn), "ada/kept": len(kept), "ada/unused": len(unused),
        "ada/kept_tokens": sum(row["tokens"] for row in kept),
        "ada/unused_tokens": sum(row["tokens"] for row in unused),
        "ada/metric_mean": mean(row["metric"] for row in everything),
        "ada/reward_mean": mean(row["reward"] for row in everything),
        "ada/signal_share": mean(
            is_spread(pool) if by_outcome else any(row["coefficient"] for row in pool) for pool in drawn
        ),
        "ada/resolved_share": mean(map(is_spread, drawn)),
        "ada/signal_share_uniform": mean(is_spread(pool[:N]) for pool in drawn),
        "ada/coefficient_max": max(abs(row["coefficient"]) for row in kept),
        "ada/staleness_mean": mean(version - 1 - row["version"] for row in everything),
        "ada/draws_histogram": dict(Counter(str(len(pool)) for pool in drawn)),
        "ada/allocation_by_pass_rate": {
            name: {"prompts": len(found), "rollouts": sum(map(len, found))} for name, found in bins.items()
        },
        "ada/effective_weight": {
            name: near(mean(weight_of(pool, in_ppo) for pool in found)) for name, found in bins.items()
        },
        **dict.fromkeys(("ada/replaced", "ada/failed", "ada/lost", "ada/no_score"), 0),
    }  # fmt: skip


def check_evaluation(row: Row, graded: list[list[Any]], labels: dict[str, str]) -> None:
    """`graded`: prompt, answer and score of four answers to each prompt; `labels`: its datasource."""
    by_prompt = {prompt: [score for of, _, score in graded if of == prompt] for prompt in labels}
    assert {len(scores) for scores in by_prompt.values()} == {4} and len(graded) == 4 * len(labels)
    right = {prompt: mean(scores) for prompt, scores in by_prompt.items()}
    by_source = {source: [right[p] for p in labels if labels[p] == source] for source in labels.values()}
    spread = statistics.stdev(right.values()) / math.sqrt(len(right))
    expected = {
        "eval/accuracy": mean(right.values()), "eval/score": mean(right.values()), "eval/ci95": 2.0395 * spread,
        "eval/pass@4": mean(share > 0 for share in right.values()),
        "eval/all_equal@4": mean(share in (0, 1) for share in right.values()),
        "eval/truncated": mean(not answer.endswith("<eos>") for _, answer, _ in graded),
        "eval/tokens": mean(len(answer.replace("<eos>", "E")) for _, answer, _ in graded),
        "eval/no_score": 0, "eval/num_samples": len(graded), "eval/num_prompts": len(right),
    }  # fmt: skip
    expected |= {f"eval/accuracy/{source}": mean(shares) for source, shares in by_source.items()}
    assert {name: row[name] for name in row.keys() - {"step"}} == near(expected)


SECONDS = ("timing/", "ada/step_s", "ada/wall_clock_s")
OF_ABORTED = ("ada/drawn", "ada/drawn_tokens", "ada/aborted", "ada/aborted_tokens", "ada/rollouts_per_prompt")
OF_ENGINES = ("ada/logprob_gap_mean", "ada/logprob_gap_max")
"""Near 0: policy and engines compute the same."""
OF_EARLIER_STEPS = ("ada/prior_brier", "ada/total_drawn", "ada/total_drawn_tokens")
OTHERS = {"step", *OF_ABORTED, *OF_ENGINES, *OF_EARLIER_STEPS}


def check_step(row: Row, replay: Replay) -> None:
    version, in_ppo = row["step"], replay.args.algo.advantage.estimator == "gae"
    drawn = [list(group) for _, group in groupby(replay.drawn(version), lambda sample: sample["key"])]
    everything = replay.batch([sample for pool in drawn for sample in pool])
    check_engines(everything, replay, version)
    expected = of_first_samples(drawn) | of_pools(drawn, version, in_ppo) | replay.step(version)
    # Nothing is so far away that it is filtered, and nobody is given up.
    expected |= {name: 0.0 for name in ("critic_lr", "is_filter_ratio", "ada/given_up") if name in row}
    if replay.args.ada.zeros == "skip":
        zeros = [sample["tokens"] for sample in everything.rows if sample["coefficient"] == 0]
        expected |= {"ada/skipped": len(zeros) / row["ada/kept"], "ada/skipped_tokens": sum(zeros)}
    if "predicted" in drawn[0][0]:
        distances = ([(pool[0]["predicted"] - sample["positive"]) ** 2 for sample in pool] for pool in drawn)
        expected["ada/estimator_brier"] = mean(map(mean, distances))
    compared = {name: row[name] for name in sorted(row.keys() - OTHERS) if not name.startswith(SECONDS)}
    assert compared == {
        name: value if isinstance(value, dict) else near(value) for name, value in sorted(expected.items())
    }
    assert all(row.get(name, 0.0) < 1e-4 for name in OF_ENGINES)
    for unit in ("", "_tokens"):
        parts = sum(row[f"ada/{name}{unit}"] for name in ("kept", "unused", "aborted"))
        assert row[f"ada/drawn{unit}"] == parts and row[f"ada/aborted{unit}"] >= 0
    assert row["ada/rollouts_per_prompt"] == row["ada/drawn"] / PROMPTS


def check_engines(everything: Any, replay: Replay, version: int) -> None:
    """What engines said of the tokens that they sampled is the policy's, if no update came between."""
    with torch.no_grad():
        *_, said = replay.log_probs(replay.model, everything)
    norms = ((1 - said.exp()).square() * everything.mask).sum(1).tolist()
    for sample, norm in zip(everything.rows, norms, strict=True):
        if sample["version"] == version - 1:
            assert sample.get("score_norm", norm) == pytest.approx(norm, abs=1e-4)


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.long) for name in LONGER)])
def test_figures(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPENRLHF_ADA_CPU_DTYPE", "float32")
    run = tmp_path / "run"
    train(flags_of(toy, run, eval__dataset=toy.heldout, **EVALUATION, **(CASES | LONGER)[name]))
    check_run(toy, run)


def check_run(toy: Toy, run: Path) -> None:
    steps = steps_of(run)
    replay = Replay(run, len(steps))
    for row in steps:
        check_step(row, replay)
        for name in ("drawn", "drawn_tokens"):
            assert row[f"ada/total_{name}"] == sum(r[f"ada/{name}"] for r in steps if r["step"] <= row["step"])
    exported = load_file(str(run / "model" / "model.safetensors"))
    assert all(torch.allclose(exported[name], value, atol=1e-5) for name, value in replay.model.state_dict().items())
    labels = {row["input"]: row["datasource"] for row in read_jsonl(toy.heldout)}
    graded = [row for row in read_jsonl(run.parent / "graded.jsonl") if row[0] in labels]
    first, last = (row for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row)
    for row, answers in ((first, graded[: 4 * len(labels)]), (last, graded[-4 * len(labels) :])):
        check_evaluation(row, answers, labels)
