"""Mode off: OpenRLHF's generator, which also counts. What it filtered out and what it sampled ahead are accounted for.

The engines answer at once; filter, buffer and loop are OpenRLHF's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import asdict, astuple
from types import SimpleNamespace
from typing import Any

import pytest
from engines import Engine, Reward, answer_at_once
from openrlhf.datasets import PromptDataset
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_ada.core.types import Ledger
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.records import RolloutBatch
from openrlhf_ada.rollout.responses import sampling_params

N = 2
GENERATE = {"max_len": 32, "max_new_tokens": 8}


@pytest.fixture(autouse=True)
def engines_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_at_once(monkeypatch)


def make_loader(args: SimpleNamespace, sources: list[str]) -> StatefulDataLoader:
    rows = [{"input": str(i), "label": "", "datasource": source} for i, source in enumerate(sources)]
    dataset = PromptDataset(rows, None, SimpleNamespace(args=args, is_rank_0=lambda: False))
    return StatefulDataLoader(dataset, batch_size=1, collate_fn=dataset.collate_fn)


def make_generator(
    rows: int,
    engine: Engine,
    *,
    batch: int = 2,
    ahead: int | None = None,
    filtered: bool = False,
    held_out: tuple[str, ...] = (),
) -> RecordedGenerator:
    args = SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path="model"),
        rollout=SimpleNamespace(batch_size=batch, n_samples_per_prompt=N, vllm_generate_batch_size=ahead),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(is_correction_level="off"),
            dynamic_filtering_enable=filtered,
            dynamic_filtering_range=(0, 1),
        ),
        vllm=SimpleNamespace(enable_sleep=False),
        train=SimpleNamespace(seed=7),
        ada=SimpleNamespace(sampling_args='{"stop": ["!"]}'),
        data=SimpleNamespace(input_key="input", label_key="label", disable_fast_tokenizer=False),
    )
    loaders = make_loader(args, ["sums"] * rows), make_loader(args, list(held_out))
    return RecordedGenerator(SamplesGenerator(SimpleNamespace(args=args), *loaders, None, [engine]))


def mixed(numbers: Collection[int]) -> Reward:
    """The first answer of these prompts is right; all others are wrong."""
    return lambda number, k: float(number in numbers and k == 0)


def batch_of(generator: RecordedGenerator) -> RolloutBatch:
    return generator.generate_samples(**GENERATE)[0]


def ledger_of(drawn: int, kept: int, drawn_tokens: int, kept_tokens: int) -> Ledger:
    unused, tokens = drawn - kept, drawn_tokens - kept_tokens
    return Ledger(drawn, kept, unused, 0, drawn_tokens, kept_tokens, tokens, 0)


def test_plain_batch_is_kept_whole() -> None:
    """Two prompts with answers of one and two tokens each."""
    generator = make_generator(4, Engine(mixed(())))
    batch, pass_rate, consumed, exhausted = generator.generate_samples(**GENERATE)
    assert (len(batch), pass_rate, consumed, exhausted) == (4, None, 2, False)
    assert batch.ledger == ledger_of(drawn=4, kept=4, drawn_tokens=6, kept_tokens=6)
    assert (batch.record, batch.checkpoint) == (None, {}), "nothing adaptive happened"


@pytest.mark.parametrize(("right", "filtered", "accuracy"), [((0, 1), False, 0.5), ((0, 2), True, 1 / 3)])
def test_accuracy_is_of_all_that_was_sampled(right: tuple[int, ...], filtered: bool, accuracy: float) -> None:
    """Two samples each, of which one is right; the filter rejects prompt 1, and takes prompt 2."""
    assert batch_of(make_generator(4, Engine(mixed(right)), filtered=filtered)).accuracy == pytest.approx(accuracy)


def test_scores_outside_0_to_1_are_no_accuracy() -> None:
    assert batch_of(make_generator(4, Engine(lambda number, k: 2.0 * k))).accuracy is None


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_rewards_that_are_not_finite_are_an_error(reward: float) -> None:
    with pytest.raises(ValueError, match=rf"the prompt '1' .* has reward \[{reward}\]"):
        batch_of(make_generator(4, Engine(lambda number, k: reward if number else 1.0)))


def test_filtered_samples_count_as_drawn() -> None:
    """Prompt 1 is all wrong and replaced by prompt 2; in the next batch nothing is rejected."""
    generator = make_generator(5, Engine(mixed((0, 2, 3, 4))), filtered=True)
    assert batch_of(generator).ledger == ledger_of(drawn=6, kept=4, drawn_tokens=9, kept_tokens=6)
    assert batch_of(generator).ledger == ledger_of(drawn=4, kept=4, drawn_tokens=6, kept_tokens=6)


def test_samples_ahead_count_in_the_step_that_trains_them() -> None:
    """One call for four prompts, two steps of two."""
    engine = Engine(mixed(()))
    generator = make_generator(8, engine, ahead=4)
    for step, drawn_by_then in enumerate((8, 8, 16, 16)):
        assert batch_of(generator).ledger == ledger_of(drawn=4, kept=4, drawn_tokens=6, kept_tokens=6), step
        assert engine.drawn == drawn_by_then


def test_rejects_ahead_count_where_they_were_drawn() -> None:
    """Prompt 0 is rejected and replaced by prompt 4: ten rollouts for four prompts, two of them in the first step."""
    generator = make_generator(8, Engine(mixed(range(1, 8))), ahead=4, filtered=True)
    assert batch_of(generator).ledger == ledger_of(drawn=6, kept=4, drawn_tokens=9, kept_tokens=6)
    assert batch_of(generator).ledger == ledger_of(drawn=4, kept=4, drawn_tokens=6, kept_tokens=6)


def whole_run(generator: RecordedGenerator, episodes: int) -> list[RolloutBatch]:
    """OpenRLHF's loop (PPOTrainer.fit), its empty batches included."""
    batches: list[RolloutBatch] = []
    for _ in range(episodes):
        exhausted = False
        while not exhausted:
            batch, *_, exhausted = generator.generate_samples(**GENERATE)
            batches.append(batch)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [None, 2, 3, 4, 7])
@pytest.mark.parametrize("filtered", [False, True])
def test_every_sample_of_a_run_is_counted_once(filtered: bool, ahead: int | None) -> None:
    for rows, episodes in itertools.product(range(8), (1, 2)):
        for right in ((), range(8), range(0, 8, 2), range(2, 8, 3)):
            engine = Engine(mixed(right))
            batches = whole_run(make_generator(rows, engine, ahead=ahead, filtered=filtered), episodes)
            total = Ledger(*map(sum, zip(*(astuple(batch.ledger) for batch in batches), strict=True)))
            for batch in batches:
                assert batch.ledger.kept == len(batch)
                assert min(asdict(batch.ledger).values()) >= 0
            total.check(drawn=engine.drawn)
            assert total.drawn_tokens == engine.drawn // N * (1 + 2)


# -- evaluation ---------------------------------------------------------------------------------------------------


def evaluate(generator: RecordedGenerator, per_prompt: int) -> None:
    generator.generate_eval_samples(**GENERATE, n_samples_per_prompt=per_prompt)


def test_scores_are_remembered_by_datasource_and_prompt() -> None:
    generator = make_generator(2, Engine(mixed((1, 2))), held_out=("sums", "products", "sums"))
    evaluate(generator, per_prompt=3)
    assert generator.held_out.scores() == {"sums": [[0.0] * 3, [1.0, 0.0, 0.0]], "products": [[1.0, 0.0, 0.0]]}
    assert [list(prompt.tokens) for prompt in generator.held_out.by_source["products"]] == [[1, 2, 3]]
    evaluate(generator, per_prompt=1)
    assert generator.held_out.scores() == {"sums": [[0.0], [1.0]], "products": [[1.0]]}, "of the last evaluation alone"


def test_a_prompt_of_two_sources_counts_in_both() -> None:
    generator = make_generator(2, Engine(mixed((0,))), held_out=("sums", "products"))
    generator.eval_dataloader.dataset.prompts = ["0", "0"]
    evaluate(generator, per_prompt=1)
    assert generator.held_out.scores() == {"sums": [[1.0]], "products": [[1.0]]}


def test_an_evaluation_has_the_runs_seed_and_mode_offs_sampling_has_none() -> None:
    engine = Engine(mixed(()))
    generator = make_generator(2, engine, held_out=("sums",))
    evaluate(generator, per_prompt=1)
    batch_of(generator)
    given = [call["sampling_params"] for call in engine.calls]
    assert [params.seed for params in given] == [7, None, None]
    assert [params.stop for params in given] == [["!"]] * 3, "--ada_sampling_args is for both"
    assert sampling_params(generator.args, GENERATE, logprobs=False) == given[1], "an adaptive mode's"


def test_answers_without_score_are_counted_apart() -> None:
    """R2: of prompt 0 one answer has no score, of prompt 1 none has one."""
    grades: Reward = lambda number, k: None if number == 1 or (number, k) == (0, 1) else 1.0  # noqa: E731
    generator = make_generator(2, Engine(grades), held_out=("sums",) * 3)
    samples = generator.generate_eval_samples(**GENERATE, n_samples_per_prompt=2)
    assert generator.held_out.scores() == {"sums": [[1.0], [1.0, 1.0]]}
    assert generator.held_out.no_score == 3
    assert [sample.prompts[0] for sample in samples] == ["2", "2"], "OpenRLHF takes means of whole groups"


@pytest.mark.parametrize("ahead", [None, 4])
def test_evaluation_is_in_no_training_steps_ledger(ahead: int | None) -> None:
    generator = make_generator(8, Engine(mixed(range(8))), ahead=ahead, filtered=True, held_out=("sums", "sums"))
    for _ in range(4):
        evaluate(generator, per_prompt=5)
        assert batch_of(generator).ledger == ledger_of(drawn=4, kept=4, drawn_tokens=6, kept_tokens=6)


def test_tokenizer_goes_to_the_engines_by_name() -> None:
    engine = Engine(mixed(()))
    batch_of(make_generator(2, engine))
    tokenizer: Any = engine.calls[0]["hf_tokenizer"]
    assert tokenizer.__reduce__()[1] == ("model", True)
