"""Methods by name (`--ada_method`), and one of a file, train the toy on the real stack, with exact books."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from books import PARTIAL
from conftest import Toy, read_jsonl, steps_of, toy_flags, train

from openrlhf_ada.config.presets import METHODS

pytestmark = pytest.mark.e2e

OF_EACH_KIND = (
    *("aero", "dapo", "first-success-8", "greso", "gvm", "hora", "knapsack", "lambda-n1-e2", "maxrl", "pilot-commit"),
    *("pods", "raft-n1-e2", "rated-pos", "spo-n2", "uniform-8", "vip"),
)
"""One for each way to sample, select, weigh and choose. Others differ by numbers; Reinforce-Ada's, GRPO and PPO are in
test_modes.py, test_adaptive_training.py and test_off_equals_host.py."""

PROMPTS = 8


def sizes(name: str) -> dict[str, Any]:
    """A step of 8 prompts in one update. What the method says itself is left to it."""
    flags = METHODS[name].flags
    n = flags["rollout.n_samples_per_prompt"]
    free: dict[str, Any] = {
        "algo__advantage__estimator": None,
        "rollout__n_samples_per_prompt": None,
        "algo__kl__init_coef": None,
    }
    limit = {"ada_refill_limit": 2 * PROMPTS} if "ada.refill_limit" in flags else {}
    if flags.get("ada.candidates", 0) > 4:
        limit["ada_candidates"] = 4
    rows = 32 if n <= 32 else 16
    small = {"rollout__micro_batch_size": PROMPTS, "train__micro_batch_size": PROMPTS, "data__max_samples": rows}
    return free | limit | small | {"rollout__batch_size": PROMPTS, "train__batch_size": PROMPTS * n}


def test_a_file_of_ones_own_trains(toy: Toy, tmp_path: Path) -> None:
    """On the base of a method by name. Rollouts with a coefficient of 0 are left out, and counted."""
    run, method = tmp_path / "run", tmp_path / "mine.yaml"
    method.write_text("summary: mine\nbase: vade\nflags:\n  ada_zeros: skip\n  ada_half_life: 9\n")
    train(toy_flags(toy, run, ada_method=method, **sizes("vade")))
    ada = json.loads((run / "config.json").read_text())["ada"]
    assert (ada["choice"], ada["zeros"], ada["half_life"]) == ("vade", "skip", 9)
    assert json.loads(ada["method"])["name"] == str(method)
    check_method(run, "vade")
    samples, shares = read_jsonl(run / "samples.jsonl"), list[float]()
    for row in steps_of(run):
        kept = [sample for sample in samples if sample["step"] == row["step"] and sample["kept"]]
        zeros = [sample["tokens"] for sample in kept if not sample["coefficient"]]
        assert (row["ada/skipped"], row["ada/skipped_tokens"]) == (len(zeros) / len(kept), sum(zeros))
        shares.append(row["ada/skipped"])
    assert 0 < max(shares) < 1


@pytest.mark.long
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_method_trains_by_its_name(toy: Toy, tmp_path: Path, name: str) -> None:
    train(toy_flags(toy, tmp_path / "run", ada_method=name, **sizes(name)))
    check_method(tmp_path / "run", name)


@pytest.mark.long
@pytest.mark.parametrize("flags", [{}, PARTIAL], ids=["sync", "partial rollouts"])
def test_the_factor_of_a_step_is_measured_in_those_before(toy: Toy, tmp_path: Path, flags: dict[str, Any]) -> None:
    """From the record alone, which has it rounded. In the checkpoint, so a resumed run goes on with it."""
    run = tmp_path / "run"
    more = flags | {"train__num_episodes": 2, "ckpt__save_steps": 4}
    train(toy_flags(toy, run, ada_method="lambda-n1-e2", **sizes("lambda-n1-e2") | more))
    check_factors(run)
    before = steps_of(run)
    for file in (run / "summary.json", *(run / "ckpt" / "_manifests").glob("global_step8.json")):
        file.unlink()
    train(toy_flags(toy, run, ada_method="lambda-n1-e2", **sizes("lambda-n1-e2") | more | {"ckpt__load_enable": True}))
    check_factors(run)
    assert [row["step"] for row in steps_of(run)] == [row["step"] for row in before] == list(range(1, 9))


def check_factors(run: Path) -> None:
    product = square = 0.0
    factors: list[float] = []
    samples = read_jsonl(run / "samples.jsonl")
    for row in steps_of(run):
        factors.append(row["ada/baseline_factor"])
        assert factors[-1] == pytest.approx(min(product / square, 1.5) if square else 1.0, abs=1e-4)
        product, square = 0.8 * product, 0.8 * square
        for sample in (sample for sample in samples if sample["step"] == row["step"]):
            q, reward, norm = sample["predicted"], sample["reward"], sample["score_norm"]
            assert sample["coefficient"] == pytest.approx(reward - factors[-1] * q)
            product, square = product + norm * reward * q, square + norm * q * q
    assert factors[0] == 1.0 and len(set(factors)) > 1 and 0.0 < factors[-1] < 1.5


def check_method(run: Path, name: str) -> None:
    steps, samples = steps_of(run), read_jsonl(run / "samples.jsonl")
    assert steps
    for row in steps:
        drawn = [sample for sample in samples if sample["step"] == row["step"]]
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        assert row["ada/drawn"] - row["ada/aborted"] == len(drawn)
        assert row["ada/kept"] == sum(sample["kept"] for sample in drawn) > 0
        # One rollout of a prompt: a step of 8 may have none that is right, and then its last epoch trains nothing.
        needs_right = name == "raft-n1-e2" or METHODS[name].flags.get("ada.wrong_epochs")
        some_right = not needs_right or any(sample["kept"] and sample["coefficient"] > 0 for sample in drawn)
        assert (row["actor_grad_norm"] > 0) == some_right
