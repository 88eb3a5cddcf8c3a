"""--ada_zeros skip: the weights are those of a run that computes every rollout, and half of them are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Toy, read_jsonl, steps_of, toy_flags, train
from moved_weights import ONE_STEP, check_same_step

from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

RIGHT_ONLY: dict[str, Any] = {
    "ada_mode": "seq",
    "ada_exit": "fixed",
    "ada_max_samples": 4,
    "ada_select": "all",
    "ada_baseline": "none",
    "actor__num_gpus_per_node": 2,
    "rollout__micro_batch_size": 8,
    "train__micro_batch_size": 8,
}


def test_weights_are_those_of_a_run_that_computes_all(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In half precision the order of additions alone moves a step by a twentieth.
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    all_of_them, rest = tmp_path / "all", tmp_path / "rest"
    train(toy_flags(toy, all_of_them, **RIGHT_ONLY, **ONE_STEP))
    train(toy_flags(toy, rest, **RIGHT_ONLY, **ONE_STEP, ada_zeros="skip"))
    coefficients = [sample["coefficient"] for sample in read_jsonl(rest / "samples.jsonl")]
    assert coefficients == [sample["coefficient"] for sample in read_jsonl(all_of_them / "samples.jsonl")]
    assert 0 < sum(map(bool, coefficients)) < len(coefficients)
    (of_all,), (of_rest,) = steps_of(all_of_them), steps_of(rest)
    assert of_rest["actor_grad_norm"] == pytest.approx(of_all["actor_grad_norm"], rel=1e-3)
    assert of_rest["ada/skipped"] == coefficients.count(0.0) / len(coefficients) > 0.25
    samples = read_jsonl(rest / "samples.jsonl")
    assert of_rest["ada/skipped_tokens"] == sum(sample["tokens"] for sample in samples if not sample["coefficient"])
    assert (of_rest["ada/drawn"], of_rest["ada/kept"]) == (of_all["ada/drawn"], of_all["ada/kept"])
    # Of tokens that policy and engine compute in different precision.
    assert 0 < of_rest["ada/logprob_gap_mean"] < 0.1 and of_rest["ada/surprisal"] > 0
    check_same_step(toy.model, all_of_them, rest)
