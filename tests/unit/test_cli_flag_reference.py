"""docs/flags.md has every flag of every command, and is what the parsers say now."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.cli import demo, flag_reference, verbs
from openrlhf_ada.cli.flag_reference import GROUPS, render
from openrlhf_ada.cli.sampling_flags import OF_TRAINING
from openrlhf_ada.config.schema import AdaConfig

FILE = Path(__file__).parents[2] / "docs" / "flags.md"


@pytest.fixture(scope="module")
def document() -> str:
    return render()


def test_docs_are_generated_from_the_parsers(document: str) -> None:
    assert FILE.read_text(encoding="utf-8") == document, "docs/flags.md is out of date: run `make docs`"


def test_every_command_is_there(document: str) -> None:
    """`train` has several sections."""
    sections = set(re.findall(r"^## openrlhf-ada ([\w-]+)", document, re.M))
    assert sections == set(verbs.VERBS)


def test_every_flag_is_there(document: str) -> None:
    parsers = [verb.build_parser() for verb in verbs.VERBS.values()]
    names = {name for parser in parsers for name in parser._option_string_actions} - {"-h", "--help"}
    written = {name for row in re.findall(r"^\| (`--[^|]*)\|", document, re.M) for name in re.findall(r"`(.+?)`", row)}
    dotted = {f"--ada.{f.name}" for f in fields(AdaConfig)}
    assert names - dotted == written, "of ours, the flat spelling alone"
    assert dotted < names


def test_every_group_starts_with_a_flag_and_keeps_order(document: str) -> None:
    assert set(GROUPS) <= {f.name for f in fields(AdaConfig)}
    titles = [title for title, _ in GROUPS.values()]
    assert [line[4:] for line in document.splitlines() if line.startswith("### ")][: len(titles)] == titles


def test_reference_is_reproducible(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not re.search(r"\d{4}-\d{6}|\d{4}T\d{2}:\d{2}", document), "no time of day"
    assert str(Path.home()) not in document
    monkeypatch.setattr(
        demo,
        "time",
        SimpleNamespace(strftime=lambda form, *now: form.replace("%m%d-%H%M%S", "0102-030405")),
    )
    assert render() == document


@pytest.mark.parametrize(
    "row",
    [
        "| `--ada_wave` | integer ≥ 1 | `8` | M: rollouts that every open prompt gets per wave (mode seq). |",
        "| `--ada_exit` | `pos`, `balance`, `gate`, `fixed` | `balance` |",
        "| `--ada_k_pos` | integer ≥ 1 | 1 for exit pos, half of n (rounded down) for exit balance |",
        "| `--ada_verbose`, `--verbose` | switch | – |",
        "| `--ada_format_bonus` | number | `0` |",
        "| `--rollout.batch_size` | `1024` |",
        "| `--actor.dual_clip`, `--actor.entropy_coef` | – (number) |",
        "| `--actor.adam.betas`, `--critic.adam.betas` | `0.9 0.95` |",
        "| `--actor.muon.nesterov`, `--critic.muon.nesterov` | switch, on |",
        "| `--actor.policy_loss_type` | `ppo` (`gspo`) |",
        "| `--logger.wandb.run_name` | `ppo_<time>` |",
        "| `--use_ms` | switch |",
        "| `SOURCE` | text, one or more |",
        "| `--out` | path | output folder; if it exists, the run resumes (required) |",
        "| `--out` | path | output folder; if it exists, the evaluation resumes (default: runs/eval-&lt;time>) |",
        "| `--engines` | integer | number of vLLM engines (default 1) |",
    ],
)
def test_rows_by_hand(row: str, document: str) -> None:
    assert row in document


@pytest.mark.parametrize("verb", ["eval", "prepare-data"])
@pytest.mark.parametrize("name", OF_TRAINING)
def test_flags_of_training_are_declared_once(verb: str, name: str) -> None:
    """The same type, default and help text as of `openrlhf-ada train`."""
    ours = verbs.VERBS[verb].build_parser()._option_string_actions[f"--{name}"]
    theirs = verbs.VERBS["train"].build_parser()._option_string_actions[f"--ada_{name}"]
    assert (ours.type, ours.default, ours.help) == (theirs.type, theirs.default, theirs.help)


def test_flags_that_commands_share_have_one_row(document: str) -> None:
    """`--n` has another default in each."""
    of_training = ", ".join(f"`--{name}`" for name in OF_TRAINING)
    for flags, times in (("`--temperature`", 1), (of_training, 1), ("`--n`", 2)):
        assert document.count(f"| {flags} |") == times, flags


def test_rows_are_whole(document: str) -> None:
    """As many cells as the header, no HTML that GitHub would hide, no line break."""
    cells = 0
    for line in document.splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        found = len(re.split(r"(?<!\\)\|", line))
        cells = cells or found
        assert found == cells, line
        outside = re.sub(r"`[^`]*`", "", line)
        assert "<" not in outside, line


def test_a_pipe_does_not_end_a_cell() -> None:
    table: Any = flag_reference._table(("a",), [("x|y",)])
    assert table == "| a |\n|---|\n| x\\|y |"
