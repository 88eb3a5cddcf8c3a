"""The real stack and the learner track are one training: replayed in one process, its rollouts give its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import read_jsonl, train

from benchmarks.arena import language_model
from benchmarks.arena.agreement import Conditions, train_flags
from benchmarks.arena.language_model import load_model, rows_of, save_start, vocabulary
from benchmarks.arena.learner import Answers, Learner, PromptBatch, WarmUp, pass_rates
from benchmarks.arena.methods import METHODS
from benchmarks.arena.tasks import END, PAD, TASKS, World, make_world
from openrlhf_ada.cli.demo import TOY, flags_of_any_run, words
from openrlhf_ada.demo.artifacts import write_jsonl
from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PROMPTS, STEPS, SEED = 16, 3, 0
CONDITIONS = Conditions(steps=64, prompts=PROMPTS)

# OpenRLHF deals a step's rollouts out to several updates in an order of its own.
IN_ONE_UPDATE = replace(METHODS["pos"], updates=1)


def test_replayed_rollouts_give_the_weights_of_the_real_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "WARM_UP", WarmUp(300, 128, 5e-3))
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    torch.set_num_threads(1)
    world, start, run = make_world(TASKS["graded"], SEED), tmp_path / "start", tmp_path / "run"
    save_start(world, SEED, start)
    write_jsonl(tmp_path / "train.jsonl", rows_of(world.train)[: PROMPTS * STEPS])
    write_jsonl(tmp_path / "heldout.jsonl", rows_of(world.held_out))
    flags = flags_of_any_run(TOY, start, tmp_path, run) | train_flags(IN_ONE_UPDATE, CONDITIONS)
    once = {"train.num_episodes": 1, "ckpt.save_steps": 1, "ckpt.path": run / "ckpt", "ada_log_texts": PROMPTS}
    train(words(flags | once | {"ada_logprob_steps": 1}))

    model = load_model(start)
    learner = Learner(world, model.state_dict(), CONDITIONS.rate, SEED, model)
    accuracy = [float(pass_rates(model, world.held_out).mean())]
    for step in range(1, STEPS + 1):
        samples = [sample for sample in read_jsonl(run / "samples.jsonl") if sample["step"] == step]
        check_rollouts(samples, learner)
        kept = [sample for sample in samples if sample["kept"]]
        coefficients = [sample["coefficient"] for sample in kept]
        learner.train(answers_of(kept, world), range(len(kept)), coefficients)
        real = load_model(run / "ckpt" / f"global_step{step}_hf")
        # Where a gradient is nearly 0, rounding may turn its sign, which is all that Adam's first steps see.
        apart = torch.cat([(a - b).abs().flatten() for a, b in zip(weights(real), weights(model), strict=True)])
        assert float((apart > 1e-5).double().mean()) < 0.005
        accuracy.append(float(pass_rates(model, world.held_out).mean()))
        assert float(pass_rates(real, world.held_out).mean()) == pytest.approx(accuracy[-1], abs=2e-4)
    assert np.abs(np.diff(accuracy)).min() > 2e-3, "each step moves it by more than that"
    # All that vLLM forbids is an end in the first place, which the policy hardly ever says.
    gaps = [row["ada/logprob_gap_mean"] for row in read_jsonl(run / "metrics.jsonl")]
    assert len(gaps) == STEPS and max(gaps) < 1e-3


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def answers_of(samples: list[dict[str, Any]], world: World) -> Answers:
    """As the learner would have drawn them: the recorded text, and the end token if one was sampled."""
    numbers = {text: number for number, text in enumerate(vocabulary(world.task.num_functions))}
    prompts = PromptBatch.of(world.train, [int(sample["prompt_id"]) for sample in samples])
    tokens = torch.full((len(samples), world.task.max_tokens), PAD)
    for row, sample in enumerate(samples):
        said = [numbers[character] for character in sample["response"]]
        said += [END] * (sample["tokens"] - len(said))
        tokens[row, : len(said)] = torch.tensor(said)
    right = (tokens == prompts.answers).all(dim=1)
    return Answers(prompts, tokens, right, torch.tensor([sample["tokens"] for sample in samples]))


def check_rollouts(samples: list[dict[str, Any]], learner: Learner) -> None:
    """Scores are the learner's, and of each prompt's first wave as many are right as the weights say."""
    answers = answers_of(samples, learner.world)
    assert [float(right) for right in answers.right] == [sample["metric"] for sample in samples]
    first = [sample for sample in samples if sample["index"] < 8]
    rates = pass_rates(learner.model, learner.world.train)[[int(sample["prompt_id"]) for sample in first]]
    error = float(np.sqrt((rates * (1 - rates)).sum()))
    assert sum(sample["metric"] for sample in first) == pytest.approx(rates.sum(), abs=4 * error)
