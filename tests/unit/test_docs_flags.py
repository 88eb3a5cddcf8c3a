"""docs/flags.md has our flags of every command, and is what the parsers say now."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.flag_reference import render
from openrlhf_ada.cli import verbs
from openrlhf_ada.cli.sampling_flags import OF_TRAINING
from openrlhf_ada.config.schema import SECTIONS, AdaConfig

FILE = Path(__file__).parents[2] / "docs" / "flags.md"


@pytest.fixture(scope="module")
def document() -> str:
    return render()


def test_docs_are_generated_from_the_parsers(document: str) -> None:
    assert FILE.read_text(encoding="utf-8") == document, "docs/flags.md is out of date: run `make docs`"
    assert render() == document


def test_every_command_and_flag_of_ours_is_there(document: str) -> None:
    assert set(re.findall(r"^## openrlhf-ada ([\w-]+)", document, re.M)) == set(verbs.VERBS)
    parsers = [verb.build_parser() for name, verb in verbs.VERBS.items() if name not in ("train", "doctor")]
    names = {name for parser in parsers for name in parser._option_string_actions} - {"-h", "--help"}
    names |= {f"--ada_{f.name}" for f in fields(AdaConfig)} | {"--verbose", "--trust_remote_code"}
    written = {name for row in re.findall(r"^\| (`--.*?)\| ", document, re.M) for name in re.findall(r"--[\w-]+", row)}
    assert names <= written


def test_every_section_starts_with_a_flag_and_keeps_order(document: str) -> None:
    assert set(SECTIONS) <= {f.name for f in fields(AdaConfig)}
    titles = [line[4:] for line in document.splitlines() if line.startswith("### ")]
    assert titles == [title for title, _ in SECTIONS.values()]


def test_reference_is_reproducible(document: str) -> None:
    assert not re.search(r"\d{4}-\d{6}|\d{4}T\d{2}:\d{2}", document), "no time of day"
    assert str(Path.home()) not in document


@pytest.mark.parametrize("verb", ["eval", "prepare-data"])
@pytest.mark.parametrize("name", OF_TRAINING)
def test_flags_of_training_are_declared_once(verb: str, name: str) -> None:
    """The same type, default and help text as of `openrlhf-ada train`."""
    ours = verbs.VERBS[verb].build_parser()._option_string_actions[f"--{name}"]
    theirs = verbs.VERBS["train"].build_parser()._option_string_actions[f"--ada_{name}"]
    assert (ours.type, ours.default, ours.help) == (theirs.type, theirs.default, theirs.help)


def test_rows_are_whole(document: str) -> None:
    """Two cells, no HTML that GitHub would hide."""
    rows = [line for line in document.splitlines() if line.startswith("|")]
    assert rows
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 4, row
        assert "<" not in re.sub(r"`[^`]*`", "", row), row
