"""The toy model and its task: disjoint data, a tokenizer that gives back what it got, pass rates neither 0 nor 1."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.demo import toy


def read(path: str | Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def quick_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "_PHASES", ((3, 8, 1e-3, True),))


def test_data_is_right_distinct_disjoint_and_repeatable(tmp_path: Path) -> None:
    paths = toy.write_toy_data(tmp_path / "a", num_train=256, num_heldout=90, seed=0)
    rows = {name: read(paths[name]) for name in ("train", "heldout")}
    assert (len(rows["train"]), len(rows["heldout"])) == (256, 90)
    operands = {n: [sorted(map(int, row["input"][:-1].split("+"))) for row in rows[n]] for n in rows}
    assert all(sum(map(int, r["input"][:-1].split("+"))) == int(r["label"]) for n in rows for r in rows[n])
    assert len({row["id"] for n in rows for row in rows[n]}) == 256 + 90
    assert not {tuple(pair) for pair in operands["train"]} & {tuple(pair) for pair in operands["heldout"]}
    assert {row["datasource"] for row in rows["heldout"]} == {"toy-easy", "toy-medium", "toy-hard"}
    again = toy.write_toy_data(tmp_path / "b", num_train=256, num_heldout=90, seed=0)
    assert all(Path(paths[n]).read_bytes() == Path(again[n]).read_bytes() for n in rows)


@pytest.mark.parametrize("numbers", [{"num_train": 0}, {"num_heldout": 500}])
def test_rows_that_the_task_does_not_have_are_refused(numbers: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_(train|heldout) is (0|500), expected 1 to"):
        toy.write_toy_data(tmp_path, **{"num_train": 10, "num_heldout": 10, "seed": 0, **numbers})


def test_larger_sums_are_shown_wrong_more_often() -> None:
    shares = [toy.expected_pass_rate(total) for total in range(2 * toy.LARGEST + 1)]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == pytest.approx((0.96, 0.16), abs=0.01)


@pytest.mark.e2e
def test_saved_model_depends_on_the_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quick_warm_start(monkeypatch)
    state = torch.random.get_rng_state()
    out = toy.build_toy_model(tmp_path / "one", seed=3)
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers are left alone"
    weights = (out / "model.safetensors").read_bytes()
    assert (toy.build_toy_model(tmp_path / "two", seed=3) / "model.safetensors").read_bytes() == weights
    assert (toy.build_toy_model(tmp_path / "three", seed=4) / "model.safetensors").read_bytes() != weights

    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert tokenizer.is_fast
    assert len(tokenizer) == model.config.vocab_size == 64
    assert (model.dtype, model.config.head_dim) == (torch.bfloat16, 32)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id == 0
    for text in ("7+15=", "7+15=22<eos>", f"{toy.ALPHABET}<bos>"):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert ids == tokenizer(text).input_ids, "nothing is added"
    assert len(tokenizer("7+15=").input_ids) == 5


@pytest.mark.long
def test_pass_rates_spread_after_short_warm_start(tmp_path: Path) -> None:
    out = toy.build_toy_model(tmp_path / "model")
    written = (out / "model.safetensors").stat().st_mtime_ns
    assert toy.build_toy_model(out) == out and (out / "model.safetensors").stat().st_mtime_ns == written
    rates = exact_pass_rates(out)
    mean = sum(rates) / len(rates)
    assert 0.3 <= mean <= 0.5
    assert min(rates) < 0.1 and max(rates) > 0.8
    assert sum(0.02 < rate < 0.98 for rate in rates) > 0.95 * len(rates)


def exact_pass_rates(model_dir: Path) -> list[float]:
    """Probability of the right answer and the end token, for each of the 400 sums."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    sums = [(a, b) for a in range(toy.LARGEST + 1) for b in range(toy.LARGEST + 1)]
    asked = [
        (tokenizer(f"{a}+{b}=").input_ids, [*tokenizer(str(a + b)).input_ids, tokenizer.eos_token_id]) for a, b in sums
    ]
    rates: list[float] = []
    for _, same in groupby(
        sorted(asked, key=lambda one: (len(one[0]), len(one[1]))), lambda one: (len(one[0]), len(one[1]))
    ):
        prompts, answers = (torch.tensor(side) for side in zip(*same, strict=True))
        with torch.no_grad():
            logits = model(torch.cat([prompts, answers[:, :-1]], dim=1)).logits[:, prompts.shape[1] - 1 :]
        chances = logits.log_softmax(-1).gather(2, answers.unsqueeze(2)).squeeze(2)
        rates += chances.sum(dim=1).exp().tolist()
    return rates
