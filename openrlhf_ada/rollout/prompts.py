"""Prompts from the data loader, each with an identity that its rollouts keep."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.choice import Choice, PromptChooser
from openrlhf_ada.core.types import PromptKey, PromptPool
from openrlhf_ada.host.generator import number_rows, seed_order

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt visit. `key` counts visits since the start of the run; `row` is the position in the training set.
    `choice`: how it was chosen, with --ada_candidates."""

    key: PromptKey
    row: int
    prompt: str
    label: str
    image: Any
    choice: Choice | None = None


def take_prompts(loader: Iterator[Any], count: int, first_key: PromptKey) -> tuple[list[PromptRequest], bool]:
    """Up to `count` prompts and whether the loader ended before that. Needs `number_rows` on the loader's dataset."""
    requests: list[PromptRequest] = []
    for rows, prompts, labels, images in loader:
        for row, prompt, label, image in zip(rows, prompts, labels, images, strict=True):
            requests.append(PromptRequest(first_key + len(requests), int(row), prompt, label, image))
        if len(requests) >= count:
            return requests, False
    return requests, True


class PromptSource:
    """Batches of prompts for training, over all episodes; no prompt is lost or comes twice.

    OpenRLHF's replay buffer drops samples that do not fill a training batch. So the incomplete last batch of an
    episode is completed by the next episode. After the last episode, prompts that cannot fill a training batch are not
    sampled, and a warning says so.
    """

    def __init__(self, loader: Any, plan: BatchPlan, seed: int, num_episodes: int) -> None:
        number_rows(loader.dataset)
        self.next_key: PromptKey = 0
        self.episodes_done = 0
        self._source = loader
        self._plan = plan
        self._seed = seed
        self._num_episodes = num_episodes
        self._iterator: Any = None
        self._in_episode = False
        self._waiting: list[PromptRequest] = []

    def restore(self, *, consumed: int, episode: int) -> None:
        """Continue after `consumed` prompts, in this episode."""
        self.next_key = consumed
        self.episodes_done = episode

    def next_batch(self) -> tuple[list[PromptRequest], bool]:
        """The next batch and whether the episode ends with it. No prompts if an incomplete batch waits."""
        if not self._in_episode:
            self._begin_episode()
            self._in_episode = True
        taken, exhausted = self._take(self._plan.prompts - len(self._waiting))
        requests, self._waiting = self._waiting + taken, []
        if not exhausted:
            return requests, False
        if self.episodes_done < self._num_episodes:
            self._waiting = requests
            return [], True
        usable = self._plan.trainable(len(requests))
        if usable < len(requests):
            logger.warning(
                "the last %d prompts of the data do not fill a training batch of %d rollouts and are not sampled",
                len(requests) - usable,
                self._plan.train_batch,
            )
        return requests[:usable], True

    def take_extra(self, count: int) -> tuple[list[PromptRequest], bool]:
        """Up to `count` prompts of this episode beyond the batch, and whether the episode ends with them."""
        return self._take(count) if self._in_episode else ([], True)

    def repeat_prompts(self, requests: Sequence[PromptRequest], count: int) -> list[PromptRequest]:
        """`count` of these prompts once more, as new visits, for an episode that has no others left."""
        again = [replace(request, key=self.next_key + i) for i, request in enumerate(islice(cycle(requests), count))]
        self.next_key += len(again)
        return again

    def end_step(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        """A batch was sampled to the end; returns what to log of how its prompts were chosen."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds beside the position of OpenRLHF's loader."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError for a state of chosen prompts, whose run has not moved OpenRLHF's loader."""
        if state:
            raise ValueError(
                "the checkpoint holds a queue of chosen prompts (--ada_candidates); resume with the --ada_... flags "
                "that it was written with"
            )

    def _take(self, count: int) -> tuple[list[PromptRequest], bool]:
        taken, exhausted = self._next(count)
        self.next_key += len(taken)
        if exhausted:
            self._in_episode = False
            self.episodes_done += 1
        return taken, exhausted

    def _begin_episode(self) -> None:
        seed_order(self._source, self._seed + self.episodes_done)
        self._iterator = iter(self._source)

    def _next(self, count: int) -> tuple[list[PromptRequest], bool]:
        return take_prompts(self._iterator, count, self.next_key)


class ChosenPrompts(PromptSource):
    """The same for prompts that a chooser takes (--ada_candidates). An episode samples as many prompts as the data
    has rows, some of them more than once and others not; no batch has a row twice."""

    def __init__(self, loader: Any, plan: BatchPlan, seed: int, num_episodes: int, chooser: PromptChooser) -> None:
        super().__init__(loader, plan, seed, num_episodes)
        self._chooser = chooser
        self._left = 0  # prompts to come in this episode
        self._rows_in_batch: set[int] = set()

    def next_batch(self) -> tuple[list[PromptRequest], bool]:
        self._rows_in_batch = {request.row for request in self._waiting}
        return super().next_batch()

    def end_step(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        return self._chooser.end_step(pools)

    def state_dict(self) -> dict[str, Any]:
        return {"left": self._left if self._in_episode else None, "chooser": self._chooser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:
            raise ValueError(
                "the checkpoint has no queue of prompts: its run chose none. Resume without --ada_candidates, or "
                "start without the checkpoint"
            )
        self._in_episode, self._left = state["left"] is not None, state["left"] or 0
        self._chooser.load_state_dict(state["chooser"])

    def _begin_episode(self) -> None:
        self._left = self._chooser.num_rows

    def _next(self, count: int) -> tuple[list[PromptRequest], bool]:
        fresh = self._chooser.num_rows - len(self._rows_in_batch)
        choices = self._chooser.take(min(count, self._left, fresh), self._rows_in_batch)
        self._rows_in_batch |= {choice.row for choice in choices}
        exhausted = self._left < count
        self._left -= len(choices)
        taken: list[PromptRequest] = []
        for key, choice in enumerate(choices, self.next_key):
            _, prompt, label, image = self._source.dataset[choice.row]
            taken.append(PromptRequest(key, choice.row, prompt, label, image, choice))
        return taken, exhausted
