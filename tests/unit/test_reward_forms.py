"""Reward functions as people write them for other trainers: taken where the meaning is plain, else refused before a
run. Named alone or as FILE.py:NAME, they score alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.reward import forms
from openrlhf_ada.reward.grade import NoScoreError, UnusableLabelError
from openrlhf_ada.reward.returned import reward_and_score
from openrlhf_ada.reward.reward_function import in_openrlhf_form
from openrlhf_ada.reward.worker import load_file

SAME = "[float(text == right) for text, right in zip({}, {})]"
ROW = {"answer": "7", "ground_truth": "7", "solution": "7", "data_source": "gsm8k", "level": 3}

BY_NAME: dict[str, tuple[str, Any]] = {
    "verl": (
        "def f(data_source, solution_str, ground_truth, extra_info=None): return solution_str == ground_truth",
        "7",
    ),
    "verl, all demanded and not read": (
        "def f(data_source, solution_str, ground_truth, extra_info): return solution_str == ground_truth",
        "7",
    ),
    "verl's gsm8k": (
        "def f(solution_str, ground_truth, method='strict', format_score=0.0, score=1.0):\n"
        "    return score if solution_str == ground_truth else format_score",
        "7",
    ),
    "verl by source": (
        "def f(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'gsm8k': solution_str == ground_truth}[data_source]",
        ROW,
    ),
    "verl, a dict": (
        "def f(solution_str, ground_truth, **kwargs): return {'score': solution_str == ground_truth, 'pred': ''}",
        "7",
    ),
    "verl, batches": (
        "def f(data_sources, solution_strs, ground_truths, extra_infos): return "
        + SAME.format("solution_strs", "ground_truths"),
        "7",
    ),
    "verl, a coroutine": (
        "import asyncio\nasync def f(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    await asyncio.sleep(0)\n    return {'score': float(solution_str == ground_truth)}",
        "7",
    ),
    "TRL": ("def f(prompts, completions, answer, **kwargs): return " + SAME.format("completions", "answer"), "7"),
    "TRL, a column of any name": (
        "def f(completions, wanted, **kwargs): return " + SAME.format("completions", "wanted"),
        "7",
    ),
    "TRL, a column with a name of verifiers": (
        "def f(completions, state): return " + SAME.format("completions", "state"),
        "7",
    ),
    "TRL, columns": (
        "def f(completions, answer, level, **kwargs):\n    assert level == [3]\n    return "
        + SAME.format("completions", "answer"),
        ROW,
    ),
    "TRL, keywords": (
        "def f(prompts, completions, **kwargs): return " + SAME.format("completions", "kwargs['answer']"),
        ROW,
    ),
    "TRL, keywords and one label": (
        "def f(completions, **kwargs): return " + SAME.format("completions", "kwargs['solution']"),
        "7",
    ),
    "TRL, a default": ("def f(completions, answer=None): return " + SAME.format("completions", "answer"), "7"),
    "TRL, chat messages": (
        "def f(prompts, completions, answer, **kwargs):\n    assert prompts[0][-1]['content'] == '3+4='\n    return "
        + SAME.format("[c[0]['content'] for c in completions]", "answer"),
        "7",
    ),
    "ms-swift": (
        "class f:\n    def __call__(self, completions, solution, **kwargs):\n        return "
        + SAME.format("completions", "solution"),
        "7",
    ),
    "verifiers": ("def f(completion, answer): return float(completion[-1]['content'] == answer)", "7"),
    "verifiers, text": ("def f(prompt, completion, answer, state): return float(completion == answer)", "7"),
    "OpenRLHF": (
        "def f(queries, prompts, labels): return [q == p + label for q, p, label in zip(queries, prompts, labels)]",
        "7",
    ),
    "OpenRLHF, a tensor": (
        "import torch\n\n\ndef f(queries, prompts, labels):\n"
        "    return torch.tensor([queries == ['3+4=' + labels[0]]]).float()",
        "7",
    ),
    "OpenRLHF, a coroutine": ("async def f(queries, prompts, labels): return queries == ['3+4=' + labels[0]]", "7"),
}


def ways(folder: Path, source: str) -> list[Callable[[str, Any], float]]:
    """As FILE.py:f and as FILE.py with reward_func."""
    file = folder / "reward.py"
    file.write_text(f"{source}\n\nreward_func = f\n")
    grade, function = forms.as_grader(load_file(str(file)).f), in_openrlhf_form(load_file(str(file)).reward_func)
    return [
        lambda response, label: grade(response, label, "3+4=").score,
        lambda response, label: reward_and_score(function([f"3+4={response}"], ["3+4="], [label]))[1],
    ]


@pytest.mark.parametrize("name", BY_NAME)
def test_forms_of_other_trainers(name: str, tmp_path: Path) -> None:
    source, label = BY_NAME[name]
    for ask in ways(tmp_path, source):
        assert [ask(response, label) for response in ("7", "8", "7")] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("source", "label", "said"),
    [
        ("def f(data_source, solution_str, ground_truth): return data_source == 'a'", "7", "label_key data_source,"),
        ("def f(solution_str, ground_truth, extra_info): return extra_info['x']", "7", "extra_info"),
        (
            "def f(solution_str, ground_truth, extra_info=None): return 0.0 if not extra_info else 1.0",
            "7",
            "extra_info",
        ),
        ("def f(completions, answer, level): return [1.0]", "7", "answer, level"),
        ("def f(completions, completion_ids): return [1.0]", "7", "completion_ids"),
        ("def f(data_source, solution_str): return data_source", "7", "data_source"),
        ("def f(completion, answer, parser): return 1.0", "7", "answer, parser"),
        ("def f(completions, answer): return None", "7", "returned no reward"),
        ("def f(completions, answer): return [None]", "7", "a list of NoneType"),
        ("def f(completions, answer): return []", "7", "0 numbers"),
        ("def f(completions, answer): return [1.0, 0.0]", "7", "2 numbers"),
        ("def f(solution_str, ground_truth): return 'right'", "7", "a str"),
        ("def f(solution_str, ground_truth): return True, 'right'", "7", "a tuple of bool"),
        ("def f(solution_str, ground_truth): return {'format': 1.0}", "7", "no 'rewards', but 'format'"),
        ("def f(solution_str, ground_truth): return float('nan')", "7", "nan"),
        ("def f(solution_str, ground_truth): yield 1.0", "7", "a generator"),
    ],
)
def test_what_is_not_plain_is_refused(source: str, label: Any, said: str, tmp_path: Path) -> None:
    for ask in ways(tmp_path, source):
        with pytest.raises((UnusableLabelError, NoScoreError), match=said):
            ask("7", label)


@pytest.mark.parametrize(
    ("returned", "pair"),
    [
        ("0.5", (0.5, 0.5)),
        ("1", (1.0, 1.0)),
        ("True", (1.0, 1.0)),
        ("[0.5]", (0.5, 0.5)),
        ("np.array([0.5])", (0.5, 0.5)),
        ("np.float32(0.5)", (0.5, 0.5)),
        ("{'score': 0.5}", (0.5, 0.5)),
        ("{'reward': -2, 'score': 0.5}", (-2.0, 0.5)),
        ("{'score': -1.0, 'acc': False, 'pred': '8'}", (-1.0, 0.0)),
        ("{'scores': [0.5]}", (0.5, 0.5)),
        ("{'rewards': [2.0], 'scores': [1.0]}", (2.0, 1.0)),
    ],
)
def test_reward_and_score_of_what_is_returned(returned: str, pair: tuple[float, float], tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        f"import numpy as np\ndef grade(response, label): return {returned}\n"
        f"def reward_func(queries, prompts, labels): return {returned}"
    )
    grade = forms.as_grader(load_file(str(file)).grade)("7", "7")
    assert (grade.reward, grade.score) == pair
    assert reward_and_score(in_openrlhf_form(load_file(str(file)).reward_func)(["7"], [""], ["7"])) == pair


class Rubric:
    """As `verifiers` has it: functions by name, weights, and what it hands to them."""

    def __init__(self, *functions: Any, old: bool = False) -> None:
        prefix = "reward_" if old else ""
        setattr(self, f"{prefix}funcs", list(functions))
        setattr(self, f"{prefix}weights", [1.0, 0.5][: len(functions)])
        self.class_objects = {"parser": SimpleNamespace(last=lambda messages: messages[-1]["content"])}

    def add_reward_func(self) -> None: ...


@pytest.mark.parametrize("old", [False, True])
def test_a_rubric_is_several_rewards(old: bool) -> None:
    def right(completion: Any, answer: str, parser: Any) -> float:
        return float(parser.last(completion) == answer)

    async def short(completion: Any, **kwargs: Any) -> float:
        return float(len(completion[0]["content"]) < 3)

    grade = forms.as_grader(Rubric(right, short, old=old))
    assert [(g.score, g.reward) for g in (grade("7", "7"), grade("8", "7"), grade("8888", "7"))] == [
        (1.0, 1.5),
        (0.0, 0.5),
        (0.0, 0.0),
    ]


def test_an_error_within_a_rubric_is_no_zero() -> None:
    def fails(completion: Any, answer: str) -> float:
        raise KeyError("gold")

    with pytest.raises(KeyError):
        forms.as_grader(Rubric(fails))("7", "7")


def test_an_error_of_a_function_of_text_is_its_own() -> None:
    """Messages are another try, which must not hide what is wrong with an answer."""
    seen: list[Any] = []

    def last_line(completions: list[str], answer: list[str]) -> list[float]:
        seen.append(completions[0])
        return [float(completions[0].splitlines()[1] == answer[0])]

    grade = forms.as_grader(last_line)
    with pytest.raises(IndexError):
        grade("7", "7")
    assert grade("x\n7", "7").score == 1.0
    assert isinstance(seen[-1], str)


def test_clients_of_servers_keep_their_loop() -> None:
    loops: set[int] = set()

    async def judge(solution_str: str, ground_truth: str) -> float:
        loops.add(id(asyncio.get_running_loop()))
        return 1.0

    grade = forms.as_grader(judge)
    assert [grade("7", "7").score for _ in range(3)] == [1.0] * 3
    assert len(loops) == 1
