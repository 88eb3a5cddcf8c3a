"""What `prepare-data` writes: Parquet that OpenRLHF trains on, and a card."""

from __future__ import annotations

import filecmp
import glob
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_ada.config import program
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.core.estimators import spread_of_rates
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.reward.mixed import label_of

TRAIN_FILE, ALL_FILE, CARD_FILE = "train.parquet", "all.parquet", "README.md"
DRAWS, POSITIVES = "ada_draws", "ada_positives"
"""Columns that `--ada_known_counts` reads."""

BANDS = {"hard": (0.0, 0.125), "easy": (0.0, 0.313), "all": (0.0, 1.0), "learnable": (1e-9, 1.0 - 1e-9)}
"""`hard` and `easy`: the published cut-offs, at most 2 and 5 of 16. `learnable`: neither none nor all right."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Of one problem: `positives` of `draws` answers were right."""

    problem: Problem
    draws: int
    positives: int
    mean_tokens: float
    truncated: float

    @property
    def pass_rate(self) -> float:
        """Share of right answers."""
        return self.positives / self.draws


def parse_band(text: str) -> tuple[float, float]:
    """A name of BANDS or `low:high`, both included; raises ConfigError."""
    if text in BANDS:
        return BANDS[text]
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(
            "--band", text, f"expected {', '.join(BANDS)}, or two pass rates as low:high", "Try --band 0.1:0.9"
        )
    return low, high


def rows_of(
    difficulties: Sequence[Difficulty], inputs: Mapping[str, Any], labels: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the Parquet files. `inputs`, `labels`: by problem id, of one type each."""
    return [
        {
            "id": d.problem.id,
            "input": inputs[d.problem.id],
            "label": labels[d.problem.id],
            "datasource": d.problem.source,
            DRAWS: d.draws,
            POSITIVES: d.positives,
            "pass_rate": d.pass_rate,
            "mean_tokens": d.mean_tokens,
            "truncated": d.truncated,
        }
        for d in difficulties
    ]


def uniform_labels(problems: Sequence[Problem]) -> dict[str, Any]:
    """Labels by problem id: all text, or all lists of text where one is a list; other values as JSON. Problems that
    have a grader each have it in their label, as the reward `mixed` reads it."""
    if any(problem.reward for problem in problems):
        return {problem.id: label_of(problem.reward or "math", problem.label) for problem in problems}
    as_lists = any(isinstance(problem.label, list | tuple) for problem in problems)
    return {
        problem.id: [_text(one) for one in _list(problem.label)] if as_lists else _text(problem.label)
        for problem in problems
    }


def _list(label: Any) -> Sequence[Any]:
    return label if isinstance(label, list | tuple) else [label]


def _text(label: Any) -> str:
    return label if isinstance(label, str) else json.dumps(label, ensure_ascii=False, default=str)


def write_parquet(rows: list[dict[str, Any]], path: Path) -> Path:
    """Write the rows, unless the file has them: `datasets` caches files by their time."""
    import datasets

    draft = path.with_suffix(".tmp")
    datasets.Dataset.from_list(rows).to_parquet(str(draft))
    if path.exists() and filecmp.cmp(draft, path, shallow=False):
        draft.unlink()
    else:
        draft.replace(path)
    return path


def check_counts(spec: str, *, flag: str) -> None:
    """Every data set of a list must be a Parquet file with counts; raises DataError."""
    import pyarrow.parquet

    for path in map(str.strip, spec.split(",")):
        files = glob.glob(path) if path.endswith(".parquet") else []
        names = pyarrow.parquet.read_schema(files[0]).names if files else []
        if not {DRAWS, POSITIVES} <= set(names):
            made = f"make one with `{program.called()} prepare-data`"
            raise DataError(f"{flag}: {path} is no Parquet file with columns {DRAWS} and {POSITIVES}: {made}")


def measured_rates(path: str, *, flag: str) -> tuple[tuple[float, ...], float | None]:
    """(pass rates spread as those of the rows, mean tokens of an answer if recorded) of a file of prepare-data.

    Raises DataError for another file.
    """
    import pyarrow.parquet

    check_counts(path, flag=flag)
    table = pyarrow.parquet.read_table(path)
    draws, positives = (np.asarray(table[name], dtype=float) for name in (DRAWS, POSITIVES))
    if not draws.sum():
        raise DataError(
            f"{flag}: {path} has no row with an answer ({DRAWS}): measure it with `{program.called()} prepare-data`"
        )
    rates = spread_of_rates(positives, draws)
    lengths = np.asarray(table["mean_tokens"], dtype=float) if "mean_tokens" in table.column_names else np.empty(0)
    return tuple(rates.tolist()), float(np.nanmean(lengths)) if np.isfinite(lengths).any() else None


def write_card(
    folder: Path, *, kept: Sequence[Difficulty], everything: Sequence[Difficulty], facts: Mapping[str, Any], flags: str
) -> Path:
    """A dataset card: what it is, how it was made, how hard it is, how to train on it. `facts`: name -> value."""
    sources = Counter(d.problem.source for d in kept)
    rows = [(name, value) for name, value in facts.items()]
    rows += [(f"from {name}", f"{count:,} problems") for name, count in sources.most_common()]
    text = f"""---
configs: [{{config_name: default, data_files: {TRAIN_FILE}}}]
---
# {len(kept)} problems with measured pass rates

Made by `openrlhf-ada prepare-data`. Each problem has the number of answers that were sampled (`{DRAWS}`), how many
were right (`{POSITIVES}`), and the pass rate. Pass rates are of the model below, at its temperature and length;
another model's are others.

| | |
|---|---|
{_lines(rows)}

| pass rate | all problems | kept |
|---|---|---|
{_lines(_spread(everything, kept))}

Train on it:

```
{flags}
```
"""
    path = folder / CARD_FILE
    path.write_text(text, encoding="utf-8")
    return path


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


EDGES = (0.0, 0.125, 0.313, 0.5, 0.75, 1.0)


def _spread(everything: Sequence[Difficulty], kept: Sequence[Difficulty]) -> list[tuple[str, int, int]]:
    """(range of pass rates, problems, how many of them are kept)."""
    bands = [(-1.0, 0.0, "0 (never right)")]
    bands += [(low, min(high, 1 - 1e-9), f"{low:g} to {high:g}") for low, high in pairwise(EDGES)]
    bands.append((1 - 1e-9, 1.0, "1 (always right)"))

    def count(group: Sequence[Difficulty], low: float, high: float) -> int:
        return sum(low < d.pass_rate <= high for d in group)

    return [(name, count(everything, low, high), count(kept, low, high)) for low, high, name in bands]
