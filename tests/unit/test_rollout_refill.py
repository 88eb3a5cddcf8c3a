"""Fresh prompts in place of those whose rollouts all have one outcome: nothing accepted is lost, all is counted."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from cases import sequential
from rollouts import GENERATE, INITIAL_STATES, N, Step, TableGenerator, make_args, make_loader, table, train

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.scheduling import Progress, Request
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule, Gate
from openrlhf_ada.core.types import Ledger
from openrlhf_ada.rollout.records import RolloutBatch, StepRecord

CAP = 4
"""Rollouts of a prompt that stays unresolved; a resolved one has N = 2."""


def make_generator(
    rows: int, resolved: Sequence[int], limit: int, *, batch: int = 2, train_batch: int | None = None, **options: Any
) -> TableGenerator:
    """Prompts of the `resolved` rows show both outcomes at once, all others one outcome up to the cap."""
    args = make_args(batch=batch, num_episodes=options.pop("episodes", 1))
    plan = BatchPlan(batch, N, train_batch or batch * N, micro_batch=1, processes=1)
    policy = options.pop("policy", sequential(1, 1, n=N, wave=2, cap=CAP))
    outcome = lambda request, index: float(request.row in resolved and index == 1)  # noqa: E731
    return CachedGenerator(args, make_loader(rows, args), policy, outcome, plan, refill_limit=limit, **options)


class CachedGenerator(TableGenerator):
    """With thousands of batches to come: one result for each index and outcome."""

    answers: ClassVar[dict[tuple[float, int], Any]] = {}

    def answer(self, reader: Any, request: Request, score: float, prompt: str) -> Any:
        if (score, request.index) not in self.answers:
            self.answers[score, request.index] = super().answer(reader, request, score, prompt)
        sample, result = self.answers[score, request.index]
        return replace(sample, key=request.key), result


def one_batch(generator: TableGenerator) -> tuple[RolloutBatch, StepRecord, int, bool]:
    batch, _, consumed, exhausted = generator.generate_samples(**GENERATE)
    assert batch.record is not None
    return batch, batch.record, consumed, exhausted


def rows_of(groups: Sequence[Any]) -> list[int]:
    return [group.row for group in groups]


# -- one batch of two prompts, by hand ----------------------------------------------------------------------------


def test_replacement_takes_the_place_of_the_replaced() -> None:
    generator = make_generator(5, resolved=[1, 2], limit=2)
    batch, record, consumed, exhausted = one_batch(generator)
    assert (rows_of(record.groups), rows_of(record.replaced)) == ([2, 1], [0])
    assert [sample.tag.key for sample in batch] == [2, 2, 1, 1]
    assert (consumed, exhausted) == (3, False)
    assert rows_of(one_batch(generator)[1].groups) == [3, 4], "the next batch goes on after the prompt that was taken"


def test_progress_is_of_the_prompts_that_are_sampled_now() -> None:
    progress: list[Progress] = []
    one_batch(make_generator(5, resolved=[1, 2], limit=2, on_progress=lambda look: progress.append(look())))
    assert [state.done for state in progress if not state.open + state.unresolved] == [2, 1]


def test_samples_of_replaced_prompts_are_unused() -> None:
    """Row 0: 4 rollouts of 1, 2, 3 and 4 tokens, replaced. Rows 1 and 2: 2 rollouts of 1 and 2 tokens, trained."""
    batch, record, *_ = one_batch(make_generator(5, resolved=[1, 2], limit=2))
    assert record.ledger == Ledger(drawn=8, kept=4, unused=4, drawn_tokens=16, kept_tokens=6, unused_tokens=10)
    assert batch.ledger is record.ledger
    (replaced,) = record.replaced
    assert (replaced.group, [s.num_tokens for s in replaced.pool.samples]) == (None, [1, 2, 3, 4])


def test_unresolved_prompts_are_replaced_until_none_is() -> None:
    _, record, consumed, _ = one_batch(make_generator(9, resolved=[5, 6], limit=9))
    assert (rows_of(record.groups), rows_of(record.replaced)) == ([6, 5], [0, 1, 2, 3, 4])
    assert consumed == 7


@pytest.mark.parametrize(("limit", "trained", "replaced"), [(0, [0, 1], []), (1, [2, 1], [0]), (3, [4, 3], [0, 1, 2])])
def test_limit_counts_fresh_prompts(limit: int, trained: list[int], replaced: list[int]) -> None:
    """Nothing is ever resolved: what stands when the limit is reached is trained, with zero advantage."""
    batch, record, consumed, _ = one_batch(make_generator(9, resolved=[], limit=limit))
    assert (rows_of(record.groups), rows_of(record.replaced)) == (trained, replaced)
    assert consumed == 2 + limit
    assert [sample.tag.coefficient for sample in batch] == [0.0] * 4


def test_resolved_batch_takes_nothing_more() -> None:
    generator = make_generator(5, resolved=range(5), limit=5)
    _, record, consumed, _ = one_batch(generator)
    assert (rows_of(record.groups), rows_of(record.replaced), consumed) == ([0, 1], [], 2)


def test_end_of_data_keeps_accepted_and_unresolved_groups() -> None:
    """Rows 0 and 1 want replacing and one prompt is left: it is accepted, row 1 stays, the episode is over."""
    generator = make_generator(3, resolved=[2], limit=5)
    batch, record, consumed, exhausted = one_batch(generator)
    assert (rows_of(record.groups), rows_of(record.replaced)) == ([2, 1], [0])
    assert (len(batch), consumed, exhausted) == (4, 3, True)


def test_batch_with_last_prompts_reports_the_end() -> None:
    batch, record, consumed, exhausted = one_batch(make_generator(2, resolved=[1], limit=5))
    assert (rows_of(record.groups), rows_of(record.replaced)) == ([0, 1], [])
    assert (len(batch), consumed, exhausted) == (4, 2, True)


def test_policy_observes_replaced_prompts_once_a_step() -> None:
    """Leaving them out would make the remembered pass rates those of prompts that are neither hard nor easy."""
    args = make_args()
    policy = make_policy(
        resolve(
            AdaConfig(mode="est", budget=4.0, max_samples=CAP, unresolved="refill"),
            n=args.rollout.n_samples_per_prompt,
            advantage="dr_grpo",
            batch=args.rollout.batch_size,
        )
    )
    batch, record, *_ = one_batch(make_generator(5, resolved=[1, 2], limit=2, policy=policy))
    assert rows_of(record.replaced) == [0]
    state = batch.checkpoint["ada_policy"]["estimated"]["counts"]
    assert (state["step"], state["rows"], state["draws"]) == (1, [0, 1, 2], [4.0, 4.0, 4.0])


def test_prompts_that_a_gate_stops_are_replaced() -> None:
    """Two of each kind are a mixed pilot. At the end of the data a stopped prompt's place trains nothing."""
    outcomes = {0: [1, 1], 1: [1, 0, 0, 0], 2: [0, 1, 1, 1], 3: [0, 0]}
    builder = GroupBuilder(Selection("random", 4, 0.5), "dr_grpo")
    policy = Sequential(ExitRule(0, 0, 0.5, gate=Gate(2, 0.5, 0.5)), 2, 4, builder)
    args, plan = make_args(), BatchPlan(2, 4, 8, 4, 1)
    generator = TableGenerator(args, make_loader(4, args), policy, table(outcomes), plan, refill_limit=5)
    batch, record, *_ = one_batch(generator)
    assert (rows_of(record.groups), rows_of(record.replaced)) == ([2, 1], [0])
    assert [sample.tag.coefficient for sample in batch] == [-0.75, 0.25, 0.25, 0.25, 0.75, -0.25, -0.25, -0.25]
    outcomes[2] = [1, 1]
    generator = TableGenerator(args, make_loader(3, args), policy, table(outcomes), plan, refill_limit=5)
    batch, record, *_ = one_batch(generator)
    assert (rows_of(record.groups), rows_of(record.replaced)) == ([2, 1], [0])
    assert [(s.tag.index, s.tag.coefficient) for s in batch[:4]] == [(0, 0.0), (0, 0.0), (1, 0.0), (1, 0.0)]
    assert (batch.ledger.drawn, batch.ledger.kept, batch.ledger.unused) == (8, 6, 2)


def test_critic_is_asked_for_fresh_prompts_too() -> None:
    args = make_args()
    flags = AdaConfig(mode="est", budget=4.0, max_samples=CAP, unresolved="refill", estimator="critic")
    asked: list[list[str]] = []

    def values(prompts: Sequence[str]) -> list[float]:
        asked.append(list(prompts))
        return [0.5] * len(prompts)

    policy = make_policy(
        resolve(flags, n=args.rollout.n_samples_per_prompt, advantage="dr_grpo", batch=args.rollout.batch_size)
    )
    one_batch(make_generator(5, resolved=[1, 2], limit=2, policy=policy, prompt_values=values))
    assert asked == [["0+1=", "1+1="], ["2+1="]]


# -- a whole run --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Sizes of a run, and which rows show both outcomes."""

    rows: int
    batch: int
    limit: int
    episodes: int
    fill: int
    resolved: tuple[int, ...]

    def generator(self) -> TableGenerator:
        """`fill`: prompts that fill a training batch."""
        sizes = {"batch": self.batch, "train_batch": self.fill * N, "episodes": self.episodes}
        return make_generator(self.rows, self.resolved, self.limit, **sizes)


def patterns(rows: int) -> Iterator[tuple[int, ...]]:
    """Which rows are resolved: every choice of up to three rows, telling ones of more."""
    if rows <= 3:
        for size in range(rows + 1):
            yield from itertools.combinations(range(rows), size)
    else:
        yield from ((), tuple(range(rows)), tuple(range(0, rows, 2)), (rows - 1,))


def cases(rows: int) -> Iterator[Case]:
    for batch, limit, episodes, resolved in itertools.product(range(1, 5), range(6), (1, 2), patterns(rows)):
        yield Case(rows, batch, limit, episodes, batch if limit % 2 else 1, resolved)


def check_run(case: Case, lost: int, generator: TableGenerator, steps: Sequence[Step]) -> None:
    visits = [visit for step in steps for visit in step.visits]
    taken = case.rows * case.episodes
    assert generator.prompts.next_key == generator.consumed == taken, "every prompt of every episode was taken"
    assert visits == [(key, key % case.rows) for key in range(taken - lost)], (
        "and sampled once, or said to be left out"
    )
    assert lost < case.fill, "less than a training batch is left out"
    for step in steps:
        check_step(case, step, is_last=step is steps[-1])


def check_step(case: Case, step: Step, *, is_last: bool) -> None:
    record = step.batch.record
    assert record is not None
    groups, replaced, ledger = record.groups, record.replaced, record.ledger
    assert len(groups) == case.batch or (is_last and len(groups) % case.fill == 0)
    assert len(step.batch) == len(groups) * N == ledger.kept
    assert ledger.drawn == ledger.kept + ledger.unused == sum(len(group.pool) for group in record.all_groups)
    assert len(replaced) <= case.limit
    assert not set(rows_of(replaced)) & set(case.resolved), "only what is unresolved is replaced"
    last_key = step.visits[-1][0]
    if not set(rows_of(groups)) <= set(case.resolved):
        assert len(replaced) == case.limit or (last_key + 1) % case.rows == 0 or is_last, "limit or data ended"


@pytest.mark.slow
@pytest.mark.parametrize("rows", range(10))
def test_no_row_is_lost_or_repeated_by_replacement(rows: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for case in cases(rows):
        caplog.clear()
        generator = case.generator()
        steps = list(train(generator, INITIAL_STATES))
        lost = sum(int(record.args[0]) for record in caplog.records if "do not fill" in record.msg)
        try:
            check_run(case, lost, generator, steps)
        except AssertionError as error:
            raise AssertionError(str(case)) from error


@pytest.mark.parametrize(
    "case",
    [
        Case(5, batch=2, limit=1, episodes=2, fill=1, resolved=(1, 2)),
        Case(5, batch=2, limit=3, episodes=2, fill=1, resolved=(1, 2)),
        Case(4, batch=2, limit=1, episodes=2, fill=1, resolved=()),
        Case(4, batch=2, limit=3, episodes=1, fill=2, resolved=()),
        Case(7, batch=2, limit=3, episodes=2, fill=1, resolved=(0, 2, 4, 6)),
        Case(5, batch=2, limit=0, episodes=1, fill=1, resolved=(0, 1, 2, 3, 4)),
    ],
    ids=str,
)
def test_resumed_run_serves_what_is_left(case: Case) -> None:
    """Also after a step that took the last prompts of an episode, for replacements or for a short last batch."""
    whole = list(train(case.generator(), INITIAL_STATES))
    for cut, step in enumerate(whole, start=1):
        rest = list(train(case.generator(), step.states))
        assert [s.visits for s in rest] == [s.visits for s in whole[cut:]], f"stopped after step {cut}"
