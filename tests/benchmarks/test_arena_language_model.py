"""The chain tasks for a language model: its text, its log-probabilities, and the loss that both tracks train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from openrlhf.models.loss import PolicyLoss

from benchmarks.arena.exact_answer import reward_func
from benchmarks.arena.language_model import (
    END_TEXT,
    ChainLanguageModel,
    load_model,
    new_model,
    prompt_tokens,
    rows_of,
    save_start,
    tokenizer_of,
    vocabulary,
)
from benchmarks.arena.learner import Learner, PromptBatch, log_probs, pass_rates, sample, until_end
from benchmarks.arena.tasks import END, PAD, TASKS, World, make_world
from openrlhf_ada.trainer.training_step import advantage_factors

TASK = TASKS["graded"]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(TASK, 0)


@pytest.fixture
def model() -> ChainLanguageModel:
    torch.manual_seed(0)
    return new_model(TASK.num_functions)


# -- text -------------------------------------------------------------------------------------------------------------


def test_every_token_has_a_text_of_its_own() -> None:
    names = vocabulary(TASK.num_functions)
    assert len(set(names)) == len(names) == 10 + 3 + 9 + 64
    assert (names[7], names[END], names[PAD]) == ("7", "<eos>", "<pad>")
    with pytest.raises(ValueError, match="65 functions, and there are names for 64"):
        vocabulary(65)


def test_tokenizer_gives_the_models_tokens(world: World) -> None:
    tokenizer, rows = tokenizer_of(TASK.num_functions), rows_of(world.train)
    expected = prompt_tokens(PromptBatch.of(world.train))
    for row in range(0, len(rows), 41):
        prompt, label = rows[row]["input"], rows[row]["label"]
        assert tokenizer.encode(prompt) == expected[row].tolist()
        answer = [int(token) for token in world.train.answers[row] if token != PAD]
        assert tokenizer.encode(label + END_TEXT) == answer
        assert (
            tokenizer.decode([*expected[row].tolist(), *answer], skip_special_tokens=False) == prompt + label + "<eos>"
        )


def test_prompt_names_function_length_and_start(world: World) -> None:
    function, length, start = rows_of(world.train)[0]["input"]
    assert vocabulary(TASK.num_functions).index(function) - vocabulary(TASK.num_functions).index("a") == int(
        world.train.function[0]
    )
    assert "¹²³⁴⁵⁶".index(length) + 1 == int(world.train.length[0])
    assert int(start) == int(world.train.start[0])


@pytest.mark.parametrize(
    ("response", "score"), [("317<eos>", 1.0), ("317", 0.0), ("3170<eos>", 0.0), ("0317<eos>", 0.0), ("<eos>", 0.0)]
)
def test_only_the_answer_and_its_end_are_right(response: str, score: float) -> None:
    result = reward_func(["K³7" + response], ["K³7"], ["317"])
    assert result["rewards"].tolist() == result["scores"].tolist() == [score]


# -- probabilities ----------------------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_transformers_one_by_one(world: World, model: ChainLanguageModel) -> None:
    batch = PromptBatch.of(world.train, range(12))
    ours = model.token_log_probs(batch, batch.answers)
    for row in range(12):
        answer = [int(token) for token in batch.answers[row] if token != PAD]
        prompt = prompt_tokens(batch)[row].tolist()
        logits = model.llama(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(dim=1)
        theirs = [float(logits[len(prompt) + i - 1, token].detach()) for i, token in enumerate(answer)]
        assert ours[row, : len(answer)].tolist() == pytest.approx(theirs, abs=1e-5)
        assert ours[row, len(answer) :].eq(0.0).all()


def test_log_probabilities_are_those_of_a_padded_batch(world: World, model: ChainLanguageModel) -> None:
    """As OpenRLHF computes them: padding on the left, a mask, and positions that do not count it."""
    batch = PromptBatch.of(world.train, range(12))
    pad = 4
    tokens = torch.cat([torch.full((12, pad), PAD), prompt_tokens(batch), batch.answers], dim=1)
    mask = torch.cat([torch.zeros(12, pad), torch.ones(12, 3), until_end(batch.answers)], dim=1).long()
    positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
    logits = model.llama(input_ids=tokens, attention_mask=mask, position_ids=positions).logits.log_softmax(dim=2)
    theirs = logits[:, pad + 2 : -1].gather(2, batch.answers.unsqueeze(2)).squeeze(2)
    ours = model.token_log_probs(batch, batch.answers)
    assert torch.allclose(ours, theirs * until_end(batch.answers), atol=1e-5)


def ends_at_once(model: ChainLanguageModel, one: PromptBatch) -> float:
    """Probability that the answer to one prompt is its end alone."""
    tokens = torch.full(one.answers.shape, PAD)
    tokens[:, 0] = END
    return float(log_probs(model, one, tokens).detach().exp())


@pytest.mark.slow
def test_pass_rates_are_those_of_sampling(world: World, model: ChainLanguageModel) -> None:
    """But for answers that end at their first token, which are not sampled."""
    batch = PromptBatch.of(world.train, [0] * 20_000)
    answers = sample(model, batch, torch.Generator().manual_seed(0))
    found, counts = torch.unique(answers.tokens, dim=0, return_counts=True)
    most = found[counts.argmax()]
    one = PromptBatch.of(world.train, [0])
    expected = float(log_probs(model, one, most.unsqueeze(0)).detach().exp()) / (1 - ends_at_once(model, one))
    assert int(counts.max()) / 20_000 == pytest.approx(expected, abs=4 * (expected / 20_000) ** 0.5)


def test_answers_stop_at_their_end(world: World, model: ChainLanguageModel) -> None:
    answers = sample(model, PromptBatch.of(world.train, range(256)), torch.Generator().manual_seed(0))
    for tokens, number in zip(answers.tokens.tolist(), answers.num_tokens.tolist(), strict=True):
        assert number == (tokens.index(END) + 1 if END in tokens else len(tokens))
        assert set(tokens[number:]) <= {PAD}


def test_no_answer_ends_at_its_first_token_as_on_the_real_stack(world: World, model: ChainLanguageModel) -> None:
    one = PromptBatch.of(world.train, [0] * 10_000)
    assert ends_at_once(model, PromptBatch.of(world.train, [0])) > 1 / 1000, "it would be seen"
    assert int(sample(model, one, torch.Generator().manual_seed(0)).num_tokens.min()) > 1


def test_unsolvable_prompts_have_pass_rate_zero(model: ChainLanguageModel) -> None:
    unsolvable = make_world(TASKS["unsolvable"], 0)
    rates = pass_rates(model, unsolvable.train)
    assert (rates[~unsolvable.solvable] == 0.0).all()


# -- training ---------------------------------------------------------------------------------------------------------


def test_gradient_is_that_of_the_real_stacks_loss(world: World, model: ChainLanguageModel) -> None:
    """OpenRLHF's loss with --ada_loss sequence-constant and a length of 1, on a padded batch of 8 answers."""
    batch = PromptBatch.of(world.train, range(8))
    answers = sample(model, batch, torch.Generator().manual_seed(1))
    coefficients = torch.tensor([1.5, -0.5, 0.0, 0.25, -1.0, 0.75, 0.0, -0.25])
    mask = until_end(answers.tokens).float()
    now = model.token_log_probs(batch, answers.tokens)
    totals = {"batch_num_tokens": mask.sum(), "global_batch_size": torch.tensor(8.0)}
    args = SimpleNamespace(ada=SimpleNamespace(loss="sequence-constant", loss_length=1))
    factors = advantage_factors(SimpleNamespace(action_mask=mask), totals, args, by_token=True)
    advantages = coefficients.unsqueeze(1).expand_as(mask) * factors
    loss = PolicyLoss(0.2, 0.28)(now, now.detach(), advantages, action_mask=mask, dp_size=1, **totals)[0]
    theirs = torch.autograd.grad(loss, list(model.parameters()))

    learner = Learner(world, model.state_dict(), 1e-3, 0, model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learner.train(answers, range(8), coefficients.tolist())
    norm = torch.cat([gradient.flatten() for gradient in theirs]).norm()
    for parameter, start, gradient in zip(model.parameters(), before, theirs, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient * min(1.0, 1.0 / float(norm)), atol=1e-6)
        # AdamW's first step: the rate times the gradient over its own size.
        step = 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
        assert torch.allclose(parameter.detach(), start - step, atol=1e-6)


def test_checkpoint_keeps_the_weights_to_the_bit(tmp_path: Path, model: ChainLanguageModel) -> None:
    model.llama.save_pretrained(tmp_path)
    again = load_model(tmp_path).state_dict()
    for name, tensor in model.state_dict().items():
        assert again[name].dtype == torch.float32 and torch.equal(again[name], tensor)


@pytest.mark.long
def test_start_is_as_the_task_says(tmp_path: Path, world: World) -> None:
    save_start(world, 0, tmp_path)
    rates = pass_rates(load_model(tmp_path), world.train)
    assert np.quantile(rates, 0.1) < 0.1 and np.quantile(rates, 0.9) > 0.7
    skilled = (
        world.skills[world.train.function] + (1 - world.skills[world.train.function]) / 10
    ) ** world.train.length
    assert np.corrcoef(rates, skilled)[0, 1] > 0.9
