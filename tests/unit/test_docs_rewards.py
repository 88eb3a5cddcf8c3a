"""The figures of docs/rewards.md are those of the last run of its benchmarks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module(name)
    del sys.modules[name]


@pytest.fixture
def rewards(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("rewards", monkeypatch)


@pytest.fixture
def reward_agreement(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("reward_agreement", monkeypatch)


def test_the_agreement_is_that_of_the_results_on_the_pairs_of_today(reward_agreement: ModuleType) -> None:
    record = json.loads(reward_agreement.RESULT.read_text())
    document = reward_agreement.DOCUMENT.read_text(encoding="utf-8")
    assert f"{reward_agreement.BEGIN}\n\n{reward_agreement.table(record)}\n\n{reward_agreement.END}" in document
    for name, cases in reward_agreement.own_suites().items():
        assert record["suites"][name]["n"] == len(cases)


def test_tables_are_those_of_the_results(rewards: ModuleType) -> None:
    record = json.loads(rewards.RESULT.read_text())
    document = rewards.DOCUMENT.read_text(encoding="utf-8")
    assert f"{rewards.BEGIN}\n\n{rewards.tables(record)}\n\n{rewards.END}" in document


def test_we_are_twice_as_fast_as_math_verify(rewards: ModuleType) -> None:
    ratios = json.loads(rewards.RESULT.read_text())["ratios"]
    assert set(ratios) == set(rewards.STREAMS) and all(min(values) > 2 for values in ratios.values())


def test_a_busy_machine_gives_ratios_only(rewards: ModuleType) -> None:
    programs = {"programs of 3 tests, per second of processor time": [87.0]}
    old = {"machine": 1, "verdicts_per_s": {"training": [263.0]} | programs}
    kept = rewards.kept({"ratios": {"training": [3.0]}, "verdicts_per_s": {"training": [99.0]}}, old)
    assert kept["verdicts_per_s"] == programs and kept["ratios"] == {"training": [3.0]}
    assert "| programs with stdin | 87 | – |" in rewards.tables(kept)
