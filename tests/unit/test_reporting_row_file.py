"""Rows are written whole or not at all, and a run whose record is lost says so at the next one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.reporting.jsonl import RecordLostError, RowFile, read_rows
from openrlhf_ada.reporting.run_log import METRICS_FILE, SAMPLES_FILE, RunLog

ROWS = [{"step": 1, "text": "å" * 10}, {"step": 2, "text": "b"}]


def test_rows_are_there_at_once_and_after_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 0}\n')
    file = RowFile(path)
    file.append(ROWS)
    assert [row for _, row in read_rows(path)] == [{"step": 0}, *ROWS]
    file.append([])
    file.close()


class FullDisk:
    """A file that takes so many bytes, some at a time, and then none."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, content: Any) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._file.write(bytes(content[: min(7, self._room)]))
        self._room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 7, 20, 50])
def test_a_full_disk_leaves_whole_rows_and_one_message(room: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    file = RowFile(path)
    file.append(ROWS)
    whole = path.read_bytes()
    file._file = FullDisk(file._file, room)  # type: ignore[assignment]
    with pytest.raises(
        RecordLostError, match=r"rows.jsonl cannot be written \(No space left on device; \d+ MiB are free"
    ):
        file.append(ROWS)
    assert path.read_bytes() == whole


def test_a_disk_that_takes_little_at_a_time_gets_all(tmp_path: Path) -> None:
    file = RowFile(path := tmp_path / "rows.jsonl")
    file._file = FullDisk(file._file, 10_000)  # type: ignore[assignment]
    file.append(ROWS)
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.write_text("")


def folder_removed(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("lose", [removed, replaced, folder_removed])
def test_a_record_that_is_gone_is_noticed_at_the_next_row(lose: Callable[[Path], None], tmp_path: Path) -> None:
    """Without this a run goes on for days into a file that nobody will ever see."""
    for name in (METRICS_FILE, SAMPLES_FILE):
        log = RunLog(tmp_path / name.partition(".")[0], {})
        log.log_step(1, {"loss": 1.0})
        lose(log.run_dir / name)
        with pytest.raises(RecordLostError, match=r"was removed or replaced.*--ada_run_dir"):
            log.log_step(2, {"loss": 1.0}) if name == METRICS_FILE else log.log_samples(2, [])
        log.close()
