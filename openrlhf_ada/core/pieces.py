"""The method as tables of functions: baselines, corrections, selections, exits, allocations and objectives by name.

A piece is one short function. Beside it stands, as data, what it needs of the other pieces and what it lacks for them.
Flags offer the names of a table; `config.method_rules` refuses two pieces of which one lacks what the other needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

F = TypeVar("F")


class Need(Enum):
    """What a piece may need, in the words of a refusal: "it needs ..."."""

    UNBIASED_RATE = "the pool's pass rate without stopping bias"
    PREDICTION = "a pass rate predicted before sampling"
    WEIGHT = "the weight f' of the prompt"
    COUNTED_RATE = "a pass rate predicted from counts"
    CRITICS_RATE = "a pass rate predicted by a critic"
    PLAIN_ADVANTAGES = "advantages that carry no weight yet"
    WHOLE_POOL = "a baseline of all rollouts that were drawn"
    NO_BASELINE = "no baseline"
    LOG_OBJECTIVE = "the log objective, the only one whose gradient is a mean of positives"
    UNSHAPED_REWARDS = "rewards that weigh right answers alike"
    POSITIVES_KEPT = "positives in the group wherever the pool has some"
    FAIR_OUTCOMES = "a fair sample of each outcome"
    ONE_GROUP_SIZE = "groups that are down-sampled to one size"
    SILENT_UNRESOLVED = "prompts of one outcome to have no gradient"
    COUNTS_AS_WEIGHT = "numbers of rollouts that weigh prompts as the paper's do"
    SUMMED_TOKENS = "a loss that counts every token of a sample alike"


class Trait(Enum):
    """What a piece declares of itself, so that its weights can be enumerated.

    Of a selection, one of the first three. Without it no weights are computed. Of a way to choose prompts, what it
    reads besides pass rates.
    """

    FAIR_SAMPLE = "every n samples of the pool are kept with the same chance"
    OUTCOMES_BY_COUNT = "with scores of 0 and 1, how many of each are kept follows from how many the pool has of each"
    BEST_AND_FAIR = "the best sample is kept, and every n - 1 of the others with the same chance"
    READS_VISITS = "what a prompt's last visits showed"


@dataclass(frozen=True, slots=True)
class Piece(Generic[F]):
    """One entry of a table. `lacks` says why, in words that follow the piece's name: "may keep none"."""

    function: F
    needs: frozenset[Need] = frozenset()
    lacks: Mapping[Need, str] = field(default_factory=dict[Need, str])
    traits: frozenset[Trait] = frozenset()


class Table(dict[str, Piece[F]]):
    """Pieces by name, in the order in which they were added."""

    def add(
        self,
        name: str,
        *,
        needs: Iterable[Need] = (),
        lacks: Mapping[Need, str] | None = None,
        traits: Iterable[Trait] = (),
    ) -> Callable[[F], F]:
        """Decorator: the function is the piece `name`."""

        def register(function: F) -> F:
            self[name] = Piece(function, frozenset(needs), lacks or {}, frozenset(traits))
            return function

        return register
