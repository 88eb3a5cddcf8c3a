"""Does a critic learn the pass rates? The toy with its policy frozen, PPO's critic and the pass-rate critic.

With a policy that does not change, every prompt has one pass rate, and all the rollouts of a run estimate it: 256 or
more a prompt. Each critic's predictions, made before sampling, are compared with that truth at every visit.

    python benchmarks/critic_calibration.py [--quick]   last line: one JSON object; without --quick it also writes
                                                        docs/images/ and benchmarks/results/critic_calibration.*
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from machine import machine
from numpy.typing import NDArray

import openrlhf_ada.reward.arithmetic as reward_file
from openrlhf_ada.demo.toy import build_toy_model, write_toy_data

HERE = Path(__file__).parent
IMAGE = HERE.parent / "docs" / "images" / "critic_calibration.png"
PROMPTS, BATCH, GROUP = 64, 32, 8
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO's critic": {"algo.advantage.estimator": "gae"},
    "critic beside GRPO": {"algo.advantage.estimator": "dr_grpo"},
}


def run(folder: Path, model: Path, episodes: int, changes: dict[str, Any]) -> Path:
    """Train the critic alone (the policy is frozen for longer than the run); returns the run directory."""
    write_toy_data(folder / "data", num_train=PROMPTS, num_heldout=8, seed=0)
    flags: dict[str, Any] = {
        "ada_mode": "est",
        "ada_estimator": "critic",
        "ada_allocation": "uniform",
        "ada_correction": "none",
        "ada_give_up": 0,
        "ada_run_dir": folder / "run",
        "ada_log_texts": 0,
        "actor.model_name_or_path": model,
        "actor.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "critic.freezing_steps": 10**6,
        "critic.adam.lr": 1e-3,
        "critic.lr_scheduler": "constant",
        "vllm.num_engines": 1,
        "vllm.sync_backend": "gloo",
        "ds.attn_implementation": "sdpa",
        "ds.zero_stage": 0,
        "algo.kl.init_coef": 0,
        "data.prompt_dataset": folder / "data" / "train.jsonl",
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": 32,
        "train.num_episodes": episodes,
        "reward.remote_url": reward_file.__file__,
        "rollout.batch_size": BATCH,
        "rollout.n_samples_per_prompt": GROUP,
        "rollout.micro_batch_size": BATCH * GROUP,
        "rollout.max_new_tokens": 4,
        "train.batch_size": BATCH * GROUP // 4,
        "train.micro_batch_size": BATCH * GROUP // 4,
        "ckpt.output_dir": folder / "model",
    } | changes
    argv = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    subprocess.run([sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *argv], check=True)
    return folder / "run"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def true_rates(samples: list[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Share of right answers of each prompt over the whole run, and of how many."""
    outcomes: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        outcomes[sample["prompt_id"]].append(sample["metric"])
    return {row: (float(np.mean(values)), len(values)) for row, values in outcomes.items()}


def measure(run_dir: Path) -> dict[str, Any]:
    """Distance between critic and truth by step, and both at the last visit."""
    samples = read_jsonl(run_dir / "samples.jsonl")
    truth = true_rates(samples)
    values = {(s["step"], s["prompt_id"]): s["critic_value"] for s in samples if s["index"] == 0}
    errors: dict[int, list[float]] = defaultdict(list)
    last: dict[str, float] = {}
    for (step, row), value in values.items():
        errors[step].append((min(max(value, 0.0), 1.0) - truth[row][0]) ** 2)
        last[row] = value
    rates = np.array([rate for rate, _ in truth.values()])
    return {
        "samples_per_prompt": min(count for _, count in truth.values()),
        "squared_error_by_step": {step: float(np.mean(e)) for step, e in errors.items()},
        "squared_error_of_the_mean": float(np.var(rates)),
        "brier_by_step": [row["ada/critic_brier"] for row in read_jsonl(run_dir / "metrics.jsonl")],
        "prior_brier_by_step": [row["ada/prior_brier"] for row in read_jsonl(run_dir / "metrics.jsonl")],
        "irreducible_brier": float(np.mean(rates * (1 - rates))),
        "truth": [truth[row][0] for row in last],
        "value": list(last.values()),
    }


def draw(results: dict[str, dict[str, Any]]) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    for panel, (name, result) in zip(axes, results.items(), strict=False):
        panel.plot([0, 1], [0, 1], "k--", linewidth=1)
        panel.scatter(result["truth"], result["value"], s=18, alpha=0.8)
        panel.set_title(f"{name}: value of the prompt at its last visit", loc="left", fontsize=10)
        panel.set_xlabel(f"pass rate over {result['samples_per_prompt']} samples or more")
        panel.set_ylabel("critic's value")
    for name, result in results.items():
        axes[2].plot(_smooth(np.array(result["brier_by_step"])), label=name)
    first = next(iter(results.values()))
    axes[2].plot(_smooth(np.array(first["prior_brier_by_step"])), color="grey", label="mean pass rate for all")
    axes[2].axhline(first["irreducible_brier"], color="black", linestyle="--", linewidth=1, label="truth known")
    axes[2].set_title("Brier score of predictions", loc="left", fontsize=10)
    axes[2].set_xlabel("training step")
    axes[2].legend(frameon=False, fontsize=8)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    figure.savefig(IMAGE, dpi=110)


def _smooth(values: NDArray[np.float64], window: int = 5) -> NDArray[np.float64]:
    """Running mean."""
    return np.convolve(values, np.ones(window) / window, mode="valid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the steps, and no files")
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"))
    args = parser.parse_args()
    episodes = 10 if args.quick else 40
    model = build_toy_model(args.cache_dir / "toy-model")
    results: dict[str, dict[str, Any]] = {}
    for name, changes in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(run(Path(folder), model, episodes, changes))
    if not args.quick:
        draw(results)
        record = {"machine": machine(), "episodes": episodes, "results": results}
        (HERE / "results" / "critic_calibration.json").write_text(json.dumps(record, indent=2) + "\n")
    summary = {}
    for name, result in results.items():
        steps = sorted(result["squared_error_by_step"])
        late = [result["squared_error_by_step"][step] for step in steps[-4:]]
        summary[name] = {
            "squared_error_late": float(np.mean(late)),
            "squared_error_of_the_mean": result["squared_error_of_the_mean"],
            "brier_late": float(np.mean(result["brier_by_step"][-4:])),
            "prior_brier_late": float(np.mean(result["prior_brier_by_step"][-4:])),
            "irreducible_brier": result["irreducible_brier"],
        }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
