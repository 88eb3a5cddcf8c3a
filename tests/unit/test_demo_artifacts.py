"""Generated files and directories: complete or absent, built once, and never in place of somebody's work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from openrlhf_ada.demo.artifacts import MARKER, build_directory, write_jsonl


def writes(text: str) -> Callable[[Path], None]:
    return lambda directory: (directory / "weights").write_text(text) and None


def must_not_build(directory: Path) -> None:
    raise AssertionError("built again")


def leftovers(folder: Path, *expected: str) -> set[str]:
    return {path.name for path in folder.iterdir()} - set(expected)


def test_a_complete_build_is_returned_at_once(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "model"
    assert build_directory(out, {"seed": 1}, writes("one")) == out
    assert build_directory(out, {"seed": 1}, must_not_build) == out
    assert (out / "weights").read_text() == "one"
    assert not leftovers(out.parent, "model")


def test_failed_build_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        build_directory(tmp_path / "model", {}, must_not_build)
    assert not leftovers(tmp_path)


def test_another_recipe_replaces_the_build(tmp_path: Path) -> None:
    out = tmp_path / "model"
    build_directory(out, {"seed": 1}, writes("one"))
    build_directory(out, {"seed": 2}, writes("two"))
    assert (out / "weights").read_text() == "two"
    assert not leftovers(tmp_path, "model")


@pytest.mark.parametrize("damage", ["cut", "removed", "marker"])
def test_a_damaged_build_is_built_again(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "model"
    build_directory(out, {}, writes("one"))
    if damage == "removed":
        (out / "weights").unlink()
    else:
        (out / ("weights" if damage == "cut" else MARKER)).write_text("o")
    build_directory(out, {}, writes("one"))
    assert (out / "weights").read_text() == "one"


def test_files_we_did_not_write_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=re.escape(str(tmp_path))):
        build_directory(tmp_path, {}, must_not_build)
    with pytest.raises(FileExistsError, match=r"thesis\.tex "):
        build_directory(tmp_path / "thesis.tex", {}, must_not_build)


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert (build_directory(tmp_path / "model", {}, writes("one")) / "weights").is_file()


def test_second_builder_keeps_the_first_result(tmp_path: Path) -> None:
    out = tmp_path / "model"

    def overtaken(directory: Path) -> None:
        build_directory(out, {}, writes("first"))
        (directory / "weights").write_text("second")

    build_directory(out, {}, overtaken)
    assert (out / "weights").read_text() == "first"
    assert not leftovers(tmp_path, "model")


def test_write_jsonl_keeps_the_old_file_when_a_row_fails(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"input": "naïve\n"}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"input": "naïve\n"}]
    with pytest.raises(TypeError):
        write_jsonl(path, [{"input": "x"}, {"input": object()}])
    assert path.read_text().count("\n") == 1
    assert not leftovers(tmp_path, "rows.jsonl")
