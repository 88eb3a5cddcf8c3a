"""Tasks of the learner track: chains of table look-ups, whose pass rates are graded, hopeless, hidden or gated.

A prompt names a function f, a start x and a length L. The answer is f(x), f(f(x)), ..., L symbols, then the end. One
wrong symbol makes it wrong, so the pass rate is about q^L where q is how well the model knows f. Functions are shared
by prompts: what is learned on one helps others, and held-out prompts ask for the same functions.

That is a task whose whole answer is checked (WHOLE). In a task with `classes` the chain is the working, a class of its
last symbol is said after it, and only that class is checked (LUCKY): a wrong working may end right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NUM_SYMBOLS = 10
TAG, END, PAD = 10, 11, 12
"""Tokens after the symbols: what a formatted answer begins with, the end, and what follows it."""

FREE = 13
"""In the place of a token of the right answer: nobody checks it."""

NUM_TOKENS = 12
"""That a model may say."""

ALL = -1
"""In the place of the one symbol that is checked."""


@dataclass(frozen=True, slots=True)
class Task:
    """How prompts are made. `skill`: range of q, how well the starting model knows a function.

    `lengths`: of chains, with their shares. `unsolvable`: share of training prompts whose label no answer can meet.
    `tag_skill`: how often the starting model begins with the tag that an answer must begin with; None without a tag.
    `free`: symbols that the starting model says after the chain, each as likely as the others. Nobody checks them.
    `warm_up`: how many times the usual number of supervised steps the starting model has.

    `classes`: the chain is followed by its last symbol modulo this, which alone is checked; 0: all symbols are. The
    starting model says the class of a chain with CLASS_SKILL. `opening`, `between`: symbols that nobody checks before
    the chain, and before each of its symbols. `unknown`: share of functions that the starting model does not know at
    all. `hesitation`: after a wrong chain the starting model says 1 to so many tags before the class, after a right
    one up to a quarter of it. `limit`: tokens after which an answer is cut off. `partial`: a wrong answer is worth
    half the share of its chain that is right.
    """

    name: str
    summary: str
    skill: tuple[float, float]
    lengths: dict[int, float]
    num_functions: int = 64
    num_train: int = 1024
    num_held_out: int = 512
    unsolvable: float = 0.0
    tag_skill: float | None = None
    free: int = 0
    warm_up: int = 1
    classes: int = 0
    opening: int = 0
    between: int = 0
    unknown: float = 0.0
    hesitation: int = 0
    limit: int | None = None
    partial: bool = False

    @property
    def max_tokens(self) -> int:
        longest = int(self.chain_end(max(self.lengths))) + self.free + (self.classes > 0) + self.hesitation + 1
        return longest if self.limit is None else min(longest, self.limit)

    def chain_end(self, length: Any) -> Any:
        """Tokens up to the end of the chain, for a length or an array of them."""
        return (self.tag_skill is not None) + self.opening + length * (1 + self.between)


GRADED: dict[str, Any] = {"skill": (0.3, 1.0), "lengths": {1: 0.2, 2: 0.25, 3: 0.25, 4: 0.2, 6: 0.1}}
"""Pass rates from 0 to 1."""

WHOLE = {
    task.name: task
    for task in (
        Task("graded", "pass rates from 0 to 1", **GRADED),
        Task("hard", "most prompts below 0.1", (0.25, 0.6), {2: 0.15, 3: 0.35, 4: 0.35, 5: 0.15}),
        Task(
            "unsolvable",
            "graded, and three of ten training prompts have a label that nothing meets",
            unsolvable=0.3,
            **GRADED,
        ),
        Task(
            "curriculum",
            "most prompts are out of reach until shorter ones are learned",
            (0.15, 0.35),
            {1: 0.15, 3: 0.25, 5: 0.3, 8: 0.3},
        ),
        Task(
            "format",
            "an answer must begin with a tag that is rarely said at first",
            (0.4, 0.95),
            {1: 0.3, 2: 0.4, 3: 0.3},
            tag_skill=0.1,
        ),
        Task(
            "many",
            "graded, with 8 times the prompts and 4 times the functions: each prompt is seen a few times",
            num_functions=256,
            num_train=8192,
            **GRADED,
        ),
        Task(
            "varied",
            "graded, with six symbols after the answer that nobody checks: millions of answers to a prompt are right",
            free=6,
            warm_up=2,
            **GRADED,
        ),
    )
}


CLASS_SKILL = 0.95

KNOWN: dict[str, Any] = {"skill": (0.6, 0.75), "lengths": {3: 0.4, 4: 0.4, 5: 0.2}, "between": 1, "warm_up": 3}
"""Rarely right at once, nearly always in 32 tries."""

FREELY: dict[str, Any] = GRADED | {"between": 1, "warm_up": 3}

LUCKY = {
    task.name: task
    for task in (
        Task("sure", "the whole chain is checked, with a free symbol before each of its own", **FREELY),
        Task("luck10", "only a class of 10 after the chain is checked", **GRADED, classes=10),
        Task("luck4", "only a class of 4 is checked", **GRADED, classes=4),
        Task("luck2", "only a class of 2 is checked", **GRADED, classes=2),
        Task("ways10", "luck4 with one free symbol before the chain", **GRADED, classes=4, opening=1),
        Task("ways", "luck4 with a free symbol before each of the chain", **FREELY, classes=4),
        Task("ways-luck10", "luck10 with a free symbol before each", **FREELY, classes=10),
        Task("known", "luck10 by models that can do it, but seldom at once", **KNOWN, classes=10),
        Task("unknown", "luck10, and half of the functions are not known", **GRADED, classes=10, unknown=0.5),
        Task(
            "long",
            "luck4 where wrong answers are longer, and cut off after 12 tokens",
            **GRADED,
            classes=4,
            hesitation=8,
            limit=12,
        ),
        Task("labels", "ways, and three of ten labels are met by nothing", **FREELY, classes=4, unsolvable=0.3),
        Task(
            "once",
            "ways with 8 times the prompts and 4 times the functions: a prompt is seen once or twice",
            **FREELY,
            classes=4,
            num_functions=256,
            num_train=8192,
        ),
        Task("partial", "luck4 with partial credit for the chain", **GRADED, classes=4, partial=True),
    )
}

TASKS = WHOLE | LUCKY


@dataclass(frozen=True, slots=True)
class Prompts:
    """function, start, length: int64, shapes (R,). answers: int64, shape (R, T), padded after the end; see FREE.

    `final`: the symbol before the end that alone is checked, shape (R,); ALL where the whole answer is.
    """

    function: Ints
    start: Ints
    length: Ints
    answers: Ints
    final: Ints

    def __len__(self) -> int:
        return len(self.function)


@dataclass(frozen=True, slots=True)
class World:
    """One draw of a task. tables: f(x), int64, shape (F, S). skills: q by function, shape (F,).

    `solvable`: of training prompts, bool, shape (R,).
    """

    task: Task
    tables: Ints
    skills: Floats
    train: Prompts
    held_out: Prompts
    solvable: NDArray[np.bool_] = field(repr=False)


def make_world(task: Task, seed: int) -> World:
    """Held-out prompts are other combinations of function, start and length than the training prompts."""
    rng = np.random.default_rng([seed, 1])
    tables = rng.integers(0, NUM_SYMBOLS, (task.num_functions, NUM_SYMBOLS))
    skills = rng.permutation(np.linspace(*task.skill, task.num_functions))
    skills[: round(task.unknown * task.num_functions)] = 0.0
    lengths, shares = np.array(list(task.lengths)), np.array(list(task.lengths.values()))
    wanted = task.num_train + task.num_held_out
    triples = [
        (f, x, int(length))
        for length, share in zip(lengths, shares, strict=True)
        for f, x in _pairs(task.num_functions, round(wanted * share), rng)
    ]
    order = rng.permutation(len(triples))
    prompts = [triples[i] for i in order]
    train = _prompts(prompts[: task.num_train], tables, task)
    held_out = _prompts(prompts[task.num_train :], tables, task)
    solvable = rng.random(len(train)) >= task.unsolvable
    # No model can say PAD.
    train.answers[~solvable, 0] = PAD
    train.final[~solvable & (train.final != ALL)] = PAD
    return World(task, tables, skills, train, held_out, solvable)


def _pairs(num_functions: int, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Different pairs of function and start."""
    if count > num_functions * NUM_SYMBOLS:
        raise ValueError(f"{count} prompts of one length, and there are {num_functions * NUM_SYMBOLS}")
    chosen = rng.choice(num_functions * NUM_SYMBOLS, count, replace=False)
    return [(int(c) // NUM_SYMBOLS, int(c) % NUM_SYMBOLS) for c in chosen]


def _prompts(triples: list[tuple[int, int, int]], tables: Ints, task: Task) -> Prompts:
    function, start, length = (np.array(column, dtype=np.int64) for column in zip(*triples, strict=True))
    rest = FREE if task.free else PAD
    answers = np.full((len(triples), task.max_tokens), rest, dtype=np.int64)
    final = np.full(len(triples), ALL)
    for row, (f, symbol, steps) in enumerate(triples):
        said = ([] if task.tag_skill is None else [TAG]) + [FREE] * task.opening
        for _ in range(steps):
            symbol = int(tables[f, symbol])
            said += [FREE] * task.between + [symbol]
        if task.classes:
            final[row] = symbol % task.classes
            said.append(final[row])
        said += [] if task.free else [END]
        answers[row, : len(said)] = said
    return Prompts(function, start, length, answers, final)
