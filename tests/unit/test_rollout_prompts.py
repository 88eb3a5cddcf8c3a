"""R3: every row of the data is served exactly once per episode, whatever the sizes; what is not, is said.

OpenRLHF's replay buffer drops samples that do not fill a training batch. An incomplete batch is therefore carried over
to the next episode, and at the very end what cannot be trained is left out. Prompts in place of unresolved ones are in
test_rollout_refill.py.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from rollouts import make_args, make_loader

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.host.generator import number_rows
from openrlhf_ada.rollout.prompts import PromptRequest, PromptSource, take_prompts

Batch = tuple[list[int], list[str], list[str], list[Any]]


class Dataset:
    """The part of OpenRLHF's data set that rows are numbered in."""

    def __init__(self, num_rows: int) -> None:
        self.datasources: list[Any] = ["math"] * num_rows

    def __len__(self) -> int:
        return len(self.datasources)


class Loader:
    """What OpenRLHF's loader hands out: batches of one, another order in every episode."""

    def __init__(self, num_rows: int, seed: int | None = None) -> None:
        self.dataset = Dataset(num_rows)
        self.sampler = None
        self.random = None if seed is None else random.Random(seed)

    def __iter__(self) -> Iterator[Batch]:
        order = list(self.dataset.datasources)
        if self.random:
            self.random.shuffle(order)
        for row in order:
            yield [row], [f"prompt {row}"], [f"label {row}"], [None]


def make_source(loader: Any, *, batch: int, episodes: int, n: int = 2, train_batch: int | None = None) -> PromptSource:
    plan = BatchPlan(batch, n, train_batch or batch * n, micro_batch=1, processes=1)
    return PromptSource(loader, plan, seed=0, num_episodes=episodes)


def serve_all(source: PromptSource, episodes: int) -> list[list[PromptRequest]]:
    """The batches that OpenRLHF's loop would train (PPOTrainer.fit)."""
    batches = []
    for _ in range(episodes):
        while True:
            requests, exhausted = source.next_batch()
            if requests:
                batches.append(requests)
            if exhausted:
                break
    return batches


def test_order_is_that_of_the_seed_and_the_episode() -> None:
    """Whatever happened before: OpenRLHF's loader is seeded at random when it is made."""

    def orders(seed: int) -> list[list[int]]:
        args = make_args(num_episodes=2)
        plan = BatchPlan(8, 2, 16, micro_batch=1, processes=1)
        source = PromptSource(make_loader(8, args, shuffle=True), plan, seed, num_episodes=2)
        return [[request.row for request in batch] for batch in serve_all(source, 2)]

    first, second = orders(1)
    assert orders(1) == [first, second]
    assert sorted(first) == sorted(second) == list(range(8)) and first != second
    assert orders(5)[0] != first


def reported_lost(caplog: pytest.LogCaptureFixture) -> int:
    return sum(int(record.args[0]) for record in caplog.records if "do not fill" in record.msg)


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_once_per_episode_or_reported(shuffle: bool, caplog: pytest.LogCaptureFixture) -> None:
    """All data sizes 0..7, rollout batches 1..4, episodes 1..3, and training batches that divide the rollouts."""
    caplog.set_level(logging.WARNING)
    for rows, batch, episodes, n in itertools.product(range(8), range(1, 5), range(1, 4), (1, 2)):
        for train_batch in (size for size in range(1, batch * n + 1) if batch * n % size == 0):
            caplog.clear()
            case = f"{rows} rows, batch {batch}, {episodes} episodes, n {n}, training batch {train_batch}"
            source = make_source(
                Loader(rows, seed=0 if shuffle else None), batch=batch, episodes=episodes, n=n, train_batch=train_batch
            )
            batches = serve_all(source, episodes)
            served = [request for requests in batches for request in requests]

            lost = rows * episodes - len(served)
            assert lost == reported_lost(caplog), case
            assert lost * n < math.lcm(train_batch, n), f"less than whole groups need to fill up is lost: {case}"
            assert [r.key for r in served] == list(range(len(served))), f"keys are unique and ascending: {case}"
            assert source.next_key == rows * episodes, f"everything was taken from the loader: {case}"
            assert all(len(requests) == batch for requests in batches[:-1]), f"only the last may be short: {case}"
            assert all(len(requests) * n % train_batch == 0 for requests in batches), f"nothing is dropped: {case}"

            visits = Counter(r.row for r in served)
            assert all(visits[row] <= episodes for row in range(rows)), case
            assert sum(episodes - visits[row] for row in range(rows)) == lost, case
            assert all(r.prompt == f"prompt {r.row}" and r.label == f"label {r.row}" for r in served)


def test_incomplete_batch_waits_for_the_next_episode() -> None:
    """3 rows in batches of 2, twice: 01, 2|0, 12. Nothing is lost and no batch is short."""
    source = make_source(Loader(3), batch=2, episodes=2)
    assert [[r.row for r in b] for b in serve_all(source, 2)] == [[0, 1], [2, 0], [1, 2]]


def test_small_data_fills_a_batch_over_episodes(caplog: pytest.LogCaptureFixture) -> None:
    batches = serve_all(make_source(Loader(1), batch=3, episodes=3), 3)
    assert [[r.row for r in b] for b in batches] == [[0, 0, 0]]
    assert reported_lost(caplog) == 0


def test_what_cannot_fill_a_batch_is_left_out_with_note(caplog: pytest.LogCaptureFixture) -> None:
    """5 prompts x 2 in batches of 4 prompts, training batches of 4 samples: the last prompt is left out."""
    batches = serve_all(make_source(Loader(5), batch=4, episodes=1, n=2, train_batch=4), 1)
    assert [[r.row for r in b] for b in batches] == [[0, 1, 2, 3]]
    assert "the last 1 prompts of the data do not fill a training batch of 4 rollouts" in caplog.text


def test_empty_data_serves_nothing_and_ends() -> None:
    assert serve_all(make_source(Loader(0), batch=4, episodes=3), 3) == []


def test_same_row_twice_has_two_keys() -> None:
    (first,), (second,) = serve_all(make_source(Loader(1), batch=1, episodes=2), 2)
    assert (first.row, second.row) == (0, 0)
    assert (first.key, second.key) == (0, 1)


# -- take_prompts and number_rows ---------------------------------------------------------------------------------


def numbered(num_rows: int) -> Iterator[Batch]:
    loader = Loader(num_rows)
    number_rows(loader.dataset)
    return iter(loader)


def test_take_prompts_says_when_the_loader_ended() -> None:
    loader = numbered(3)
    assert [r.row for r in take_prompts(loader, 2, first_key=10)[0]] == [0, 1]
    requests, ended = take_prompts(loader, 2, first_key=12)
    assert ([(r.key, r.row) for r in requests], ended) == ([(12, 2)], True)
    assert take_prompts(loader, 2, first_key=13) == ([], True)


def test_exact_take_does_not_reach_the_end() -> None:
    loader = numbered(2)
    assert take_prompts(loader, 2, first_key=0)[1] is False
    assert take_prompts(loader, 2, first_key=2) == ([], True)


def test_take_prompts_refuses_a_ragged_batch() -> None:
    with pytest.raises(ValueError, match="shorter"):
        take_prompts(iter([([0, 1], ["a"], ["b"], [None])]), 2, first_key=0)


def test_number_rows_gives_every_row_its_position() -> None:
    dataset = Dataset(3)
    number_rows(dataset)
    assert dataset.datasources == [0, 1, 2]


# -- going on, and prompts beyond the batch -----------------------------------------------------------------------


def test_restored_source_continues_after_consumed_prompts() -> None:
    source = make_source(Loader(4), batch=2, episodes=3)
    source.restore(consumed=6, episode=1)
    assert [r.key for r in source.next_batch()[0]] == [6, 7]
    assert (source.next_key, source.episodes_done) == (8, 1)


def test_spare_prompts_are_next_with_next_keys() -> None:
    source = make_source(Loader(5), batch=2, episodes=1)
    source.next_batch()
    spare, exhausted = source.take_extra(2)
    assert ([(r.key, r.row) for r in spare], exhausted) == ([(2, 2), (3, 3)], False)
    spare, exhausted = source.take_extra(2)
    assert ([(r.key, r.row) for r in spare], exhausted) == ([(4, 4)], True), "as many as there are"
    assert source.episodes_done == 1


def test_no_spare_prompt_between_episodes() -> None:
    """A batch that the last prompts of an episode fill up must not be refilled from the next one, unshuffled."""
    source = make_source(Loader(3), batch=2, episodes=2)
    assert source.take_extra(1) == ([], True)
    source.next_batch()
    source.next_batch()
    assert source.take_extra(1) == ([], True)
    assert source.next_key == 3
