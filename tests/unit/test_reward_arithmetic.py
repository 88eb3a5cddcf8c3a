"""The arithmetic reward: what counts as an answer, what is refused, and the form OpenRLHF expects."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from adversarial import adversarial_texts

import openrlhf_ada.reward.arithmetic as reward_module
from openrlhf_ada.reward.arithmetic import parse_answer, reward_func

PROMPT = "12+7=19\n25+31=56\n3+4="


def score(response: str, label: str = "7") -> float:
    return reward_func([PROMPT + response], [PROMPT], [label])["rewards"].item()


@pytest.mark.parametrize("response", ["7", "7\n", " 7 \n25", "7<|im_end|>", "7<eos>", "07", "+7", "7\r\n1", "7</s>"])
def test_right_answers_in_any_spelling_count(response: str) -> None:
    assert score(response) == 1.0


@pytest.mark.parametrize("response", ["", "\n7", "8", "71", "7, 8", "7.0", "-7", "7 7", "seven", "<eos>7", "7_", "٧"])
def test_other_text_before_the_end_is_wrong(response: str) -> None:
    assert score(response) == 0.0


def test_ten_thousand_adversarial_texts_are_read() -> None:
    for text in (*adversarial_texts(10_000, seed=3), "9" * 10_000):
        parse_answer(text)
    assert score("9" * 10_000) == 0.0


def test_negative_and_numeric_labels() -> None:
    assert score("-3\n", label="-3") == 1.0
    assert score("7", label=7) == 1.0  # type: ignore[arg-type]


def test_only_the_response_is_read() -> None:
    assert reward_func(["7=7"], ["7=7"], ["7"])["rewards"].item() == 0.0


def test_result_has_one_value_per_query_and_scores_in_0_1() -> None:
    result = reward_func([PROMPT + "7", PROMPT + "8", PROMPT + "9"], [PROMPT] * 3, ["7", "8", "8"])
    assert result["rewards"].tolist() == [1.0, 1.0, 0.0]
    assert torch.equal(result["rewards"], result["scores"])
    assert result["rewards"].dtype == torch.float32
    assert result["extra_logs"] == {}


def test_a_query_without_its_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not start with its prompt: query '5\+1=6'.*--data\.max_len"):
        reward_func(["5+1=6"], ["25+1="], ["6"])


@pytest.mark.parametrize("label", ["seven", "", "7.5", "1e3"])
def test_a_label_that_is_no_integer_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match=r"label .* is not an integer.*--data\.label_key"):
        score("7", label=label)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        reward_func(["a", "b"], ["a"], ["1"])


def test_long_texts_are_cut_in_messages() -> None:
    with pytest.raises(ValueError) as error:
        reward_func(["x" * 5000], ["y" * 5000], ["1"])
    assert len(str(error.value)) < 500


def test_parse_answer_tells_no_answer_from_zero() -> None:
    assert parse_answer("0\n") == 0
    assert parse_answer("zero\n") is None


def load_alone(path: str) -> ModuleType:
    """As OpenRLHF does: by path, outside any package."""
    spec = importlib.util.spec_from_file_location("reward_func", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_loads_alone_from_anywhere(tmp_path: Path) -> None:
    copy = tmp_path / "reward.py"
    copy.write_text(Path(str(reward_module.__file__)).read_text())
    assert load_alone(str(copy)).reward_func([PROMPT + "7"], [PROMPT], ["7"])["rewards"].item() == 1.0


def test_host_gets_one_number_per_sample() -> None:
    """What OpenRLHF 0.11.2 does with it: called in a thread with B = 1, then wrapped in a list and a tensor."""

    async def fetch() -> dict[str, torch.Tensor]:
        function = load_alone(str(reward_module.__file__)).reward_func
        return (await asyncio.gather(asyncio.to_thread(function, [PROMPT + "7"], [PROMPT], ["7"])))[0]

    info = asyncio.run(fetch())
    assert torch.tensor([info["rewards"]]).shape == (1,)
    assert info["scores"][0].item() == 1.0
