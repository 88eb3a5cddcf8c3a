"""Which grader the answers to a row get, with `--reward.remote_url mixed`: the row says it, or its data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.questions import MISSING, UnfitError, value_at
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.names import why_no_grader

KEY = "reward"


class UnknownRewardError(UnfitError):
    """A row that names no grader, or one that is not there. It is refused, and never left out."""


@dataclass(frozen=True, slots=True)
class RowRewards:
    """`key`: the column that names a grader, or a kind of problem; None for no column. `names`: grader by what stands
    in that column, and by data set as the command line names it. `flags`: how the flags of both begin."""

    key: str | None = KEY
    names: Mapping[str, str] = field(default_factory=dict)
    flags: str = "--ada_"

    def of(self, row: Mapping[str, Any], source: str) -> str:
        """The grader of a row of this data set; raises UnknownRewardError, in words that follow the row."""
        found = MISSING if self.key is None else value_at(row, self.key)
        if found is MISSING or found is None:
            if source in self.names:
                return self.checked(self.names[source])
            raise UnknownRewardError(
                f"names no grader in the column {self.key!r}: add it, name another ({self.flags}reward_key), or name "
                f"the grader of the whole data set ({self.flags}reward_map {source}=math)"
            )
        return self.checked(self.names.get(str(found), str(found)))

    def split(self, row: Mapping[str, Any], label: Any, source: str) -> tuple[str, Any]:
        """(grader, its own label). What `prepare-data` writes holds both in the label."""
        named = named_label(label)
        return (self.checked(named[0]), named[1]) if named else (self.of(row, source), label)

    def checked(self, name: str) -> str:
        """The name; raises UnknownRewardError."""
        problem = why_no_grader(name)
        if problem:
            raise UnknownRewardError(
                f": {problem.rstrip('.')}, or map it to a grader ({self.flags}reward_map {name}=math)"
            )
        return name


def parse_map(text: str | None, flag: str) -> dict[str, str]:
    """`VALUE=GRADER,VALUE=GRADER` as a dictionary; raises ConfigError."""
    names: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        value, is_pair, name = part.strip().rpartition("=")
        if not (value and is_pair and name):
            raise ConfigError(
                flag, text, f"{part!r} is no pair VALUE=GRADER", f"Try {flag} openai/gsm8k=math,taco=code"
            )
        problem = why_no_grader(name)
        if problem:
            raise ConfigError(flag, text, problem.rstrip("."), "Correct the name")
        names[value] = name
    return names
