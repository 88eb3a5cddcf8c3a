"""No text that is no answer gets a high score from a task of reasoning-gym, and no answer runs as Python."""

from __future__ import annotations

import inspect
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.reward import reasoning_answers
from openrlhf_ada.reward.grade import listen
from openrlhf_ada.reward.reasoning_answers import grade, import_reasoning_gym, to_label
from openrlhf_ada.reward.reasoning_checks import EVALUATED_AS_FORMULAS, EVALUATED_AS_LISTS, arithmetic, could_run

GARBAGE = [
    "x",
    "nan",
    "inf",
    "None",
    "[]",
    "{}",
    "()",
    '""',
    "[[]]",
    "?",
    "I do not know",
    "6*4*1*1",
    "Integral(x, x)",
]

HIGH = 0.5
"""Of a text that is no answer."""

MAKES_NO_PROBLEMS = ("composite", "zebra_puzzles")

ACCEPTS_PROMPT = {"rotate_matrix", "knights_knaves"}
"""The prompt's own text has partial credit, up to 0.8: a matrix turned by 0 degrees stands in it, and so do all names.
It is never right."""


def entries(task: str, size: int = 4, seed: int = 11) -> list[dict[str, Any]]:
    return list(import_reasoning_gym().create_dataset(task, size=size, seed=seed))


def score(answer: str, entry: dict[str, Any]) -> float:
    return grade(f"<answer>{answer}</answer>", to_label(entry)).score


@pytest.mark.slow
def test_no_task_takes_garbage_or_its_prompt_for_an_answer() -> None:
    import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    found: dict[str, set[str]] = {}
    for task in sorted(DATASETS.keys() - set(MAKES_NO_PROBLEMS)):
        for entry in entries(task):
            question, right = str(entry["question"]), str(entry["answer"])
            for answer in (*GARBAGE, question, question[: len(question) // 2]):
                given = score(answer, entry)
                if given > HIGH and answer not in (right, f'"{right}"', f"'{right}'"):
                    found.setdefault(task, set()).add("prompt" if answer not in GARBAGE else answer)
                    assert given < 1.0, (task, answer)
    assert found.keys() <= ACCEPTS_PROMPT and all(answers == {"prompt"} for answers in found.values()), found


# -- own rules ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("expected", ["True", "False"])
def test_a_game_halts_or_does_not(expected: str) -> None:
    entry = {"question": "", "answer": expected, "metadata": {"source_dataset": "game_of_life_halting"}}
    other = {"True": "False", "False": "True"}[expected]
    assert [score(said, entry) for said in (expected, f" {expected.lower()}.", other, "x", "")] == [1, 1, 0, 0, 0]


@pytest.mark.slow
def test_a_probability_is_compared_as_a_number() -> None:
    entry = {"question": "", "answer": "0.375", "metadata": {"source_dataset": "coin_flip"}}
    assert [score(said, entry) for said in ("3/8", "0.375", "0.37500")] == [1, 1, 1]
    assert [score(said, entry) for said in ("0", "0.3", "0.", "nan", "1/0", "x", "-0.375")] == [0] * 7
    rare = entry | {"answer": "0.0009765625"}
    assert [score(said, rare) for said in ("1/1024", "0", "0.0009155273438")] == [1, 0, 0]


def test_numbers_of_a_puzzle_are_those_that_were_given() -> None:
    """puzzle24's verifier takes any four numbers, and 24.9 for 24."""
    metadata = {"source_dataset": "puzzle24", "numbers": [2, 9, 6, 7]}
    entry = {"question": "", "answer": "2 + 9 + 6 + 7", "metadata": metadata}
    assert [score(said, entry) for said in ("2 + 9 + 6 + 7", "(9 + 7) + 6 + 2")] == [1, 1]
    wrong = ["6*4*1*1", "2+9+6+7+0", "9+7+6", "2+9+6*7", "2+9+6+7.0", "2+9+6+7 if 1 else 0", "24", "29+6-7-4"]
    assert [score(said, entry) for said in wrong] == [0] * len(wrong)
    countdown = entries("countdown", size=1)[0]
    assert score(countdown["answer"], countdown) == 1
    assert score(str(countdown["metadata"]["target"]), countdown) == 0


def test_arithmetic_is_exact() -> None:
    assert arithmetic("8/(3-8/3)") == (Fraction(24), [8, 3, 8, 3])
    for text in ("2**3", "7//2", "1/0", "x+1", "f(1)", "1,2", "1.5", "True+1", "'a'", "", "(1"):
        assert arithmetic(text) is None, text


def test_an_equation_without_a_solution_wants_an_empty_answer() -> None:
    entry = entries("polynomial_equations", size=1)[0] | {"answer": ""}
    assert [score(said, entry) for said in ("", '""', "''")] == [1, 1, 1]
    assert [score(said, entry) for said in ("x", "none", "1.5", "empty")] == [0, 0, 0, 0]
    assert grade("", to_label(entry)).score == 0.0
    assert grade("There is no solution.", to_label(entry)).score == 0.0


def test_not_a_number_is_no_complex_number() -> None:
    entry = entries("complex_arithmetic", size=1)[0]
    assert [score(said, entry) for said in ("nan", "nan+nanj", "1+NaNj")] == [0, 0, 0]


def test_an_integral_that_is_only_written_down_is_wrong() -> None:
    entry = entries("simple_integration", size=1)[0]
    integrand, variable = entry["metadata"]["integrand"], entry["metadata"]["variable"]
    assert score(entry["answer"], entry) == 1.0
    assert score(f"Integral({integrand}, {variable})", entry) == 0.0


# -- answers that would run ---------------------------------------------------------------------------------------

PROGRAMS = [
    "__import__('os').mkdir('{path}')",
    "open('{path}', 'w')",
    "[open('{path}', 'w')]",
    "(open)('{path}', 'w')",
    "[open][0]('{path}', 'w')",
    "open # x\n('{path}', 'w')",
    "(lambda f: f('{path}', 'w'))(open)",
    'sqrt(\'open("{path}", "w")\')',
    "\uff4f\uff50\uff45\uff4e('{path}', 'w')",
    'x.subs(1, S(\'open("{path}", "w")\'))',
]


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(EVALUATED_AS_FORMULAS | EVALUATED_AS_LISTS))
def test_no_answer_runs(task: str, tmp_path: Path) -> None:
    entry = entries(task, size=1)[0]
    path = tmp_path / "ran"
    for program in PROGRAMS:
        assert score(program.format(path=path), entry) < HIGH
        assert not path.exists(), program
    assert score(str(entry["answer"]), entry) == 1.0


@pytest.mark.slow
def test_tasks_that_evaluate_answers_are_known() -> None:
    """A verifier that begins to evaluate its answers needs an entry."""
    import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    evaluating = re.compile(
        r"(?<![\w.])eval\((?!entry|problem)|\b(?:sympy|sp)\.parse_expr\(|(?:float|int)\(parse_expr\("
    )
    found = {name for name, (dataset, _) in DATASETS.items() if evaluating.search(inspect.getsource(dataset))}
    assert found - {"bitwise_arithmetic"} == EVALUATED_AS_FORMULAS | EVALUATED_AS_LISTS


def test_formulas_are_no_programs() -> None:
    for formula in ("x**3/3 + C", "-5*cos(2*x)/2", "2*(x + 1)*exp(-x)", "log(Abs(x)) + 1.5", "(x+1)*(x-1)", "2.5*x"):
        assert not could_run("simple_integration", formula), formula
    assert not could_run("n_queens", "[['_', 'Q'], ['Q', '_']]")
    assert not could_run("word_sorting", "open('x')")


def test_what_is_costly_is_wrong_once_the_label_is_known() -> None:
    """A power tower takes the whole limit; its process tells the pool before that the label could be read."""
    told: list[float | None] = []
    listen(told.append)
    try:
        grade("<answer>1</answer>", to_label(entries("lcm", size=1)[0]))
        assert told == [None]
        with pytest.raises(reasoning_answers.UnusableLabelError):
            grade("<answer>1</answer>", "{}")
        assert told == [None]
    finally:
        listen(lambda _: None)
