"""Which rows and columns of a micro-batch the policy computes. That it changes no gradient: contract and e2e tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from run_flags import settings_with

from openrlhf_ada.trainer.skipped_rollouts import (
    as_idle,
    hide,
    log_probs_of_rest,
    rest_of_training,
    shorten,
    show,
)

LENGTHS = (3, 5, 4)
PROMPT = 2


def batch(advantages: tuple[float, ...], images: list[Any] | None = None) -> Any:
    """Three rollouts of prompts of two tokens, padded on the right; tokens are 10 x row + position."""
    longest = max(LENGTHS)
    positions = torch.arange(longest)
    attention = (positions < torch.tensor(LENGTHS).unsqueeze(1)).long()
    actions = attention[:, 1:] * (positions[1:] >= PROMPT)
    return Experience(
        sequences=(10 * torch.arange(3).unsqueeze(1) + positions) * attention,
        attention_mask=attention,
        action_mask=actions,
        action_log_probs=-torch.ones(3, longest - 1),
        advantages=torch.tensor(advantages).unsqueeze(1) * actions,
        rewards=torch.tensor([0.0, 1.0, 2.0]),
        prompts=["a", "b", "c"],
        images=[],
        mm_train_inputs=images or [],
        info={"number": torch.arange(3), "listed": [0, 1, 2]},
    )


def test_rows_with_an_advantage_stay_with_what_belongs_to_them() -> None:
    rest = rest_of_training(batch((-1.0, 0.0, 2.0)))
    assert rest.sequences.tolist() == [[0, 1, 2, 0], [20, 21, 22, 23]], "without the column of padding"
    assert rest.action_mask.tolist() == [[0, 1, 0], [0, 1, 1]]
    assert rest.advantages.tolist() == [[0, -1, 0], [0, 2, 2]]
    assert rest.rewards.tolist() == [0.0, 2.0] and rest.prompts == ["a", "c"]
    assert rest.info["number"].tolist() == rest.info["listed"] == [0, 2]


def test_a_batch_without_zeros_stays_as_it_is() -> None:
    whole = batch((-1.0, 1.0, 2.0))
    assert rest_of_training(whole) is whole


def test_of_a_batch_of_zeros_one_action_is_computed() -> None:
    """All processes take part in every pass, whatever they have to compute."""
    rest = rest_of_training(batch((0.0, 0.0, 0.0)))
    assert rest.sequences.tolist() == [[1, 2]]
    assert rest.attention_mask.tolist() == [[1, 1]]
    assert rest.action_mask.tolist() == [[1]] and rest.advantages.tolist() == [[0]]
    assert rest.action_log_probs.shape == (1, 1)


def test_what_stood_in_for_a_batch_of_zeros_is_in_no_figure() -> None:
    metrics, weights = {"ppo_kl": torch.tensor(0.7), "actor_lr": 0.1}, {"ppo_kl": "token", "actor_lr": None}
    status = as_idle({"metrics": metrics, "weights": weights, "num_samples": 1.0, "num_action_tokens": 1.0})
    assert status["metrics"] == {"ppo_kl": 0.0, "actor_lr": 0.1}
    assert 0 < status["num_samples"] == status["num_action_tokens"] < 1e-5


def test_an_image_keeps_its_place_in_the_tokens() -> None:
    rest = rest_of_training(batch((0.0, 0.0, 0.0), images=[{"pixels": 1}, {"pixels": 2}, {"pixels": 3}]))
    assert rest.sequences.shape == (1, 5) and rest.mm_train_inputs == [{"pixels": 1}]


def singles() -> list[Any]:
    """The same rollouts before they are put together."""
    whole = batch((0.0, 0.0, 0.0))
    return [
        Experience(
            sequences=whole.sequences[i : i + 1, :length],
            attention_mask=whole.attention_mask[i : i + 1, :length],
            total_length=torch.tensor([float(length)]),
        )
        for i, length in enumerate(LENGTHS)
    ]


def test_hidden_rollouts_are_shown_again_and_keep_their_lengths() -> None:
    """OpenRLHF deals rollouts out by their lengths."""
    samples = singles()
    hide(samples, [0.0, 1.0, 0.0])
    assert [int(sample.attention_mask.sum()) for sample in samples] == [0, 5, 0]
    assert [float(sample.total_length) for sample in samples] == list(LENGTHS)
    together = batch((0.0, 0.0, 0.0))
    expected = together.attention_mask.clone()
    together.attention_mask[[0, 2]] = 0
    show(together, LENGTHS)
    assert torch.equal(together.attention_mask, expected)


def test_micro_batches_by_tokens_count_two_for_a_rollout_that_is_skipped() -> None:
    items = [
        Experience(
            advantages=torch.tensor([0.0, value]),
            action_mask=torch.tensor([0, 1]),
            total_length=torch.tensor(9.0),
        )
        for value in (0.0, -1.0)
    ]
    shorten(items)
    assert [float(item.total_length) for item in items] == [2, 9]


def test_mode_off_skips_nothing() -> None:
    """There OpenRLHF's own advantages are trained, and its other losses."""
    skipping = {
        (mode, zeros): settings_with(mode=mode, zeros=zeros).skips_zeros
        for mode in ("off", "seq", "est")
        for zeros in ("skip", "compute")
    }
    assert [case for case, skips in skipping.items() if skips] == [("seq", "skip"), ("est", "skip")]


def test_what_is_computed_in_vain_has_an_action_and_no_ratio() -> None:
    """The first rollout has no token. What the policy has not computed is 0, and the engine may say anything."""
    whole = batch((0.0, 0.0, 0.0))
    whole.action_mask[0] = 0
    whole.rollout_log_probs = torch.full((3, 4), -300.0)
    rest = rest_of_training(whole)
    assert rest.sequences.tolist() == [[11, 12]] and rest.action_mask.tolist() == [[1]]
    assert rest.action_log_probs.tolist() == rest.rollout_log_probs.tolist() == [[0.0]]
    whole.action_mask[:] = 0
    assert rest_of_training(whole) is whole


@pytest.mark.parametrize("images", [[], ["x", "y", "z"]])
@pytest.mark.parametrize("hidden", [(), (1,), (0, 2), (0, 1, 2)])
def test_log_probs_are_those_of_the_rows_that_are_shown(hidden: tuple[int, ...], images: list[str]) -> None:
    whole, seen = batch((0.0, 0.0, 0.0)), []
    whole.attention_mask[list(hidden)] = 0

    def forward(sequences: Any, action_mask: Any, attention_mask: Any, images: list[str]) -> Any:
        assert sequences.shape == attention_mask.shape and attention_mask.any(dim=1).all()
        seen.append((len(sequences), images))
        # Of each action the number of its token.
        return -sequences[:, 1:].float()[:, -action_mask.shape[1] :]

    shown = [row for row in range(3) if row not in hidden]
    values = log_probs_of_rest(forward, whole.sequences, whole.action_mask, whole.attention_mask, images)
    assert values.shape == whole.action_mask.shape
    for row in range(3):
        expected = -whole.sequences[row, 1:].float() if row in shown else torch.zeros(4)
        assert torch.equal(values[row], expected), row
    assert seen == [(max(len(shown), 1), [images[row] for row in shown or [0]] if images else [])]
