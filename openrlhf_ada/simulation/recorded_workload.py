"""The sampling of a recorded run, to be repeated on engines in virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from openrlhf_ada.core.types import PromptKey
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.simulation.workload import RecordedRollout


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Rollouts of every prompt visit, by its key, in index order; `rows`: which rows of the data these are."""

    step: int
    rollouts: Mapping[PromptKey, Sequence[RecordedRollout]]
    rows: Mapping[PromptKey, int]

    def enlarged(self, num_prompts: int, seed: int) -> RecordedStep:
        """So many prompts, drawn from these with replacement."""
        keys = list(self.rollouts)
        chosen = np.random.default_rng([seed, self.step]).integers(len(keys), size=num_prompts)
        return RecordedStep(
            self.step,
            {i: self.rollouts[keys[k]] for i, k in enumerate(chosen.tolist())},
            {i: self.rows[keys[k]] for i, k in enumerate(chosen.tolist())},
        )


def recorded_steps(run: Run) -> Iterator[RecordedStep]:
    """Raises ValueError where the run has no record of its rollouts."""
    found = False
    for step, samples in groupby(run.samples(), key=lambda sample: sample["step"]):
        found = True
        rollouts: dict[PromptKey, list[RecordedRollout]] = defaultdict(list)
        rows: dict[PromptKey, int] = {}
        for sample in samples:
            rollouts[sample["key"]].append(RecordedRollout(sample["metric"], sample["reward"], sample["tokens"]))
            rows[sample["key"]] = int(sample["prompt_id"])
        yield RecordedStep(step, rollouts, rows)
    if not found:
        raise ValueError(f"{run.run_dir} has no record of single rollouts: it was not made with --ada_mode seq or est")
