"""Verbs of the arena: bad input is one line and status 2, before anything is written; folders of something else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.arena.__main__ import VERBS, main
from benchmarks.arena.folders import LINES, SETTINGS, Results, keep_settings
from benchmarks.arena.trainings import alone

FOLDERS = ("campaign", "grid", "agreement", "real")
"""Verbs that work in a folder."""


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the call says."""
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"python -m benchmarks.arena {argv[0]}: error: ") and len(error.splitlines()) == 1
    return error


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("campaign --methods posh", "--methods posh: there is no such name. Did you mean pos?"),
        ("campaign --tasks grade", "--tasks grade: there is no such name"),
        ("campaign --cost euros", "--cost euros: there is no such name"),
        ("campaign --seeds 2", "--seeds 2: an interval needs at least 3"),
        ("campaign --budget 1500 --methods uniform-4,pos", "Give 2304 or more, or leave pos out"),
        ("campaign --methods ,", "--methods names nothing"),
        ("campaign --processes 0", "--processes 0: at least 1"),
        ("campaign --quick --seeds 10", "--seeds does not go with --quick"),
        ("campaign --methods weighed-as-hora --tasks graded,many", "--tasks many: the weight of hora was measured on"),
        ("grid --methods n8", "--methods n8: there is no such name"),
        ("grid --tasks luck5", "--tasks luck5: there is no such name. Did you mean luck"),
        ("grid --seeds 0", "--seeds 0: at least 1"),
        ("grid --quick --budget 4", "--budget does not go with --quick"),
        ("agreement --methods posh", "--methods posh: there is no such name. Did you mean pos?"),
        ("agreement --methods dapo", "--methods dapo: methods that replace prompts"),
        ("agreement --methods weighed-as-hora", "--methods weighed-as-hora"),
        ("agreement --seeds 0", "--seeds 0: at least 1"),
        ("agreement --steps 48", "--steps 48: expected whole epochs over the prompts, of 32 steps each. Try 64"),
        ("agreement --minutes nan", "--minutes nan: expected a number above 0"),
        ("real --methods ,", "--methods names nothing"),
        ("real --methods weighed-as-hora", "--methods weighed-as-hora"),
        ("real --seeds 0", "--seeds 0: at least 1"),
        ("real --budget 100", "--budget 100: a run needs at least 384 rollouts"),
        ("real --minutes 0", "--minutes 0: expected a number above 0"),
        ("real --rates nan", "--rates nan: a learning rate lies between 0 and 1"),
    ],
)
def test_bad_input_is_refused_at_once(
    argv: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *argv.split(), "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_unknown_verb_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaigns"]) == 2
    told = capsys.readouterr().err
    assert all(verb in told for verb in VERBS)


@pytest.mark.parametrize("verb", FOLDERS)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("[]", "holds no settings of this command"),
        ("{bad", "is no JSON"),
        ('{"model": "toy", "budget": 6144}', "holds no settings of this command"),
    ],
)
def test_settings_of_something_else_are_refused(
    verb: str, settings: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / SETTINGS).write_text(settings)
    assert says in refused(capsys, verb, "--out", str(tmp_path))
    assert (tmp_path / SETTINGS).read_text() == settings


@pytest.mark.parametrize("verb", FOLDERS)
def test_folder_of_something_else_is_refused(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert f"there is no {SETTINGS}" in refused(capsys, verb, "--out", str(tmp_path))
    assert "it is a file. Name a folder" in refused(capsys, verb, "--out", str(tmp_path / "file"))
    assert "cannot be made (Not a directory)" in refused(capsys, verb, "--out", str(tmp_path / "file" / "below"))


def test_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(tmp_path), pytest.raises(ValueError, match="is in use by another call"), alone(tmp_path):
        pass


@dataclass(frozen=True)
class Cell:
    name: str


def test_results_are_kept_and_read_again(tmp_path: Path) -> None:
    results = Results(tmp_path, Cell, ("value",))
    results.add(Cell("a"), {"value": 1})
    again = Results(tmp_path, Cell, ("value",))
    assert again.by_cell == {Cell("a"): {"name": "a", "value": 1}}
    assert again.missing([Cell("a"), Cell("b")]) == [Cell("b")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"value": 1}', "no 'name'"),
        ('{"name": "a"}', "no 'value'"),
        ('{"name": "a", "val', "Unterminated string"),
        ("[]", "no 'name'"),
        ("7", "int"),
        ('{"name": [], "value": 1}', "unhashable type: 'list'"),
    ],
)
def test_line_that_is_no_result_is_named(line: str, says: str, tmp_path: Path) -> None:
    """As the end of one is that a full disk has cut off."""
    (tmp_path / LINES).write_text(line)
    with pytest.raises(ValueError, match=rf"line 1 is no result \(.*{says}.*\). Remove this line"):
        Results(tmp_path, Cell, ("value",))


def test_results_that_were_made_otherwise_are_refused(tmp_path: Path) -> None:
    """What is new is noted beside what is there."""
    keep_settings(tmp_path, {"conditions": {"steps": 32}}, ("conditions",))
    keep_settings(tmp_path, {"conditions": {"steps": 32}, "pos": {"n": 4}}, ("conditions",))
    with pytest.raises(ValueError, match=r"made otherwise: pos, n: 4 there, 8 here"):
        keep_settings(tmp_path, {"conditions": {"steps": 32}, "pos": {"n": 8}}, ("conditions",))
