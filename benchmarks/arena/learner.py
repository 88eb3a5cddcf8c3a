"""A small autoregressive model, its sampling and its policy gradient, in one process and on one core."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.arena.tasks import ALL, CLASS_SKILL, END, FREE, NUM_SYMBOLS, NUM_TOKENS, PAD, TAG, Prompts, Task, World
from openrlhf_ada.config.presets import part as part_of_methods

WIDTH = 64
MAX_NORM = float(part_of_methods("recipe").flags["actor.max_norm"])
CLIP: tuple[float, float] = part_of_methods("recipe").flags["actor.eps_clip_low_high"]
"""Of gradients, and of PPO's ratio: those of the published recipe."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Supervised steps before anything is compared. `rate`: the first learning rate; the last is a tenth of it."""

    steps: int
    batch: int
    rate: float


WARM_UP = WarmUp(600, 512, 3e-3)

PASS_RATE_SAMPLES = 4


class AnswerModel(nn.Module, ABC):
    """Reads prompts and says answers, token by token. Tokens: int64, shape (N, T), PAD after the end."""

    @abstractmethod
    def sample(self, prompts: PromptBatch, generator: torch.Generator) -> Tensor:
        """Tokens of one answer for each prompt, at temperature 1."""

    @abstractmethod
    def token_log_probs(self, prompts: PromptBatch, tokens: Tensor) -> Tensor:
        """Of every token of these answers, 0 after their end; shape (N, T)."""


class ChainModel(AnswerModel):
    """A recurrent network: a GRU cell that reads the last token and the function, and a head that sees the function.

    What does not change over an answer is computed once, and answers that have ended are left out.
    """

    def __init__(self, num_functions: int, max_length: int) -> None:
        super().__init__()
        self.function = nn.Embedding(num_functions, WIDTH)
        self.start = nn.Embedding(NUM_SYMBOLS, WIDTH)
        self.length = nn.Embedding(max_length + 1, WIDTH)
        self.said = nn.Embedding(PAD + 1, WIDTH)
        self.cell = nn.GRUCell(2 * WIDTH, WIDTH)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, NUM_TOKENS))

    def _read(self, prompts: PromptBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(first state, what the function adds to the gates and in the head), shapes (N, 1, 3 and 2 times WIDTH)."""
        function = self.function(prompts.function)
        hidden = cast("nn.Linear", self.head[0])
        gates = functional.linear(function, self.cell.weight_ih[:, WIDTH:])
        in_head = functional.linear(function, hidden.weight[:, WIDTH:], hidden.bias)
        return self.start(prompts.start) + self.length(prompts.length), gates, in_head

    def _gates_of_tokens(self) -> Tensor:
        """What the last token adds to the gates, shape (PAD + 1, 3 WIDTH)."""
        return functional.linear(self.said.weight, self.cell.weight_ih[:, :WIDTH], self.cell.bias_ih)

    def _next(self, gates: Tensor, state: Tensor) -> Tensor:
        """The state after a token, shape (N, WIDTH)."""
        of_state = functional.linear(state, self.cell.weight_hh, self.cell.bias_hh)
        reset, update = (gates + of_state)[:, : 2 * WIDTH].sigmoid().chunk(2, dim=1)
        new = torch.tanh(gates[:, 2 * WIDTH :] + reset * of_state[:, 2 * WIDTH :])
        return new + update * (state - new)

    def _logits(self, state: Tensor, in_head: Tensor) -> Tensor:
        """Shape (N, NUM_TOKENS)."""
        hidden, activation, last = self.head
        return last(activation(functional.linear(state, cast("nn.Linear", hidden).weight[:, :WIDTH]) + in_head))

    def sample(self, prompts: PromptBatch, generator: torch.Generator) -> Tensor:
        state, gates, in_head = self._read(prompts)
        of_token = self._gates_of_tokens()
        tokens = torch.full(prompts.answers.shape, PAD)
        speaking, said = torch.arange(len(tokens)), torch.full((len(tokens),), PAD)
        for position in range(tokens.shape[1]):
            # As many random numbers whoever has ended: so those of one prompt do not depend on others' answers.
            noise = gumbel((len(tokens), NUM_TOKENS), generator)
            state = self._next(functional.embedding(said, of_token) + gates, state)
            said = (self._logits(state, in_head) + noise[speaking]).argmax(dim=1)
            tokens[speaking, position] = said
            on = said != END
            speaking, said, state, gates, in_head = speaking[on], said[on], state[on], gates[on], in_head[on]
        return tokens

    def token_log_probs(self, prompts: PromptBatch, tokens: Tensor) -> Tensor:
        """Answers are read from the longest on, so those that go on at a position are the first so many."""
        lengths = ((tokens != PAD) * torch.arange(1, tokens.shape[1] + 1)).amax(dim=1)
        order = lengths.argsort(descending=True)
        state, gates, in_head = (of[order] for of in self._read(prompts))
        of_token, following = self._gates_of_tokens(), tokens[order]
        said, states, rows = torch.full((len(tokens),), PAD), [], []
        for position in range(tokens.shape[1]):
            going_on = int((lengths > position).sum())
            said, state, gates = said[:going_on], state[:going_on], gates[:going_on]
            state = self._next(functional.embedding(said, of_token) + gates, state)
            said = following[:going_on, position]
            states.append(state)
            rows.append(torch.arange(going_on))
        row, position = torch.cat(rows), torch.cat([torch.full_like(of, i) for i, of in enumerate(rows)])
        by_token = functional.log_softmax(self._logits(torch.cat(states), in_head[row]), dim=1)
        said = following[row, position]
        chosen = by_token.gather(1, said.clamp_max(NUM_TOKENS - 1).unsqueeze(1)).squeeze(1)
        found = torch.zeros(tokens.shape, dtype=chosen.dtype)
        return found.index_put((order[row], position), torch.where(said != PAD, chosen, 0.0))


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise with which the largest of log-probabilities + noise is a token drawn by them."""
    return -torch.log(-torch.log(torch.rand(shape, generator=generator).clamp_min(1e-20)))


def drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One token for each row of logits, shape (N, V); shape (N,)."""
    return (logits + gumbel(tuple(logits.shape), generator)).argmax(dim=1)


def until_end(tokens: Tensor) -> Tensor:
    """Which tokens belong to the answers: up to the first END, that one included. bool, shape (N, T)."""
    ends = (tokens == END).long()
    return ends.cumsum(dim=1) - ends == 0


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """int64 tensors, shapes (N,); answers: (N, T). See `tasks.Prompts`."""

    function: Tensor
    start: Tensor
    length: Tensor
    answers: Tensor
    final: Tensor

    @classmethod
    def of(cls, prompts: Prompts, rows: Sequence[int] | None = None) -> PromptBatch:
        index = slice(None) if rows is None else np.asarray(rows)
        columns = (prompts.function, prompts.start, prompts.length, prompts.answers, prompts.final)
        return cls(*(torch.from_numpy(column[index]) for column in columns))

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.function, self.start, self.length, self.answers, self.final


@dataclass(frozen=True, slots=True)
class Answers:
    """tokens: int64, (N, T), PAD after the end. right: bool, (N,). scores: float64, (N,). num_tokens: int64, (N,)."""

    prompts: PromptBatch
    tokens: Tensor
    right: Tensor
    scores: Tensor
    num_tokens: Tensor

    def at(self, index: Sequence[int]) -> Answers:
        """These of the answers."""
        columns = (self.tokens, self.right, self.scores, self.num_tokens)
        return Answers(PromptBatch(*(of[index] for of in self.prompts.columns)), *(of[index] for of in columns))


def joined(parts: Sequence[Answers]) -> Answers:
    """One after the other."""

    columns = zip(*((part.tokens, part.right, part.scores, part.num_tokens) for part in parts), strict=True)
    prompts = zip(*(part.prompts.columns for part in parts), strict=True)
    return Answers(PromptBatch(*map(torch.cat, prompts)), *map(torch.cat, columns))


@torch.no_grad()
def sample(model: AnswerModel, prompts: PromptBatch, generator: torch.Generator, task: Task | None = None) -> Answers:
    """One answer for each prompt, at temperature 1. `task`: needed where there is partial credit."""
    tokens = model.sample(prompts, generator)
    right = is_right(tokens, prompts)
    scores = right.double()
    if task is not None and task.partial:
        scores = torch.where(right, scores, 0.5 * right_share(tokens, prompts, task))
    return Answers(prompts, tokens, right, scores, until_end(tokens).sum(dim=1))


def is_right(tokens: Tensor, prompts: PromptBatch) -> Tensor:
    """What the task's check says, bool, shape (N,)."""
    ends = tokens == END
    before_end = (ends.long().argmax(dim=1) - 1).clamp_min(0).unsqueeze(1)
    last = torch.where(ends.any(dim=1) & ~ends[:, 0], tokens.gather(1, before_end).squeeze(1), PAD + 1)
    whole = ((tokens == prompts.answers) | (prompts.answers == FREE)).all(dim=1)
    return torch.where(prompts.final == ALL, whole, last == prompts.final)


def right_share(tokens: Tensor, prompts: PromptBatch, task: Task) -> Tensor:
    """Of the symbols of the chain, float64, shape (N,). Free symbols do not count."""
    in_chain = torch.arange(tokens.shape[1]) < task.chain_end(prompts.length).unsqueeze(1)
    checked = in_chain & (prompts.answers != FREE)
    return ((tokens == prompts.answers) & checked).sum(dim=1).double() / checked.sum(dim=1)


def score_norms(token_log_probs: Tensor) -> np.ndarray:
    """`core.least_noise.score_norm` of each answer, float64, shape (N,); log-probabilities (N, T)."""
    return ((1.0 - token_log_probs.double().exp()) ** 2).sum(dim=1).numpy()


def log_probs(model: AnswerModel, prompts: PromptBatch, tokens: Tensor) -> Tensor:
    """Of whole answers, shape (N,). Tokens that cannot be said (PAD in the place of the first) give -inf."""
    return model.token_log_probs(prompts, tokens).sum(dim=1).masked_fill(tokens[:, 0] == PAD, -math.inf)


@torch.no_grad()
def pass_rates(model: AnswerModel, prompts: Prompts, rows: Sequence[int] | None = None) -> np.ndarray:
    """float64, shape (R,). `rows`: of which prompts; all if it is left out.

    Exact where the whole answer is checked, and free symbols come after it only: the probability of the one right
    answer, or of what all right answers begin with. Else the share of PASS_RATE_SAMPLES answers, with the same random
    numbers in each call.
    """
    batch = PromptBatch.of(prompts, rows)
    if (batch.final != ALL).any() or (batch.answers[:, 0] == FREE).any():
        several = PromptBatch(*(column.repeat_interleave(PASS_RATE_SAMPLES, 0) for column in batch.columns))
        tokens = model.sample(several, torch.Generator().manual_seed(0))
        return is_right(tokens, several).double().view(-1, PASS_RATE_SAMPLES).mean(dim=1).numpy()
    checked = torch.where(batch.answers == FREE, PAD, batch.answers)
    return log_probs(model, batch, checked).double().exp().numpy()


class Learner:
    """The model and its optimiser."""

    def __init__(
        self,
        world: World,
        weights: dict[str, Tensor],
        learning_rate: float,
        seed: int,
        model: AnswerModel | None = None,
    ) -> None:
        """`model`: that has such weights; the recurrent one if it is left out."""
        self.world = world
        self.model = model or ChainModel(world.task.num_functions, max(world.task.lengths))
        self.model.load_state_dict(weights)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0)
        self._generator = torch.Generator().manual_seed(seed)
        self._shuffle = np.random.default_rng([seed, 5])

    def sample(self, rows: Sequence[int]) -> Answers:
        """One answer for each row of the training set; a row may stand there several times."""
        return sample(self.model, PromptBatch.of(self.world.train, rows), self._generator, self.world.task)

    @torch.no_grad()
    def token_log_probs(self, answers: Answers) -> Tensor:
        """Shape (N, T)."""
        return self.model.token_log_probs(answers.prompts, answers.tokens)

    @torch.no_grad()
    def log_probs_of(self, rows: Sequence[int], tokens: np.ndarray) -> np.ndarray:
        """Of the tokens of one answer to each of these rows of the training set, shapes (N, T)."""
        prompts = PromptBatch.of(self.world.train, rows)
        return self.model.token_log_probs(prompts, torch.from_numpy(tokens)).double().numpy()

    def train(
        self,
        answers: Answers,
        index: Sequence[int],
        coefficients: Sequence[float],
        epochs: int = 1,
        updates: int = 1,
        wrong_epochs: int | None = None,
        before: Tensor | None = None,
        clip: tuple[float, float] | None = None,
    ) -> None:
        """Up the mean of coefficient x log-probability over the trained answers `index`.

        In each of the `epochs` so many `updates`, each of an equal part: of several, with PPO's clipped ratio of every
        token. `wrong_epochs`: coefficients below 0 count in the first so many epochs only; in all if it is left out.
        `before`: log-probabilities that the ratios go by, shape (N, T); the present ones if they are left out.
        `clip`: CLIP if it is left out.
        """
        rows, weights = torch.tensor(index), torch.tensor(coefficients, dtype=torch.float32)
        if before is None and epochs * updates > 1:
            before = self.token_log_probs(answers)
        for epoch in range(epochs):
            if epoch == wrong_epochs:
                weights = weights.clamp_min(0.0)
            for part in np.array_split(self._shuffle.permutation(len(index)), updates):
                # The others have no gradient, and count in the mean.
                chosen = torch.from_numpy(part)[weights[part] != 0]
                if len(chosen):
                    gain = _surrogate(self.model, answers, rows[chosen], weights[chosen], before, clip or CLIP)
                    self._update(gain, len(part))

    def _update(self, gain: Tensor, size: float) -> None:
        self._optimizer.zero_grad()
        (-gain / size).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self._optimizer.step()


def _surrogate(
    model: AnswerModel,
    answers: Answers,
    rows: Tensor,
    weights: Tensor,
    before: Tensor | None,
    clip: tuple[float, float],
) -> Tensor:
    """Sum of weight x log-probability, or of PPO's objective where the log-probabilities `before` are given."""
    prompts = PromptBatch(*(column[rows] for column in answers.prompts.columns))
    now, weights = model.token_log_probs(prompts, answers.tokens[rows]), weights.unsqueeze(1)
    if before is None:
        return (weights * now).sum()
    ratio = (now - before[rows]).exp()
    return torch.minimum(ratio * weights, ratio.clamp(1.0 - clip[0], 1.0 + clip[1]) * weights).sum()


def warm_start(world: World, seed: int) -> dict[str, Tensor]:
    """Weights that know each function as well as the task says: trained on answers whose symbols are right that often.

    A wrong symbol is followed by the right one for it, so an error does not spoil what comes after.
    """
    torch.manual_seed(seed)
    model = ChainModel(world.task.num_functions, max(world.task.lengths))
    warm_up(model, world, seed, replace(WARM_UP, steps=world.task.warm_up * WARM_UP.steps))
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def warm_up(model: AnswerModel, world: World, seed: int, recipe: WarmUp) -> None:
    """Train the model in place on imperfect answers; see `warm_start`."""
    rng = np.random.default_rng([seed, 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, recipe.steps)
    for _ in range(recipe.steps):
        batch = PromptBatch(*map(torch.from_numpy, _imperfect(world, rng, recipe.batch)))
        loss = -log_probs(model, batch, batch.answers).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _imperfect(world: World, rng: np.random.Generator, size: int) -> tuple[np.ndarray, ...]:
    """`size` prompts with answers as imperfect as the starting model is to be."""
    task = world.task
    function = rng.integers(0, task.num_functions, size)
    start = rng.integers(0, NUM_SYMBOLS, size)
    length = rng.choice(list(task.lengths), size)
    writer = _Writer(np.full((size, max(task.max_tokens, _longest(task))), PAD))
    if task.tag_skill is not None:
        tagged = rng.random(size) < task.tag_skill
        writer.say(TAG, tagged)
    writer.say_any(task.opening, rng)
    symbol, right = start.copy(), np.ones(size, dtype=bool)
    for step in range(max(task.lengths)):
        goes_on = step < length
        writer.say_any(task.between, rng, goes_on)
        knows = rng.random(size) < world.skills[function]
        following = world.tables[function, symbol]
        said = np.where(knows, following, rng.integers(0, NUM_SYMBOLS, size))
        right &= ~goes_on | (said == following)
        symbol = np.where(goes_on, said, symbol)
        writer.say(symbol, goes_on)
    writer.say_any(task.free, rng)
    if task.hesitation:
        most = np.where(right, task.hesitation // 4, task.hesitation)
        tags = rng.integers(np.where(right, 0, 1), most + 1)
        for step in range(task.hesitation):
            writer.say(TAG, step < tags)
    if task.classes:
        sure = rng.random(size) < CLASS_SKILL
        writer.say(np.where(sure, symbol % task.classes, rng.integers(0, task.classes, size)))
    writer.say(END)
    return function, start, length, writer.tokens[:, : task.max_tokens], np.full(size, ALL)


def _longest(task: Task) -> int:
    return replace(task, limit=None).max_tokens


class _Writer:
    """Answers to which tokens are added, each row at its own place. `tokens`: shape (N, T), PAD at first."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens
        self._at = np.zeros(len(tokens), dtype=np.int64)

    def say(self, token: np.ndarray | int, where: np.ndarray | None = None) -> None:
        """`where`: rows that say it, bool; all if it is left out."""
        rows = np.arange(len(self.tokens)) if where is None else np.flatnonzero(where)
        self.tokens[rows, self._at[rows]] = token if isinstance(token, int) else token[rows]
        self._at[rows] += 1

    def say_any(self, count: int, rng: np.random.Generator, where: np.ndarray | None = None) -> None:
        """So many symbols, each as likely as the others."""
        for _ in range(count):
            self.say(rng.integers(0, NUM_SYMBOLS, len(self.tokens)), where)
