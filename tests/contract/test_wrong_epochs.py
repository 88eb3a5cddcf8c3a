"""--ada_wrong_epochs in OpenRLHF's trainer: weights after two epochs are those of a loop written down here.

Two processes with DeepSpeed, in single precision: see tests/support/wrong_epochs_training.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from dynamic_training import CONSTANT, LENGTHS, PROMPT, coefficient, samples, save_model
from shared_results import printed_once
from transformers import AutoModelForCausalLM
from wrong_epochs_training import CASES, ONCE, RIGHT

pytestmark = pytest.mark.slow

LOW, HIGH = 0.8, 1.2
"""Of OpenRLHF's clipped ratio."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """By case, what each of the two processes did."""
    return printed_once(tmp_path_factory, "wrong epochs", "wrong_epochs_training.py")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


def moved_by_hand(folder: Path, divisor: float, wrong_epochs: int) -> list[float]:
    """In double precision, rollout by rollout; the first 50 numbers of each weight."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e6, betas=(0.9, 0.95), eps=1e6)
    rollouts = samples(partial(coefficient, zeros=True, right=RIGHT))

    def log_probs(tokens: torch.Tensor) -> torch.Tensor:
        """Of the answer."""
        of_tokens = model(tokens).logits[0, :-1].log_softmax(dim=-1)
        return of_tokens.gather(1, tokens[0, 1:].unsqueeze(1)).flatten()[PROMPT - 1 :]

    old = [log_probs(rollout.sequences).detach() for rollout in rollouts]
    for epoch in range(ONCE["epochs"]):
        gain = torch.zeros((), dtype=torch.float64)
        for rollout, first in zip(rollouts, old, strict=True):
            value = rollout.tag.coefficient
            if value < 0 and wrong_epochs and epoch >= wrong_epochs:
                continue
            ratio = (log_probs(rollout.sequences) - first).exp()
            gain = gain + torch.minimum(ratio * value, ratio.clamp(LOW, HIGH) * value).sum()
        optimizer.zero_grad()
        (-gain / divisor).backward()
        optimizer.step()
    after = model.parameters()
    return [float(v) for old, new in zip(before, after, strict=True) for v in (new.detach() - old).flatten()[:50]]


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_a_plain_loop(
    found: dict[str, list[dict[str, Any]]], model_folder: Path, name: str
) -> None:
    """However rollouts are divided among micro-batches and processes, skipped or computed, averaged or sharded."""
    case = CASES[name]
    divisor = len(LENGTHS) * CONSTANT if "ada_loss" in case else sum(LENGTHS)
    expected = moved_by_hand(model_folder, divisor, case["wrong_epochs"])
    for of_process in found[name]:
        assert of_process["moved"] == pytest.approx(expected, rel=0, abs=1e-6)
        assert of_process["optimizer_steps"] == ONCE["epochs"]


def test_cases_differ_where_wrong_answers_are_trained_again(found: dict[str, list[dict[str, Any]]]) -> None:
    """By a thousand times as much as cases may that are to be the same."""
    once, always = (torch.tensor(found[name][0]["moved"]) for name in ("micro 4, skipped", "in all epochs"))
    assert float((once - always).abs().max()) > 1e-3


def test_one_process_has_nothing_to_train_in_the_end(found: dict[str, list[dict[str, Any]]]) -> None:
    """While the other has: neither waits for ever."""
    first, second = ({i for batch in p["seen"] for i in batch["ids"]} for p in found["micro 1, skipped"])
    assert first >= set(RIGHT) and not second & set(RIGHT)
