"""What `prepare-data` writes: Parquet that OpenRLHF trains on, and a card."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_ada.config import program
from openrlhf_ada.data.difficulty import Difficulty
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.reward.mixed import label_of

TRAIN_FILE, ALL_FILE, CARD_FILE = "train.parquet", "all.parquet", "README.md"
DRAWS, POSITIVES = "ada_draws", "ada_positives"
"""Columns that `--ada_known_counts` reads."""

PRIOR_DRAWS = 2.0
"""Answers that the mean pass rate of all rows counts for in a row's own."""


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
            "pass_rate_low": d.interval[0],
            "pass_rate_high": d.interval[1],
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


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    import datasets

    draft = path.with_name(f".{path.name}.tmp")
    datasets.Dataset.from_list([dict(row) for row in rows]).to_parquet(str(draft))
    draft.replace(path)
    return path


def check_counts(spec: str, *, flag: str, otherwise: str = ", or leave --ada_known_counts out") -> None:
    """Every data set of a list must be a Parquet file with counts; raises DataError.

    `otherwise`: what else its user could do.
    """
    import pyarrow.parquet

    for path in map(str.strip, spec.split(",")):
        files = glob.glob(path) if path.endswith(".parquet") else []
        names = pyarrow.parquet.read_schema(files[0]).names if files else []
        if not {DRAWS, POSITIVES} <= set(names):
            raise DataError(
                f"{flag}: {path} is no Parquet file with the columns {DRAWS} and {POSITIVES}: make one with "
                f"`{program.called()} prepare-data`{otherwise}"
            )


def measured_rates(path: str, *, flag: str) -> tuple[tuple[float, ...], float | None]:
    """(pass rate of each row, mean tokens of an answer if recorded) of a Parquet file of prepare-data.

    A rate is a posterior mean whose prior, the mean of all rows, counts for PRIOR_DRAWS answers: rows that were never
    right are not taken for hopeless. Raises DataError for another file.
    """
    import pyarrow.parquet

    check_counts(path, flag=flag, otherwise="")
    table = pyarrow.parquet.read_table(path)
    draws, positives = (np.asarray(table[name], dtype=float) for name in (DRAWS, POSITIVES))
    if not draws.sum():
        raise DataError(
            f"{flag}: {path} has no row with an answer ({DRAWS}): measure it with `{program.called()} prepare-data`"
        )
    rates = (positives + PRIOR_DRAWS * positives.sum() / draws.sum()) / (draws + PRIOR_DRAWS)
    lengths = np.asarray(table["mean_tokens"], dtype=float) if "mean_tokens" in table.column_names else np.empty(0)
    return tuple(rates.tolist()), float(np.nanmean(lengths)) if np.isfinite(lengths).any() else None


def write_card(
    folder: Path, *, kept: Sequence[Difficulty], everything: Sequence[Difficulty], facts: Mapping[str, Any], flags: str
) -> Path:
    """A dataset card: what it is, how it was made, how hard it is, how to train on it. `facts`: name -> value."""
    sources = Counter(d.problem.source for d in kept)
    lines = [
        "---",
        f"size_categories: [{_size_category(len(kept))}]",
        "configs: [{config_name: default, data_files: train.parquet}]",
        "---",
        f"# {len(kept)} problems with measured pass rates",
        "",
        "Made by `openrlhf-ada prepare-data`. Each problem has the number of answers that were sampled "
        f"(`{DRAWS}`), how many were right (`{POSITIVES}`), and the pass rate with Wilson's 95 % interval.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        *(f"| from {name} | {count:,} problems |" for name, count in sources.most_common()),
        "",
        "| pass rate | all problems | kept |",
        "|---|---|---|",
        *_table(everything, kept),
        "",
        "Pass rates are of the model above, at its temperature and length; another model's are others.",
        "",
        "Train on it:",
        "",
        "```",
        flags,
        "```",
        "",
    ]
    path = folder / CARD_FILE
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _size_category(count: int) -> str:
    for limit, name in ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M")):
        if count < limit:
            return name
    return "n>1M"


EDGES = (0.0, 0.125, 0.313, 0.5, 0.75, 1.0)


def _table(everything: Sequence[Difficulty], kept: Sequence[Difficulty]) -> list[str]:
    rows = [("0 (never right)", lambda p: p == 0)]
    rows += [
        (f"{low:g} to {high:g}", lambda p, low=low, high=high: low < p <= high and p < 1)
        for low, high in pairwise(EDGES)
    ]
    rows.append(("1 (always right)", lambda p: p == 1))
    return [
        f"| {name} | {sum(holds(d.pass_rate) for d in everything):,} | {sum(holds(d.pass_rate) for d in kept):,} |"
        for name, holds in rows
    ]
