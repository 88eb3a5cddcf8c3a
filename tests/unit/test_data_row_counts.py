"""Rows of data sets that are not loaded: files, and data sets of the hub by what their card says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ada.data.checks import DataError
from openrlhf_ada.data.row_counts import count_rows

FLAG = "--data.prompt_dataset"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """One data set has a card with splits, one has none, one does not exist. Nobody is asked over the network."""

    def builder(name: str, *, data_dir: str | None = None) -> Any:
        if name == "org/gone":
            raise datasets.exceptions.DatasetNotFoundError("no such data set")
        if name == "org/away":
            raise ConnectionError("cannot be reached")
        splits = {"train": SimpleNamespace(num_examples=7 if data_dir is None else 5)}
        return SimpleNamespace(info=SimpleNamespace(splits=splits if name == "org/known" else None))

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)


def parquet(folder: Path, rows: int, name: str = "x.parquet") -> Path:
    pq.write_table(pa.table({"input": [f"{i}+1=" for i in range(rows)]}), folder / name)
    return folder / name


def test_files_are_counted(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"input": "a"}\n\n{"input": "b"}\n')
    assert count_rows(f"{parquet(tmp_path, 4)}, {lines}", "train", FLAG) == 6
    parquet(tmp_path, 3, "y.parquet")
    assert count_rows(f"{tmp_path}/*.parquet", "train", FLAG) == 7
    (tmp_path / "z.csv").write_text("input\na\n")
    assert count_rows(f"{lines},{tmp_path / 'z.csv'}", "train", FLAG) == 3
    with pytest.raises(DataError, match=r"holds data files of several formats \(csv, json, parquet\)"):
        count_rows(str(tmp_path), "train", FLAG)
    lines.unlink()
    (tmp_path / "z.csv").unlink()
    assert count_rows(str(tmp_path), "train", FLAG) == -1


def test_broken_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"^--data.prompt_dataset: .*x.parquet"):
        count_rows(str(tmp_path / "x.parquet"), "train", FLAG)


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        *(("org/known", 7), ("org/known@part", 5), ("org/known,org/known@part", 12)),
        *(("org/silent", -1), ("org/gone", -1), ("org/away", -1), ("org/known,org/gone", -1)),
        ("https://host/x.jsonl", -1),
    ],
)
def test_hub_data_sets_say_it_in_their_card(hub: None, spec: str, rows: int) -> None:
    assert count_rows(spec, "train", FLAG) == rows


def test_another_split_is_unknown(hub: None) -> None:
    assert count_rows("org/known", "test", FLAG) == -1


def test_too_many_candidates_of_a_hub_data_set_are_refused_before_a_start(
    hub: None, refusal: Callable[[dict[str, str | None]], Exception]
) -> None:
    flags = {"--ada_mode": "seq", "--algo.advantage.estimator": "dr_grpo", FLAG: "org/known", "--ada_candidates": "4"}
    error = refusal(flags | {"--rollout.batch_size": "2", "--train.batch_size": "8"})
    assert str(error).startswith("--ada_candidates is 4: ")
    assert "these are 8 different prompts, and the data has 7. Use --ada_candidates 3" in str(error)
